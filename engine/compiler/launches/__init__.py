"""Translate steps into kernel launches, for patches and for blocks of a volume.

May import steps and kernels. Must not know the driver.
"""
