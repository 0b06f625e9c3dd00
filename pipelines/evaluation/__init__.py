"""Comparison of results with ground truth: pairs, grids, protocols, metrics, and their report.

May import pictures of volumes and the readers of scans. Must not depend on models, devices or the
way a result was made.
"""
