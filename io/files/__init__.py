"""Bytes on disk: results whole or not at all, gzip in and out, limits on what a header may
promise, limits of control groups.

May import errors and the volume's array types. Must not know any scan format, and `regular` and
`machine_limits`, which engine uses, must import nothing else of io.
"""
