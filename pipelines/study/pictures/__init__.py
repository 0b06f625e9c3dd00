"""Pictures of volumes: their slices as a reader of scans sees them, drawn side by side.

May import study.voxels and the model card. Must not know how a study travels, nor store anything.
"""
