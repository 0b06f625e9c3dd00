"""Worker processes that run the jobs of the queue, as `translate` runs its studies.

May import queue and execution. Must not write tables itself.
"""
