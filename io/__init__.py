"""Scan files to volumes and back, with their geometry kept exactly."""
