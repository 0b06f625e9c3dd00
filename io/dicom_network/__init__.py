"""DICOM over the network: associations accepted and requested, objects stored and sent.

May import DICOM's own readers and errors. Must not depend on routes, jobs or models.
"""
