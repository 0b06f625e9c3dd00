"""Graph and weights -> steps over stored tensors, fused to be few.

May import steps and the table of kernels. Must not know bytes in the arena, nor a driver.
"""
