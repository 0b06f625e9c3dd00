"""The tuner of both modes: times a layer's tactics, verifies the fastest first, keeps the results.

May import the GPU's driver, libraries and kernels. Must not import patches or volumes.
"""
