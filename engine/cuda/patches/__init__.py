"""A network over patches on a GPU: one program, and sliding windows that stream arrays through it.

May import the rest of cuda. Must not be imported by it, nor by volume.
"""
