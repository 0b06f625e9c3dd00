"""Compile a network for a whole volume: its passes, and the memory of its maps.

May import the rest of the compiler. Must not import the driver.
"""
