"""DICOM: from files to series, each of which is one grid, or with the reason why it is none.

May import files and the volume. Must not know other formats, nor networks.
"""
