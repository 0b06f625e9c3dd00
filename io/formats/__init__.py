"""Formats of scans: registry.py lists them, and format.py defines their interface.

May import files, DICOM and the volume. Must not depend on discovery.
"""
