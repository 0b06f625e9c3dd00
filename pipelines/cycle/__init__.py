"""Cycle consistency: results translated back by a second generator, and how far they then lie
from the scans.

May import study, settings and engine. Must not know batches, output folders or reports.
"""
