"""Running of studies: the threads that process a study from file to file, the networks that are
open on a device, and worker processes under a supervisor.

May import study, results, progress and report. Must not depend on the queue's database.
"""
