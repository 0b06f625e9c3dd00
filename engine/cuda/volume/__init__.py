"""A network over a whole volume on a card: the volume comes in, passes over its blocks, goes out.

May import the rest of cuda. Must not be imported by it.
"""
