"""The network on a GPU: driver, compiled kernels, cuDNN plans; patches/ and volume/ run it.

May import the compiler. The only package that uses a GPU; the compiler must not import it.
"""
