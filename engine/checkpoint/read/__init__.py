"""Checkpoint files as plain data: nothing in them is ever imported or called.

May import the network's types. Must not know layouts or architectures.
"""
