"""From named tensors to a graph with weights, with an account of what is not certain.

May import read, the network and, to settle questions, a CPU session. Must not touch files.
"""
