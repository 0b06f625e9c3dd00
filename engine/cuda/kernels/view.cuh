// Address of a voxel in a view of a tensor, which may be space-to-depth: it then holds cells of 2 x 2 x 2
// voxels, the voxels of a cell one after another. Offsets along the axes add up.
#pragma once

#include "part.cuh"

// Offset of a position along the axes from FIRST on (D, H, W: 0, 1, 2).
template <int FIRST, int COUNT>
__device__ __forceinline__ Index offset_along(const Strides& strides, const int (&position)[COUNT]) {
    Index offset = 0;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const int axis = FIRST + i;
        offset += axis == 2 ? (Index)(position[i] * strides.voxel)
                            : position[i] * (axis == 1 ? strides.row : strides.plane);
    }
    return offset;
}

// The same in a space-to-depth tensor; strides: of its cells, channels: of a voxel.
template <int FIRST, int COUNT>
__device__ __forceinline__ Index offset_in_cells(
    const Strides& strides, int channels, const int (&position)[COUNT]
) {
    int cell[COUNT], voxel = 0;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        cell[i] = position[i] >> 1, voxel = voxel * 2 + (position[i] & 1);
    }
    return offset_along<FIRST>(strides, cell) + (voxel << (3 - FIRST - COUNT)) * channels;
}

// The same in a part, whose first voxel may lie within a cell.
template <int FIRST, int COUNT>
__device__ __forceinline__ Index offset_along(const Part& part, const int (&position)[COUNT]) {
    if (!part.shuffled) return offset_along<FIRST>(part.strides, position);
    int within[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) within[i] = position[i] + part.origin[FIRST + i];
    return offset_in_cells<FIRST>(part.strides, part.channels, within);
}
