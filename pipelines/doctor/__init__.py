"""Checks whether the features of this program work on this machine, one finding per line.

May import what it examines. Must change nothing.
"""
