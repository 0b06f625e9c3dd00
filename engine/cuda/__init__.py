"""The network on an NVIDIA card: driver, compiled kernels, cuDNN plans, the program and its
streams.

May import the compiler. The only package that touches a card; nothing in compiler may import it.
"""
