"""The network: a typed layer graph, the published architectures as graphs, and their arithmetic.

May import errors and decoding. Must not know checkpoints, devices or file formats.
"""
