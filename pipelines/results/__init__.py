"""Results in an output folder: the manifest, what is due, and how a result gets onto disk.

May import study and report. Must not know threads, processes or queues.
"""
