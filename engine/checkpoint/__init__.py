"""Training checkpoints: read as plain data, then recognised as a network.

May import the network and the model. Must never execute anything that a file holds.
"""
