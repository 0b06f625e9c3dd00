"""Results in an output folder: the manifest, the pending studies, and the storing of results.

May import study and report. Must not depend on threads, processes or queues.
"""
