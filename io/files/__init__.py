"""Bytes on disk: atomic writing of results, gzip in and out, limits on sizes stated in headers,
limits of the machine.

May import errors and the volume's array types. Must not depend on scan formats but the first bytes
of NIfTI; `regular`, `machine_limits` and `nifti_start`, which engine uses, import nothing else of
io.
"""
