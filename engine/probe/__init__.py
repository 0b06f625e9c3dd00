"""GPUs, CUDA packages and copies of cuDNN of this machine.

May import nothing of the engine. Must never load what it looks for.
"""
