"""What of this machine a process may use: memory, control groups, processes and signals, and
arrays kept for the next study.

May import errors, and io's volume and files. Must not know studies.
"""
