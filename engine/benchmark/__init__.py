"""Time, memory and energy of a network on a device, by layer, compared with the device's ceilings
and with PyTorch.

May import the runtimes. Must not be imported by them.
"""
