"""Compile a graph to a GPU program: steps, memory plan and launches, all without a GPU.

May import the network. Must never import cuda: everything here runs and is tested on any machine.
"""
