"""DICOM: from files to series, from a series to a volume on one grid.

May import files and the volume. Must not know other formats, nor networks.
"""
