"""A batch at work: the pipeline of threads, and worker processes under a supervisor.

May import study, results, progress and report. Must not know the queue's database.
"""
