"""A generator as a typed layer graph, and the runtimes that turn patches into patches.

Knows arrays, weights and devices. Must never know scans, studies, files of scans, or the command
line.
"""
