"""DICOM series: files joined to series, each of which is one grid, or the reason why it is none.

May import files, choices and the volume. Must not know other formats, the search, nor networks.
"""
