"""From a DICOM series to a volume: its frames decoded, on one grid.

May import series and their headers, files and the volume. Must not know what is made of a volume.
"""
