// Positions of voxels that a thread visits one after another, without a division for each.
#pragma once

// A voxel that moves on by a fixed number of voxels.
struct Walk {
    int plane, row, column;

    __device__ __forceinline__ Walk(int voxel, const int (&extents)[3]) {
        row = voxel / extents[2];
        column = voxel - row * extents[2];
        plane = row / extents[1];
        row -= plane * extents[1];
    }

    __device__ __forceinline__ void advance(const Walk& by, const int (&extents)[3]) {
        column += by.column;
        row += by.row;
        plane += by.plane;
        if (column >= extents[2]) column -= extents[2], ++row;
        if (row >= extents[1]) row -= extents[1], ++plane;
    }
};
