"""Scan files to volumes and back, with their geometry kept exactly.

Knows formats and geometry. Must never know networks, devices, batches or the command line.
"""
