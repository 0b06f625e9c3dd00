// Rows of a pass's target, and the place of the value that each of their voxels shows.
#pragma once

#include "pass.cuh"

// A row of the target: its first voxel, and the plane and row of the value that it shows.
struct Row {
    Element* target;
    int d, h;

    __device__ __forceinline__ Row(
        const Pointwise& p, const Start& start, int row, int channel
    )
        : Row(p, start, row / p.target_extents[1], row % p.target_extents[1], channel) {}

    __device__ __forceinline__ Row(
        const Pointwise& p, const Start& start, int plane, int line, int channel
    ) {
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

// The first of the LANES channels that a thread owns, in a block (vectors, columns or runs of them).
__device__ __forceinline__ int first_channel() {
    return (blockIdx.y * blockDim.x + threadIdx.x) * LANES;
}

template <Form FORM>
__device__ __forceinline__ Channels<FORM> scaled(const Pointwise& p, int channel) {
    Channels<FORM> channels(p, blockIdx.z, channel);
    const int place = blockIdx.z * p.table_stride + channel % p.table_channels;
    channels.scale_by(p.factor ? p.factor + place : nullptr, p.summand + place);
    return channels;
}
