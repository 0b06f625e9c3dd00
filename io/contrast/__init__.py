"""Kind of image that a scan is: the words for it, what names and headers state, and their weighing.

Imports nothing of this program, so that formats and DICOM may use it. Must not read voxels or know
models beyond the words for their contrasts.
"""
