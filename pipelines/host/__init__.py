"""Resources of this machine for a process: memory, control groups, processes and signals, and
arrays kept for the next study.

May import errors, and io's volume and files. Must not depend on studies.
"""
