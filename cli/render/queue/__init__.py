"""The queue and the DICOM node as people and scripts see them: jobs, what is to come, a node's log.

May import the records it shows. Must not start work, nor know which command asked.
"""
