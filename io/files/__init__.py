"""Bytes on disk: results whole or not at all, gzip in and out, limits on what a header may
promise, limits of the machine.

May import errors and the volume's array types. Must know no scan format but the first bytes of
NIfTI; `regular`, `machine_limits` and `nifti_start`, which engine uses, import nothing else of io.
"""
