"""Which cards, packages and copies of cuDNN this machine has.

May import nothing of the engine. Must never load what it looks for.
"""
