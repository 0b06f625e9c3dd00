"""Worker processes under a supervisor, each with a device of its own, for a batch or for the queue.

May import execution, whose work they do. Must not know the queue's database.
"""
