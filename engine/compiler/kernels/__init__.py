"""Host-side descriptions of the CUDA kernels, one module for each family of them.

Structures of arguments and constants are read from the .cu files. A structure has `__slots__`, so
that it rejects a misspelt field, which ctypes would take for a new attribute.

May import steps and tensors. Must not import graphs or the driver.
"""
