"""A network over a whole volume on a GPU: copy the volume in, run passes over blocks, copy it out.

May import the rest of cuda. Must not be imported by it.
"""
