"""From a step to the kernels that do it: grids, blocks and arguments, field for field as in the
.cu files. A structure has `__slots__`, so that it refuses a misspelt field, which ctypes would take
for a new attribute.

May import steps. Must not know the driver.
"""
