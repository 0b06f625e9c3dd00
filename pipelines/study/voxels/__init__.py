"""Arrays of voxels: their intensities, statistics, types, axes and spacing.

May import io's volume and the model card. Must not know tiles, nor the network.
"""
