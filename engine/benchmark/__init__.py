"""What a network takes on a device, layer by layer, beside the device's ceilings and beside
PyTorch.

May import the runtimes. Must not be imported by them.
"""
