"""Derived DICOM series: which elements stay, which are new, and how voxels are stored.

May import the reading side. Must not be imported by it.
"""
