"""Which reading of a checkpoint computes a reference: what is tried, and what that proves.

May import recognise. Must not be imported by it, nor know what a user is asked.
"""
