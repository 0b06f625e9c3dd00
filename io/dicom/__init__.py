"""DICOM series: files grouped into series, each with one grid or the reason why it has none.

May import files, choices and the volume. Must not depend on other formats, the search or networks.
"""
