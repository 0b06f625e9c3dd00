"""The DICOM node: objects received on a route become jobs of the queue, and results are sent on.

All its state is on disk, and each step may be repeated. May import jobs and the network. Must not
run jobs or print.
"""
