"""From named tensors to a graph with weights, with an account of what is not certain.

`networks` finds the generator's tensors; `resnet` or `unet` the `match` of its layout;
`established` the `reading` of what tensors do not tell: by `codes` or the user.
May import read and the network. Must not touch files, nor compute.
"""
