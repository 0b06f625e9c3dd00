"""The DICOM node: what arrives on a route becomes jobs of the queue, and results go on.

All that it knows stands on disk, and each step may be done again. May import jobs and the network.
Must not run jobs, nor print.
"""
