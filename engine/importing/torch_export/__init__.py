"""torch.export archives: read as plain data, then stated in ONNX operators.

May import the graph of operators and the reader of PyTorch's tensors. Must never execute or
unpickle anything that a file holds, nor know model cards.
"""
