"""From a step to the kernels that do it, for patches and for blocks of a volume.

May import steps and kernels. Must not know the driver.
"""
