"""Where every tensor of a program lies, and the largest batch that fits, before any byte is
allocated.

May import lowering and launches. Must not know the driver.
"""
