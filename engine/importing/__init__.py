"""Files of other programs read as plain data: checkpoints, ONNX, MONAI bundles, nnU-Net folders.

A training checkpoint is recognised by `checkpoint`; a file that holds a graph, or a folder of
`known_networks`, becomes an `OperatorGraph`, which `operators` converts to a network. Modules here
must not know layouts of checkpoints nor model cards. Must never execute anything that a file holds.
"""
