"""Volumes of DICOM series: frames decoded and put on one grid.

May import series and their headers, files and the volume. Must not depend on how a volume is used.
"""
