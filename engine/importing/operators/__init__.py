"""A graph of ONNX operators, whatever file it came from, converted to layers and weights.

May import the network. Must not touch files, nor know model cards.
"""
