"""Graph and weights -> steps over stored tensors, with the fusions that make them few.

May import steps and launches' sizes. Must not know bytes in the arena, nor a driver.
"""
