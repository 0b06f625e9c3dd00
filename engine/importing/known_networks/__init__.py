"""Networks of MONAI bundles and of nnU-Net's model folders, by definitions of their own.

A folder states the network's class and arguments, and a definition here writes the class in
operators. May import the graph of operators and the reader of PyTorch's tensors. Must never execute
anything that a folder holds, nor know model cards.
"""
