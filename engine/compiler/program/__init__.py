"""A network as a program of steps: lowering, fusion, memory, and the largest batch that fits.

May import steps and the table of kernels. Must not import the driver.
"""
