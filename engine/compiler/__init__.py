"""From a graph to a program for a card: steps, memory and launches, all without a card.

May import the network. Must never import cuda: everything here runs and is tested on any
machine.
"""
