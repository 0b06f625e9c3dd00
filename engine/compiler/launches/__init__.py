"""From a step to the kernels that do it: grids, blocks and arguments, field for field as in the
.cu files.

May import steps. Must not know the driver.
"""
