"""Processes that do the jobs of the queue, as `translate` does its studies.

May import queue and execution. Must not write tables itself.
"""
