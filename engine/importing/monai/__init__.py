"""Import of MONAI bundles: a network definition and its weights, stated in ONNX's operators.

May import the graph of operators and the reader of checkpoints. Must never evaluate an expression
of a configuration, nor know model cards.
"""
