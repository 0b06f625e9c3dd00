// A float convolution as three products of split fp16 on Tensor Cores.
//
// source [N, D, H, W, C / 8, 2, 8], weight [K, kD, kH, kW, C / 8, 2, 8] -> target float
// [N, D', H', W', K]; C in whole 32s. Each number x is stored as high = fp16(x s) and
// low = fp16(x s - high), s a power of two for the whole tensor; their sum is one last place of float
// off at most, 2^-23 of x. The result is high high + high low + low high; what is left out, low low,
// is 2^-22 of a product at most and 2^-27 as a rule. Tensor Cores cut off what does not fit into
// their sum, always towards zero, so that a long sum would drift: here 96 products are summed by
// them, and such sums are added in float, rounded.
// After H. Ootomo and R. Yokota, "Recovering single precision accuracy from Tensor Cores while
// surpassing the FP32 theoretical peak performance", 2022.
//
// An implicit matrix product: VOXELS of the target as M, OUTPUTS of its channels as N, taps x
// channels as depth. A block goes through the depth by one tap and 32 channels at a time, which it
// copies into a ring in shared memory before their use: 128 bytes a voxel or output.
// Taps move fastest, so that neighbouring ones find their voxels in the L1 cache.
//
// 3^3, 256 to 256 channels, 32^3 voxels, H200: 0.86 ms, 3.0e-7 off a sum in double precision; cuDNN
// in plain float 2.7 ms, 1.5e-6.
//
// Measured 2026-11-21 (H200; bounds as in docs/gpu-engine.md): 3^3, 256 to 256 channels, 32^3, 0.86 ms,
// bound by three products of 116 GFLOP, 53 % of it.

#include "copies.cuh"
#include "matrix.cuh"

#include <cuda_fp16.h>

struct ConvolveSplitFp16 {
    const __half* source;
    const __half* weight;
    float* target;
    Index source_patch, target_patch;  // voxels x channels from one patch to the next
    int source_extents[3], source_channels;
    int target_extents[3], target_channels;
    int kernel[3], stride[3], before[3];
    int patches;
    float scale;                       // takes the powers of two away again
};

#ifdef ELEMENT_FLOAT

constexpr int DEPTH = 32;       // channels of a piece
constexpr int VECTORS = 8;      // of 16 bytes in them: high and low parts of 8 channels in turn
constexpr int STEPS = DEPTH / 16;
constexpr int STAGES = 3;       // of the ring
constexpr int WARP_VOXELS = 64, WARP_OUTPUTS = 32;
constexpr int AXIS_BITS = 10;   // of a mask: the taps of an axis that are inside the source

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
    return __cvta_generic_to_shared(pointer);
}

// Bytes from a piece's first row to a vector, which is shifted so that 8 rows lie in different banks.
__device__ __forceinline__ unsigned place(int row, int vector) {
    return (row * VECTORS + (vector ^ (row % VECTORS))) * 16;
}

// Position in the depth of the product; taps move fastest.
struct Piece {
    int d, h, w, tap, channel;

    __device__ __forceinline__ void advance(const int (&kernel)[3]) {
        ++tap;
        if (++w < kernel[2]) return;
        w = 0;
        if (++h < kernel[1]) return;
        h = 0;
        if (++d < kernel[0]) return;
        d = tap = 0;
        channel += DEPTH;
    }
};

__device__ __forceinline__ Index voxels_of_patch(const ConvolveSplitFp16& p) {
    return (Index)p.target_extents[0] * p.target_extents[1] * p.target_extents[2];
}

// Sources of the rows that a thread copies, every ROW_STEP-th from voxel `first` on, and which taps of
// each are inside the source: bit axis * AXIS_BITS + tap.
template <bool HAS_BORDER, int ROW_STEP, int ROWS>
__device__ __forceinline__ void find_sources(
    const ConvolveSplitFp16& p, Index first, int vector, const __half* (&source)[ROWS],
    unsigned (&inside)[ROWS]
) {
    const Index patch_voxels = voxels_of_patch(p), voxels = patch_voxels * p.patches;
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const Index voxel = min(first + i * ROW_STEP, voxels - 1);
        const int patch = voxel / patch_voxels;
        int left = voxel - patch * patch_voxels;
        int at[3];
        at[2] = left % p.target_extents[2];
        left /= p.target_extents[2];
        at[1] = left % p.target_extents[1];
        at[0] = left / p.target_extents[1];
        inside[i] = 0;
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) {
            at[axis] = at[axis] * p.stride[axis] - p.before[axis];
            if constexpr (HAS_BORDER) {
                for (int tap = 0; tap < p.kernel[axis]; ++tap) {
                    const int position = at[axis] + tap;
                    const bool is_inside = position >= 0 && position < p.source_extents[axis];
                    inside[i] |= (unsigned)is_inside << (axis * AXIS_BITS + tap);
                }
            }
        }
        const Index offset = ((Index)at[0] * p.source_extents[1] + at[1]) * p.source_extents[2] + at[2];
        source[i] = p.source + 2 * (patch * p.source_patch + offset * p.source_channels) + vector * 8;
    }
}

// Adds the products with the weights of a pair of groups of 8 outputs; small ones first.
template <int TILES, int GROUPS>
__device__ __forceinline__ void add_products(
    float (&sums)[TILES][GROUPS][4], int group, const uint4 (&high)[TILES], const uint4 (&low)[TILES],
    uint4 weight_high, uint4 weight_low
) {
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
        multiply_add(sums[tile][group], low[tile], weight_high.x, weight_high.y);
        multiply_add(sums[tile][group + 1], low[tile], weight_high.z, weight_high.w);
    }
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
        multiply_add(sums[tile][group], high[tile], weight_low.x, weight_low.y);
        multiply_add(sums[tile][group + 1], high[tile], weight_low.z, weight_low.w);
    }
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
        multiply_add(sums[tile][group], high[tile], weight_high.x, weight_high.y);
        multiply_add(sums[tile][group + 1], high[tile], weight_high.z, weight_high.w);
    }
}

// Writes a warp's sums of the voxels and outputs from the first ones on.
template <int TILES, int GROUPS>
__device__ __forceinline__ void write(
    const ConvolveSplitFp16& p, Index first_voxel, int first_output,
    const float (&sums)[TILES][GROUPS][4]
) {
    const Index patch_voxels = voxels_of_patch(p), voxels = patch_voxels * p.patches;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const Index voxel = first_voxel + tile * 16 + half * 8 + lane / 4;
            if (voxel >= voxels) continue;
            const Index patch = voxel / patch_voxels;
            float* target = p.target + patch * p.target_patch +
                            (voxel - patch * patch_voxels) * p.target_channels;
#pragma unroll
            for (int group = 0; group < GROUPS; ++group) {
                const int output = first_output + group * 8 + lane % 4 * 2;
                if (output >= p.target_channels) continue;
                const float* own = sums[tile][group] + 2 * half;
                *reinterpret_cast<float2*>(target + output) =
                    make_float2(own[0] * p.scale, own[1] * p.scale);
            }
        }
    }
}

template <bool HAS_BORDER, int VOXELS, int OUTPUTS>
__device__ __forceinline__ void convolve(const ConvolveSplitFp16& p) {
    constexpr int WARPS_ACROSS = OUTPUTS / WARP_OUTPUTS;
    constexpr int THREADS = VOXELS / WARP_VOXELS * WARPS_ACROSS * 32;
    constexpr int ROW_STEP = THREADS / VECTORS;
    constexpr int SOURCE_ROWS = VOXELS / ROW_STEP, WEIGHT_ROWS = OUTPUTS / ROW_STEP;
    constexpr int STAGE = (VOXELS + OUTPUTS) * VECTORS * 16;
    constexpr int TILES = WARP_VOXELS / 16, PAIRS = WARP_OUTPUTS / 16;
    static_assert(ROW_STEP % VECTORS == 0, "the rows of a thread are shifted alike");
    extern __shared__ uint4 ring[];  // [STAGES][VOXELS + OUTPUTS][VECTORS]

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Index first_voxel = (Index)blockIdx.x * VOXELS;
    const int first_output = blockIdx.y * OUTPUTS;
    const int taps = p.kernel[0] * p.kernel[1] * p.kernel[2];
    const unsigned ring_start = shared_address(ring);

    // What this thread copies: one vector of every ROW_STEP-th row. Rows past the last voxel or
    // output repeat it; nobody stores their sums.
    const __half* source[SOURCE_ROWS];
    unsigned inside[SOURCE_ROWS];
    const int row = threadIdx.x / VECTORS, vector = threadIdx.x % VECTORS;
    find_sources<HAS_BORDER, ROW_STEP>(p, first_voxel + row, vector, source, inside);
    const __half* weight[WEIGHT_ROWS];
#pragma unroll
    for (int i = 0; i < WEIGHT_ROWS; ++i) {
        const int output = min(first_output + row + i * ROW_STEP, p.target_channels - 1);
        weight[i] = p.weight + 2 * (Index)output * taps * p.source_channels + vector * 8;
    }
    const unsigned copied_to = ring_start + place(row, vector);

    Piece next{};
    auto copy_piece = [&](unsigned stage) {
        if (next.channel < p.source_channels) {
            const unsigned target = copied_to + stage;
            const int shift = (next.d * p.source_extents[1] + next.h) * p.source_extents[2] + next.w;
            const int offset = 2 * (shift * p.source_channels + next.channel);
#pragma unroll
            for (int i = 0; i < SOURCE_ROWS; ++i) {
                const bool is_inside = !HAS_BORDER || (inside[i] >> next.d &
                                                       inside[i] >> (AXIS_BITS + next.h) &
                                                       inside[i] >> (2 * AXIS_BITS + next.w) & 1);
                const __half* from = source[i] + offset;
                if (HAS_BORDER && !is_inside) from = p.source;
                begin_cached_copy(target + i * ROW_STEP * VECTORS * 16, from, is_inside);
            }
            const int weight_offset = 2 * (next.tap * p.source_channels + next.channel);
#pragma unroll
            for (int i = 0; i < WEIGHT_ROWS; ++i) {
                begin_cached_copy(target + (VOXELS + i * ROW_STEP) * VECTORS * 16, weight[i] + weight_offset, true);
            }
            next.advance(p.kernel);
        }
        end_group();
    };

    // Where this lane's rows of the operands lie within a stage, by step; low parts one vector on.
    const int warp_voxel = warp / WARPS_ACROSS * WARP_VOXELS;
    const int warp_output = warp % WARPS_ACROSS * WARP_OUTPUTS;
    const int source_row = warp_voxel + lane % 16, source_half = lane / 16;
    const int weight_row = VOXELS + warp_output + lane % 8 + lane / 16 * 8, weight_half = lane / 8 % 2;
    unsigned source_at[STEPS][2], weight_at[STEPS][2];
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            source_at[step][half] =
                ring_start + place(source_row, (2 * step + source_half) * 2 + half);
            weight_at[step][half] =
                ring_start + place(weight_row, (2 * step + weight_half) * 2 + half);
        }

#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) copy_piece(stage * STAGE);
    float sums[TILES][2 * PAIRS][4] = {};
    const int pieces = taps * (p.source_channels / DEPTH);
    unsigned filled = (STAGES - 1) * STAGE, used = 0;
    for (int piece = 0; piece < pieces; ++piece) {
        wait_for_all_groups_but<STAGES - 2>();
        __syncthreads();
        float part[TILES][2 * PAIRS][4] = {};
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            uint4 high[TILES], low[TILES];
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                const unsigned shift = used + tile * 16 * VECTORS * 16;
                high[tile] = load_matrices(source_at[step][0] + shift);
                low[tile] = load_matrices(source_at[step][1] + shift);
            }
            if (step == 0) copy_piece(filled);
#pragma unroll
            for (int pair = 0; pair < PAIRS; ++pair) {
                const unsigned shift = used + pair * 16 * VECTORS * 16;
                add_products(
                    part, 2 * pair, high, low, load_matrices(weight_at[step][0] + shift),
                    load_matrices(weight_at[step][1] + shift)
                );
            }
        }
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int group = 0; group < 2 * PAIRS; ++group)
#pragma unroll
                for (int i = 0; i < 4; ++i) sums[tile][group][i] += part[tile][group][i];
        filled = filled < (STAGES - 1) * STAGE ? filled + STAGE : 0;
        used = used < (STAGES - 1) * STAGE ? used + STAGE : 0;
    }

    write(p, first_voxel + warp_voxel, first_output + warp_output, sums);
}

template <bool HAS_BORDER, int VOXELS, int OUTPUTS>
__global__ void __launch_bounds__(VOXELS * OUTPUTS / 64, 2)
    convolve_split_fp16(ConvolveSplitFp16 p) {
    convolve<HAS_BORDER, VOXELS, OUTPUTS>(p);
}

#endif
