"""A trained model: its card, its file, and the reference patch that proves it.

May import the network, and `cpu` to compute a reference and to export to ONNX. Must not know
training checkpoints, nor GPUs.
"""
