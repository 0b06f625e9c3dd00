"""Bytes on disk: results whole or not at all, gzip in and out, limits on what a header may
promise.

May import errors. Must not know any scan format.
"""
