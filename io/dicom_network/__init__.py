"""DICOM over the network: associations accepted and made, objects stored and sent.

May import DICOM's own readers and errors. Must not know routes, jobs or models.
"""
