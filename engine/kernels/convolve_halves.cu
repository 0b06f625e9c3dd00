// A float convolution as three products of fp16 halves on the matrix units.
//
// source [N, D, H, W, 2, C], weight [K, kD, kH, kW, 2, C] -> target float [N, D', H', W', K]. Each
// number x is stored as high = fp16(x s) and low = fp16(x s - high), s a power of two for the whole
// tensor: 22 bits and a sign, which is 2^-24 of x off at most, as float is. The sum is
// high high + high low + low high; what is left out, low low, is below 2^-24 of a product.
// The matrix units cut off what does not fit into their sum, always towards zero, so a sum of many
// products would drift: here a sum of 48 goes through them, and these are added in float, rounded.
// After H. Ootomo and R. Yokota, "Recovering single precision accuracy from Tensor Cores while
// surpassing the FP32 theoretical peak performance", 2022.
//
// An implicit matrix product: VOXELS of the target as M, OUTPUTS of its channels as N, taps x
// channels as depth. A block goes through the depth in pieces of one tap and 32 channels, with the
// taps innermost so that neighbouring taps find their voxels in the L1 cache, and copies pieces into
// a ring in shared memory ahead of their use. Moves 4 C bytes a voxel and tap to shared memory.

#include "element.cuh"
#include "matrix.cuh"

#include <cuda_fp16.h>

struct ConvolveHalves {
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

constexpr int DEPTH = 32;       // channels of a piece: with both halves, 128 bytes a voxel
constexpr int VECTORS = 8;      // of 16 bytes in them: four of high halves, four of low ones
constexpr int WARP_VOXELS = 64;
constexpr int AXIS_BITS = 10;   // of a mask: the taps of an axis that are inside the source

// Place of a vector: shifted by its row so that 8 rows lie in different banks.
__device__ __forceinline__ int place(int row, int vector) {
    return row * VECTORS + (vector ^ (row & (VECTORS - 1)));
}

__device__ __forceinline__ void copy(uint4* target, const __half* source, bool is_inside) {
#if __CUDA_ARCH__ >= 800
    const unsigned address = __cvta_generic_to_shared(target);
    const int bytes = is_inside ? 16 : 0;  // the rest of 16 bytes becomes zeros
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;"
                 ::"r"(address), "l"(source), "r"(bytes) : "memory");
#endif
}

__device__ __forceinline__ void end_of_piece() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int PIECES>
__device__ __forceinline__ void wait_for_all_but() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PIECES) : "memory");
#endif
}

// Four 8 x 8 matrices; lane 8 i + r names row r of matrix i.
__device__ __forceinline__ uint4 load_matrices(const uint4* row) {
    const unsigned address = __cvta_generic_to_shared(row);
    uint4 words;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "r"(address) : "memory");
    return words;
}

// The rows of one operand that a thread copies: every STEP-th from its own on, one vector of each.
template <int ROWS>
struct Rows {
    const __half* from[ROWS];  // at tap 0
    unsigned inside[ROWS];     // bit a * AXIS_BITS + t: tap t of axis a
};

// Position in the depth of the product; taps move fastest.
struct Tap {
    int d, h, w, channel;

    __device__ __forceinline__ void advance(const int (&kernel)[3]) {
        if (++w < kernel[2]) return;
        w = 0;
        if (++h < kernel[1]) return;
        h = 0;
        if (++d < kernel[0]) return;
        d = 0;
        channel += DEPTH;
    }
};

template <int VOXELS, int OUTPUTS, int WARP_OUTPUTS, int STAGES>
__device__ __forceinline__ void convolve(const ConvolveHalves& p) {
    constexpr int WARPS_ACROSS = OUTPUTS / WARP_OUTPUTS;
    constexpr int THREADS = VOXELS / WARP_VOXELS * WARPS_ACROSS * 32;
    constexpr int ROW_STEP = THREADS / VECTORS;
    constexpr int SOURCE_ROWS = VOXELS / ROW_STEP, WEIGHT_ROWS = OUTPUTS / ROW_STEP;
    constexpr int STAGE = (VOXELS + OUTPUTS) * VECTORS;
    constexpr int TILES = WARP_VOXELS / 16, PAIRS = WARP_OUTPUTS / 16;
    extern __shared__ uint4 ring[];  // [STAGES][VOXELS + OUTPUTS][VECTORS]

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Index patch_voxels =
        (Index)p.target_extents[0] * p.target_extents[1] * p.target_extents[2];
    const Index voxels = patch_voxels * p.patches, first_voxel = (Index)blockIdx.x * VOXELS;
    const int first_output = blockIdx.y * OUTPUTS;
    const int taps = p.kernel[0] * p.kernel[1] * p.kernel[2];

    const int row = threadIdx.x / VECTORS, vector = threadIdx.x % VECTORS;
    const int within = vector < 4 ? vector * 8 : p.source_channels + (vector - 4) * 8;
    Rows<SOURCE_ROWS> source;
#pragma unroll
    for (int i = 0; i < SOURCE_ROWS; ++i) {
        Index voxel = first_voxel + row + i * ROW_STEP;
        const bool exists = voxel < voxels;
        if (!exists) voxel = 0;
        const int patch = voxel / patch_voxels;
        int left = voxel - patch * patch_voxels;
        int at[3];
        at[2] = left % p.target_extents[2];
        left /= p.target_extents[2];
        at[1] = left % p.target_extents[1];
        at[0] = left / p.target_extents[1];
        unsigned inside = 0;
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) {
            at[axis] = at[axis] * p.stride[axis] - p.before[axis];
            for (int tap = 0; tap < p.kernel[axis]; ++tap) {
                const int position = at[axis] + tap;
                const bool is_inside = exists && position >= 0 && position < p.source_extents[axis];
                inside |= (unsigned)is_inside << (axis * AXIS_BITS + tap);
            }
        }
        const Index offset = ((Index)at[0] * p.source_extents[1] + at[1]) * p.source_extents[2] + at[2];
        source.from[i] = p.source + 2 * (patch * p.source_patch + offset * p.source_channels) + within;
        source.inside[i] = inside;
    }
    const __half* weights =
        p.weight + (Index)(first_output + row) * taps * 2 * p.source_channels + within;

    Tap next{0, 0, 0, 0};
    auto copy_piece = [&](int stage) {
        if (next.channel < p.source_channels) {
            uint4* target = ring + stage * STAGE;
            const int shift = (next.d * p.source_extents[1] + next.h) * p.source_extents[2] + next.w;
            const Index offset = 2 * (Index)shift * p.source_channels + next.channel;
#pragma unroll
            for (int i = 0; i < SOURCE_ROWS; ++i) {
                const unsigned mask = source.inside[i];
                const bool is_inside = mask >> next.d & mask >> (AXIS_BITS + next.h) &
                                       mask >> (2 * AXIS_BITS + next.w) & 1;
                copy(target + place(row + i * ROW_STEP, vector),
                     is_inside ? source.from[i] + offset : p.source, is_inside);
            }
            const int tap = (next.d * p.kernel[1] + next.h) * p.kernel[2] + next.w;
            const __half* from = weights + (Index)tap * 2 * p.source_channels + next.channel;
#pragma unroll
            for (int i = 0; i < WEIGHT_ROWS; ++i) {
                const bool exists = first_output + row + i * ROW_STEP < p.target_channels;
                copy(target + place(VOXELS + row + i * ROW_STEP, vector),
                     exists ? from + (Index)i * ROW_STEP * taps * 2 * p.source_channels : p.weight,
                     exists);
            }
            next.advance(p.kernel);
        }
        end_of_piece();
    };

    float sums[TILES][2 * PAIRS][4] = {};

    const int warp_voxel = warp / WARPS_ACROSS * WARP_VOXELS;
    const int warp_output = warp % WARPS_ACROSS * WARP_OUTPUTS;
    const int source_row = warp_voxel + lane % 16, source_vector = lane / 16;
    const int weight_row = VOXELS + warp_output + lane % 8 + lane / 16 * 8;
    const int weight_vector = lane / 8 % 2;
    auto multiply = [&](const uint4* piece) {
#pragma unroll
        for (int step = 0; step < DEPTH / 16; ++step) {
            uint4 high[TILES], low[TILES];
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                const int own = source_row + tile * 16, at = source_vector + 2 * step;
                high[tile] = load_matrices(piece + place(own, at));
                low[tile] = load_matrices(piece + place(own, at + 4));
            }
#pragma unroll
            for (int pair = 0; pair < PAIRS; ++pair) {
                const int own = weight_row + pair * 16, at = weight_vector + 2 * step;
                const uint4 weight_high = load_matrices(piece + place(own, at));
                const uint4 weight_low = load_matrices(piece + place(own, at + 4));
                float part[TILES][2][4] = {};
#pragma unroll
                for (int tile = 0; tile < TILES; ++tile) {
                    multiply_add(part[tile][0], low[tile], weight_high.x, weight_high.y);
                    multiply_add(part[tile][1], low[tile], weight_high.z, weight_high.w);
                }
#pragma unroll
                for (int tile = 0; tile < TILES; ++tile) {
                    multiply_add(part[tile][0], high[tile], weight_low.x, weight_low.y);
                    multiply_add(part[tile][1], high[tile], weight_low.z, weight_low.w);
                }
#pragma unroll
                for (int tile = 0; tile < TILES; ++tile) {
                    multiply_add(part[tile][0], high[tile], weight_high.x, weight_high.y);
                    multiply_add(part[tile][1], high[tile], weight_high.z, weight_high.w);
                }
#pragma unroll
                for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
                    for (int half = 0; half < 2; ++half)
#pragma unroll
                        for (int i = 0; i < 4; ++i)
                            sums[tile][2 * pair + half][i] += part[tile][half][i];
            }
        }
    };

#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) copy_piece(stage);
    const int pieces = taps * (p.source_channels / DEPTH);
    int filled = STAGES - 1, used = 0;
    for (int piece = 0; piece < pieces; ++piece) {
        wait_for_all_but<STAGES - 2>();
        __syncthreads();
        copy_piece(filled);
        multiply(ring + used * STAGE);
        filled = filled + 1 < STAGES ? filled + 1 : 0;
        used = used + 1 < STAGES ? used + 1 : 0;
    }

#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const Index voxel = first_voxel + warp_voxel + tile * 16 + half * 8 + lane / 4;
            if (voxel >= voxels) continue;
            const Index patch = voxel / patch_voxels;
            float* target = p.target + patch * p.target_patch +
                            (voxel - patch * patch_voxels) * p.target_channels;
#pragma unroll
            for (int group = 0; group < 2 * PAIRS; ++group) {
                const int output = first_output + warp_output + group * 8 + lane % 4 * 2;
                if (output >= p.target_channels) continue;
                const float* own = sums[tile][group] + 2 * half;
                *reinterpret_cast<float2*>(target + output) =
                    make_float2(own[0] * p.scale, own[1] * p.scale);
            }
        }
    }
}

#define CONVOLVE(name, voxels, outputs, warp_outputs, stages, blocks)                            \
    extern "C" __global__ void                                                                   \
    __launch_bounds__(voxels / WARP_VOXELS * (outputs / warp_outputs) * 32, blocks)              \
    name(ConvolveHalves p) {                                                                     \
        convolve<voxels, outputs, warp_outputs, stages>(p);                                      \
    }

CONVOLVE(convolve_halves_128, 128, 128, 32, 3, 1)
CONVOLVE(convolve_halves_64, 128, 64, 32, 3, 1)
CONVOLVE(convolve_halves_32, 128, 32, 32, 3, 1)
CONVOLVE(try_wide, 256, 128, 64, 3, 1)
CONVOLVE(try_two, 128, 128, 64, 3, 2)
CONVOLVE(try_four, 128, 128, 32, 4, 1)
CONVOLVE(try_sixty_four, 128, 64, 32, 3, 2)
