"""Conversion of scan files to volumes and back, with their geometry kept exactly.

Handles formats and geometry. Must not depend on networks, devices, batches or the command line.
"""
