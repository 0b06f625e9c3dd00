"""Whether what this program offers works on this machine: one finding a line.

May import what it examines. Must change nothing.
"""
