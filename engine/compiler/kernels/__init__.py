"""One module for each family of kernels, with all that is known of them but their CUDA source.

`table.py` lists them. May import steps and tensors. Must not know graphs, nor the driver.
"""
