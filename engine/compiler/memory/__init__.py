"""Memory plan: addresses of all tensors and the largest batch that fits, before any allocation.

May import lowering and launches. Must not know the driver.
"""
