// Where the patches of a launch lie. With -DIN_BLOCKS they are blocks of one volume, side by side: what
// a block sees beyond itself lies in other blocks, and only the volume has borders. The blocks of the
// last row along an axis may reach past the volume; what is there is computed, and never used.
#pragma once

#include "element.cuh"

#ifdef IN_BLOCKS
constexpr bool ARE_BLOCKS = true;
#else
constexpr bool ARE_BLOCKS = false;
#endif

// First voxel of a patch in the volume; of a patch by itself, 0.
struct Start {
    int at[3];
};

// Voxels of a patch, along each axis, that lie in the volume.
struct Inside {
    int extents[3];
};

#ifdef IN_BLOCKS
// At one resolution.
struct Blocks {
    int first;           // block of the volume with which the launch begins
    int apart;           // from each block of the launch to the next one
    int plane;           // of each block, with which the launch begins
    int counts[2];       // of the volume's blocks along H and W
    int extents[3];      // of a block
    int volume[3];       // extents of the volume
    unsigned shares[3];  // 2^31 / extents and a little more, to divide by

    __device__ __forceinline__ Start start(int index) const {
        const int number = first + index * apart, row = number / counts[1], plane = row / counts[0];
        return {{plane * extents[0], (row - plane * counts[0]) * extents[1],
                 (number - row * counts[1]) * extents[2]}};
    }

    __device__ __forceinline__ Inside inside(const Start& start) const {
        return {{min(extents[0], volume[0] - start.at[0]), min(extents[1], volume[1] - start.at[1]),
                 min(extents[2], volume[2] - start.at[2])}};
    }

    __device__ __forceinline__ Index voxels() const {
        return (Index)volume[0] * volume[1] * volume[2];
    }

    // Of a voxel in the volume as one array.
    __device__ __forceinline__ Index place(int d, int h, int w) const {
        return ((Index)d * volume[1] + h) * volume[2] + w;
    }

    // The block in which a position of an axis lies.
    __device__ __forceinline__ int block_at(int position, int axis) const {
        return (int)((unsigned long long)(unsigned)position * shares[axis] >> 31);
    }

    // From a voxel of the volume to that of its block, whose number, from the first of the launch on,
    // is the result.
    __device__ __forceinline__ Index within(int& d, int& h, int& w) const {
        const int plane = block_at(d, 0), row = block_at(h, 1), column = block_at(w, 2);
        d -= plane * extents[0];
        h -= row * extents[1];
        w -= column * extents[2];
        return (plane * counts[0] + row) * counts[1] + column - first;
    }
};

// Halo of a tensor that holds what surrounds each block as well; extents 0 for one that does not.
struct Around {
    int extents[3];  // of a block with its halo
    int first[3];    // its first voxel, from the block's

    // From a position of the volume to that in a block which starts at `start`. What the halo does not
    // hold is never used.
    __device__ __forceinline__ int within(int position, int start, int axis) const {
        return min(max(position - start - first[axis], 0), extents[axis] - 1);
    }
};
#endif

// Voxels of patch `index` of a launch that are of a volume, all where patches are by themselves;
// extents: of a patch.
template <class Arguments>
__device__ __forceinline__ Inside inside_of(
    const Arguments& p, const int (&extents)[3], int index
) {
#ifdef IN_BLOCKS
    return p.blocks.inside(p.blocks.start(index));
#else
    return {{extents[0], extents[1], extents[2]}};
#endif
}

// Of what a launch's arguments say of patch `index` of the launch.
template <class Arguments>
__device__ __forceinline__ Start start_of(const Arguments& p, int index) {
#ifdef IN_BLOCKS
    return p.blocks.start(index);
#else
    return {{0, 0, 0}};
#endif
}

// Index in p.translated of a voxel of patch `index` of a launch: in patches [N, K, D, H, W], or in the
// volume of which they are blocks; start: as of `start_of`.
template <class Arguments>
__device__ __forceinline__ Index translated_at(
    const Arguments& p, const Start& start, int index, int output, int d, int h, int w
) {
#ifdef IN_BLOCKS
    return output * p.blocks.voxels() +
           p.blocks.place(start.at[0] + d, start.at[1] + h, start.at[2] + w);
#else
    return ((((Index)index * p.outputs + output) * p.target_extents[0] + d) * p.target_extents[1] + h) *
               p.target_extents[2] + w;
#endif
}
