"""ONNX files: read as plain data, then written down as a layer graph with its weights.

May import the network. Must never execute anything that a file holds, nor know model cards.
"""
