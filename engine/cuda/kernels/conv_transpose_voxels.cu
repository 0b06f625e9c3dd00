// A transposed convolution, 2^3 of stride 2, which activates its input as it reads it.
//
// source [N, voxels, C], all of a tensor, C 32, 64 or 128 -> target [N, voxels, 2, 2, 2, K], space-to-depth;
// K a multiple of 32. The 2^3 voxels of the target depend on one voxel of the source, so this is one matrix
// product, of few channels: writing 16 K bytes a voxel takes longer. No slope is above 1.
//
// A block computes 256 of the 8 K outputs and loops over the voxels, some at a time, which it activates on
// the way to shared memory. Each warp multiplies all of them with 32 outputs, whose weights stay in its
// registers; so a block writes to neighbouring addresses, which is faster. Which depth of a product is which
// channel does not matter to a sum: a lane reads 8 channels that follow each other, and writes as many, by
// the order of the weights.
//
// fp16, H200, 64^3 voxels of 64 channels to 32: 48 us, of which moving the bytes takes 40. With other voxels
// for each warp, and all of their outputs, memory was written 64 bytes here and there: 89 us.
//
// Measured 2026-11-23 (H200, fp16; bounds as in docs/gpu-engine.md): 64 to 32 channels, 64^3 voxels, 48 us,
// bound by 168 MB, 82 % of it.

#include "matrix.cuh"
#include "order.cuh"
#include "part.cuh"

struct ConvTransposeVoxels {
    Part part;
    const Element* weights;  // [8 K / 8][C / 32][32][8]
    Element* target;
    Index voxels;            // of a patch
    int outputs;             // 8 K
};

#ifndef ELEMENT_FLOAT

constexpr int WARPS = 8, THREADS = 32 * WARPS;
constexpr int AT_ONCE = 32, OUTPUTS = WARPS * AT_ONCE;  // outputs of a warp, and of a block
constexpr int COLUMNS = AT_ONCE / 8;                    // operands of 8 outputs
constexpr int TILES = 4, VOXELS = 16 * TILES;           // at a time
constexpr int DEPTH = 32;                               // channels of which a lane has 8

// What a thread brings of some voxels: vectors that follow each other in the whole block.
template <int CHUNKS>
struct Brought {
    static constexpr int PIECES = CHUNKS * DEPTH / LANES;  // vectors of a voxel
    static constexpr int EACH = VOXELS * PIECES / THREADS, BESIDE = THREADS / PIECES;

    uint4 words[EACH];

    __device__ __forceinline__ void fetch(
        const ConvTransposeVoxels& p, const Element* source, Index first
    ) {
        const int piece = threadIdx.x % PIECES, own = threadIdx.x / PIECES;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const Index voxel = first + i * BESIDE + own;
            const uint4 zeros = {0, 0, 0, 0};
            const Element* const from = source + (voxel * PIECES + piece) * LANES;
            words[i] = voxel < p.voxels ? *reinterpret_cast<const uint4*>(from) : zeros;
        }
    }

    // To [TILES][CHUNKS][2][32]: of each 16 voxels, rows g and g + 8 of lane 4 g + t.
    __device__ __forceinline__ void put(const Prologue& activated, uint4* stage) const {
        const int piece = threadIdx.x % PIECES, own = threadIdx.x / PIECES;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int voxel = i * BESIDE + own;
            const int row = (voxel / 16 * CHUNKS + piece / 4) * 2 + voxel % 16 / 8;
            stage[row * 32 + voxel % 8 * 4 + piece % 4] = activated(words[i]);
        }
    }
};

template <int CHUNKS>
__device__ __forceinline__ void convolve(const ConvTransposeVoxels& p) {
    constexpr int STAGE = TILES * CHUNKS * 2 * 32;
    extern __shared__ uint4 stages[];  // [2][STAGE]
    const int patch = blockIdx.z, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int g = lane / 4, t = lane % 4, first_output = blockIdx.y * OUTPUTS + warp * AT_ONCE;
    const Element* const source = p.part.source + patch * p.part.strides.patch;
    Element* const target = p.target + patch * p.voxels * p.outputs + first_output + t * LANES;
    const uint4* const own_weights =
        reinterpret_cast<const uint4*>(p.weights) + first_output / 8 * (CHUNKS * 32) + lane;
    const Prologue activated(p.part, patch, threadIdx.x % (CHUNKS * 4) * LANES);
    uint4 weights[COLUMNS][CHUNKS];
#pragma unroll
    for (int column = 0; column < COLUMNS; ++column)
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk)
            weights[column][chunk] = own_weights[(column * CHUNKS + chunk) * 32];

    const Index step = (Index)gridDim.x * VOXELS;
    Brought<CHUNKS> ahead;
    ahead.fetch(p, source, blockIdx.x * (Index)VOXELS);
    int turn = 0;
    for (Index first = blockIdx.x * (Index)VOXELS; first < p.voxels; first += step, turn ^= 1) {
        uint4* const stage = stages + turn * STAGE;
        ahead.put(activated, stage);
        ahead.fetch(p, source, first + step);
        // The other stage has been read by all that put this one.
        __syncthreads();
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            float sums[COLUMNS][4] = {};
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; ++chunk) {
                const uint4* const rows = stage + (tile * CHUNKS + chunk) * 2 * 32 + lane;
                const uint4 low = rows[0], high = rows[32];
#pragma unroll
                for (int column = 0; column < COLUMNS; ++column) {
                    const uint4& b = weights[column][chunk];
                    multiply_add(sums[column], make_uint4(low.x, high.x, low.y, high.y), b.x, b.y);
                    multiply_add(sums[column], make_uint4(low.z, high.z, low.w, high.w), b.z, b.w);
                }
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const Index voxel = first + tile * 16 + half * 8 + g;
                const auto two = [&](int column) {
                    return pair(sums[column][2 * half], sums[column][2 * half + 1]);
                };
                if (voxel >= p.voxels) continue;
                *reinterpret_cast<uint4*>(target + voxel * p.outputs) =
                    make_uint4(two(0), two(1), two(2), two(3));
            }
        }
    }
}

template <int CHANNELS>
__global__ void __launch_bounds__(THREADS, 2) conv_transpose_voxels(ConvTransposeVoxels p) {
    follow();
    convolve<CHANNELS / DEPTH>(p);
}

#endif
