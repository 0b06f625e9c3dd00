// Epilogues of convolutions in registers: statistics of the results for a normalisation, measured by each
// lane, merged over the block and stored as partials; and results written as whole lines.
#pragma once

#include "matrix.cuh"
#include "moments.cuh"
#include "pipeline.cuh"

// Moments of four neighbouring lanes, in all of them.
__device__ __forceinline__ Moments of_four_lanes(Moments moments) {
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) {
        moments.merge({__shfl_xor_sync(~0u, moments.count, distance),
                      __shfl_xor_sync(~0u, moments.mean, distance),
                      __shfl_xor_sync(~0u, moments.squares, distance)});
    }
    return moments;
}

// Statistics of the two channels of a lane 4 g + t, rows g and 8 + g of its warp's sums of wgmma, of which
// it has columns 2 t and 2 t + 1 of each 8.
struct MeasuredRows {
    Sums low{0.0f, 0.0f, 0.0f}, high{0.0f, 0.0f, 0.0f};

    // Takes the first sums as what others are measured about.
    __device__ __forceinline__ void begin(const float* sums) {
        low.shift = sums[0], high.shift = sums[2];
    }

    // Adds column 2 t + odd of the four sums of 8 columns.
    __device__ __forceinline__ void add(const float* sums, int odd) {
        low.add(sums[odd]);
        high.add(sums[2 + odd]);
    }

    // Stores moments of the warp's 16 channels; count: of this lane's numbers of each.
    __device__ __forceinline__ void keep(Moments* warp_moments, int count) const {
        const int g = threadIdx.x % 32 / 4;
        const Moments lower = of_four_lanes(low.moments(count));
        const Moments upper = of_four_lanes(high.moments(count));
        if (threadIdx.x % 4 == 0) warp_moments[g] = lower, warp_moments[8 + g] = upper;
    }
};

// Stores the moments of a channel of this block in partials [N][blocks of a patch][K].
__device__ __forceinline__ void store_partial(
    Moments* partials, int number, int outputs, int channel, const Moments& moments
) {
    const Index block = ((Index)number * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    partials[block * outputs + channel] = moments;
}

// Merges and stores what eight warps kept of OUTPUTS channels, 16 each, in shared memory [8][16];
// first: of the channels. For all threads of a block.
template <int OUTPUTS>
__device__ __forceinline__ void store_partials(
    Moments* partials, int number, int outputs, int first, const Moments* warp_moments
) {
    if (!partials) return;
    __syncthreads();
    if (threadIdx.x >= OUTPUTS) return;
    Moments moments{0.0f, 0.0f, 0.0f};
    for (int warp = threadIdx.x / 16; warp < 8; warp += OUTPUTS / 16) {
        moments.merge(warp_moments[warp * 16 + threadIdx.x % 16]);
    }
    store_partial(partials, number, outputs, first + threadIdx.x, moments);
}

#ifndef ELEMENT_FLOAT

// Stores 16 channels of 16 voxels of a warp's sums of wgmma, 8 sums a lane, to shared memory, channels
// of a voxel together; address: as of store_transposed.
__device__ __forceinline__ void stage_sums(unsigned address, const float* sums) {
    store_transposed(address, make_uint4(pair(sums[0], sums[1]), pair(sums[2], sums[3]),
                                         pair(sums[4], sums[5]), pair(sums[6], sums[7])));
}

// Writes rows through shared memory, STEP at a time, so that a warp writes whole lines of memory:
// stage(i) stores rows from i on there, write(i) copies them. For all threads of a group.
template <int THREADS, int ROWS, int STEP, class Stage, class Write>
__device__ __forceinline__ void write_staged(int group, const Stage& stage, const Write& write) {
#pragma unroll
    for (int first = 0; first < ROWS; first += STEP) {
        wait_for_group<THREADS>(group);
        stage(first);
        wait_for_group<THREADS>(group);
        write(first);
    }
}

// Writes 8 GROUPS channels of voxel 8 * half + g of a row of mma sums, of which this lane is 4 g + t;
// offset: of the voxel in the line.
template <int GROUPS, class Offset>
__device__ __forceinline__ void write_voxel(
    const float (&sums)[GROUPS][4], int half, Element* line, Offset offset, bool is_inside, int t
) {
    unsigned own[GROUPS];
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
        own[group] = pair(sums[group][2 * half], sums[group][2 * half + 1]);
    }
    if constexpr (GROUPS == 4) {
        const uint4 words = transposed(own[0], own[1], own[2], own[3], t);
        if (is_inside) *reinterpret_cast<uint4*>(line + offset + t * 8) = words;
    } else if (is_inside) {
#pragma unroll
        for (int group = 0; group < GROUPS; ++group) {
            *reinterpret_cast<unsigned*>(line + offset + group * 8 + 2 * t) = own[group];
        }
    }
}

#endif
