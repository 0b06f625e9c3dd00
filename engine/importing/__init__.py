"""Import of training checkpoints: read as plain data, then recognised as a network.

`pickles`, `torch_files` and `checkpoint_file` read; they must not know layouts or architectures.
The other modules recognise; they must not touch files, and only `reference_search` may compute. May
import the network and the model. Must never execute anything that a file holds.
"""
