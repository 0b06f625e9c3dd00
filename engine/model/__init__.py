"""A trained model: its card, its file, and the reference patch that proves it.

May import the network. Must not know training checkpoints, nor how a device computes.
"""
