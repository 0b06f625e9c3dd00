"""How studies are run: the threads that carry a study from file to file, the networks that are open
on a device, and worker processes under a supervisor.

May import study, results, progress and report. Must not know the queue's database.
"""
