"""Import of ONNX files: read as plain data, then converted to a layer graph with its weights.

May import the network. Must never execute anything that a file holds, nor know model cards.
"""
