"""The network on a card: driver, compiled kernels, cuDNN plans; patches/ and volume/ run it.

May import the compiler. The only package that touches a card; the compiler must not import it.
"""
