"""What happens to a study and to a batch of them: prepare, tile, blend, finish, store, report,
queue.

May import engine and io. Must never know the command line, nor spell its options.
"""
