// Rows of a pass's target, and the place of the value that each of their voxels shows.
#pragma once

#include "pass.cuh"

// A row of the target: its first voxel, and the plane and row of the value that it shows.
struct Row {
    Element* target;
    int d, h;

    __device__ __forceinline__ Row(
        const Pointwise& p, const Start& start, int row, int channel
    ) {
        const int plane = row / p.target_extents[1], line = row - plane * p.target_extents[1];
        d = continued(plane + p.origin[0] + start.at[0], padded_extents(p)[0], p.border);
        h = continued(line + p.origin[1] + start.at[1], padded_extents(p)[1], p.border);
        const Strides& strides = p.target_strides;
        target = p.target + blockIdx.z * strides.patch + channel;
        if (p.target_cell) {
            target += (plane >> 1) * strides.plane + (line >> 1) * strides.row +
                      ((plane & 1) * 2 + (line & 1)) * 2 * p.target_cell;
        } else {
            target += plane * strides.plane + line * strides.row;
        }
    }

    __device__ __forceinline__ Element* at(const Pointwise& p, int column) const {
        if (!p.target_cell) return target + (Index)column * p.target_strides.voxel;
        return target + (Index)(column >> 1) * p.target_strides.voxel +
               (column & 1) * p.target_cell;
    }
};

// Behind the last row of the target that a block walks over.
__device__ __forceinline__ int end_of_rows(const Pointwise& p) {
    const int rows = p.target_extents[0] * p.target_extents[1];
    return min((int)(blockIdx.x + 1) * p.rows, rows);
}

// The column of the value that one of the target shows; below 0 for none.
__device__ __forceinline__ int shown_column(const Pointwise& p, const Start& start, int column) {
    return continued(column + p.origin[2] + start.at[2], padded_extents(p)[2], p.border);
}
