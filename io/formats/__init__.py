"""Formats of scans: registry.py lists them, and format.py says what each of them provides.

May import files, DICOM and the volume. Must not know discovery.
"""
