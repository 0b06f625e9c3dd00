"""A network over a whole volume: which may run so, in which passes, and where its maps are kept.

May import the rest of the compiler. Must not know the driver.
"""
