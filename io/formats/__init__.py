"""File formats of one volume a file: NIfTI and Analyze, NRRD and MetaImage.

May import files and the volume. Must not know discovery.
"""
