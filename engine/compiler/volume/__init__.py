"""A network over a whole volume: in which passes, and where its maps are kept.

May import the rest of the compiler. Must not know the driver.
"""
