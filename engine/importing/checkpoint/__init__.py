"""Recognition of a training checkpoint: its generator, the layout of its keys, and its reading.

May import the readers of files, the network and the model. Must not touch files; only
`reference_search` may compute.
"""
