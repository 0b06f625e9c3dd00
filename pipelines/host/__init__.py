"""What of this machine a process may use: memory, control groups, and arrays kept for the next
study.

May import io's volume. Must not know studies.
"""
