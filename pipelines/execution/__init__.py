"""A batch at work in one process: the threads through which each study goes, and what became of it.

May import study, results, progress and report. Must not know of other processes.
"""
