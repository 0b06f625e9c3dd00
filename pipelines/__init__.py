"""Processing of studies and batches: prepare, cut, blend, finish, store, report, queue.

May import engine and io. Must never depend on the command line, nor spell its options.
"""
