"""Launches over a scan's stored voxels, before and after the network: of windows, of a volume.

May import launches and their arguments. Must not know the steps of a network, nor the driver.
"""
