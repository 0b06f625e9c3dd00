"""Derived DICOM series: elements that stay, elements that are new, and stored voxels.

May import the reading side, contrasts and maps. Must not be imported by it.
"""
