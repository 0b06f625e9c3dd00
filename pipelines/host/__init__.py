"""Resources of this machine for a process: memory, control groups, processes and signals.

May import errors and io's files. Must not depend on studies.
"""
