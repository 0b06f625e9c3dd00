"""Outcome of a study and of a batch: records, their JSON, and comparisons.

May import the records of settings and memory. Must not compute or store results.
"""
