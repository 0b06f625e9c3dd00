// The last layer: a convolution to few output channels, on Tensor Cores.
//
// source, padded -> convolution -> activation -> translated patches float [N, K, D, H, W];
// stride 1, kernel at most 7 wide, source channels a multiple of 32. Reads the source, most of it from
// the cache, and writes 4 K bytes a voxel; nothing is stored in memory between.
//
// The matrix product has the 8 kernel columns of two kernel rows as M, 8 voxels of an input row as
// N, and 32 channels of one kernel plane as its depth. An operand loaded for an input row serves
// the 7 output rows that read it, whose sums stay in registers and move on by one with every row;
// the 8 columns are summed, each shifted by its tap, when a row is complete. A warp owns some
// columns of one output plane. A lane loads 8 neighbouring channels of a voxel, which are its
// operands as they are; the weights are stored in that order.
//
// 7^3, 32 to 1 channels, 128^3 voxels, fp16, H200: 0.207 ms; 64 channels 0.420 ms. cuDNN's best plan
// to taps and their sum take 0.36 and 0.51 ms.
//
// Measured 2026-11-21 (H200, fp16; bounds as in docs/gpu-engine.md): 7^3, 32 to 1 channels, 128^3,
// 0.207 ms, bound by 46 GFLOP, 29 % of it.

#include "blocks.cuh"
#include "matrix.cuh"
#include "pipeline.cuh"
#include "view.cuh"

struct ConvolveToPatches {
    const Element* source;
    const Element* weights;  // operands
    const float* bias;       // [K], or null
    float* translated;
    int* overflow;
    Strides source_strides;
    int channels;
    int extents[3];          // of the source, as the convolution sees it
    int target_extents[3];
    int kernel[3];
    int origin[3];
    int border, shuffled;
    int rows;                // of the target, a block
    int outputs;             // K
    Activation activation;
#ifdef IN_BLOCKS
    Blocks blocks;
#endif
};

#ifndef ELEMENT_FLOAT

constexpr int PLANES = 4, WARPS_ACROSS = 3, TILES = 3;   // of a block, a plane, a warp
constexpr int ROWS = 7, PAIRS = 4, CHUNK = 32;
constexpr int COLUMNS = 64;                       // of the target, a block
constexpr int PITCH = WARPS_ACROSS * TILES * 8 + 4;      // keeps the columns' sums in different banks
constexpr int THREADS = PLANES * WARPS_ACROSS * 32;

constexpr int NOTHING = -2147483647 - 1;  // in place of an offset: a plane or row of zeros

// What a warp loads at once: its columns in one input row, 32 channels.
struct Operand {
    uint4 voxels[TILES];
};

// Offset in the source of a position along an axis; past a border it may be NOTHING.
template <int AXIS, bool MAY_BE_ZERO = true>
__device__ __forceinline__ int offset_of(const ConvolveToPatches& p, int position) {
    const int place = continued(position + p.origin[AXIS], p.extents[AXIS], p.border);
    const Index offset = p.shuffled ? offset_in_cells<AXIS>(p.source_strides, p.channels, {place})
                                    : offset_along<AXIS>(p.source_strides, {place});
    return MAY_BE_ZERO && place < 0 ? NOTHING : (int)offset;
}

// Sums of the rows of the target that a warp's row of the source adds to.
struct Products {
    float total[PAIRS][TILES][4] = {};  // of kernel rows 2 i and 2 i + 1, two columns each

    // weights: of an operand, at this lane.
    __device__ __forceinline__ void add(const uint4* weights, const Operand& operand) {
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) {
            const uint4 first = weights[pair * 64], second = weights[pair * 64 + 32];
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                const uint4& b = operand.voxels[tile];
                multiply_add(total[pair][tile], first, b.x, b.y);
                multiply_add(total[pair][tile], second, b.z, b.w);
            }
        }
    }

    // Moves all sums on by a row.
    __device__ __forceinline__ void advance() {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
#pragma unroll
                for (int pair = PAIRS - 1; pair >= 0; --pair) {
                    total[pair][tile][2 + i] = total[pair][tile][i];
                    total[pair][tile][i] = pair ? total[pair - 1][tile][2 + i] : 0.0f;
                }
            }
    }
};

template <bool HAS_ZEROS>
__device__ __forceinline__ void convolve(const ConvolveToPatches& p) {
    extern __shared__ char shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int plane = warp / WARPS_ACROSS, span = warp % WARPS_ACROSS;
    const int chunks = p.channels / CHUNK, each = p.kernel[0] * chunks;
    const int operands = each * PAIRS * 2 * 32;
    uint4* weights = reinterpret_cast<uint4*>(shared);
    float* sums = reinterpret_cast<float*>(weights + operands);  // [2][PLANES][8][PITCH]
    // Offsets of each operand of a row, and of the first two of the next: [PLANES][each + 2].
    int* offsets = reinterpret_cast<int*>(sums + 2 * PLANES * 8 * PITCH) + plane * (each + 2);

    const int output = blockIdx.z % p.outputs, patch = blockIdx.z / p.outputs;
    const int blocks_w = (p.target_extents[2] + COLUMNS - 1) / COLUMNS;
    const int first_w = blockIdx.x % blocks_w * COLUMNS;
    const int first_h = blockIdx.x / blocks_w * p.rows;
    const Start start = start_of(p, patch);
    const Inside of_patch = inside_of(p, p.target_extents, patch);
    const int (&inside)[3] = of_patch.extents;
    const int last_h = min(first_h + p.rows, inside[1]);
    const int d = blockIdx.y * PLANES + plane;

    // [K][planes][channels / 32][4][2][32 lanes], 8 numbers each.
    const uint4* from = reinterpret_cast<const uint4*>(p.weights) + (Index)output * operands;
    for (int i = threadIdx.x; i < operands; i += THREADS) weights[i] = from[i];
    for (int index = threadIdx.x % (WARPS_ACROSS * 32); index < each + 2; index += WARPS_ACROSS * 32) {
        const int i = index % each / chunks, chunk = index % each - i * chunks;
        const int of_plane = offset_of<0>(p, d + i);
        offsets[index] = of_plane == NOTHING ? NOTHING : of_plane + chunk * CHUNK;
    }
    __syncthreads();
    if (d >= inside[0]) return;  // the warps of a plane wait for no others from here on

    // Where this lane's voxels lie within an input row. Columns past the last that an output sees
    // may hold anything.
    int places[TILES];
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
        const int column = min(first_w + (span * TILES + tile) * 8 + g,
                               p.target_extents[2] + p.kernel[2] - 2);
        places[tile] = offset_of<2>(p, column);
    }
    const Element* source = p.source + patch * p.source_strides.patch + t * 8;
    auto row_offset = [&](int row) {
        return offset_of<1, HAS_ZEROS>(p, min(row, p.target_extents[1] + p.kernel[1] - 2));
    };
    auto read = [&](int of_row, int index, Operand& operand) {
        const int of_plane = offsets[index];
        const bool inside = !HAS_ZEROS || (of_row != NOTHING && of_plane != NOTHING);
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            uint4 voxel = make_uint4(0, 0, 0, 0);
            if (inside && !(HAS_ZEROS && places[tile] == NOTHING)) {
                voxel = *reinterpret_cast<const uint4*>(source + (of_row + of_plane + places[tile]));
            }
            operand.voxels[tile] = voxel;
        }
    };

    Products products;
    auto multiply = [&](int index, const Operand& operand) {
        products.add(weights + index * PAIRS * 2 * 32 + lane, operand);
    };

    bool finite = true;
    Operand even, odd;
    int here = row_offset(first_h), next = row_offset(first_h + 1);
    read(here, 0, even);
    read(each > 1 ? here : next, 1, odd);
    for (int row = first_h; row < last_h + ROWS - 1; ++row) {
        // While one operand is multiplied, the other is in flight.
        int index = 0;
        for (; index + 1 < each; index += 2) {
            multiply(index, even);
            read(index + 2 < each ? here : next, index + 2, even);
            multiply(index + 1, odd);
            read(index + 3 < each ? here : next, index + 3, odd);
        }
        here = next;
        next = row_offset(row + 2);
        if (index < each) {
            multiply(index, even);
            even = odd;
            read(each > 1 ? here : next, 1, odd);
        }
        const int done = row - (ROWS - 1);  // the output row that has seen all its input rows
        if (done >= first_h) {
            float* plane_sums = sums + ((done & 1) * PLANES + plane) * 8 * PITCH;
            float* own = plane_sums + g * PITCH + span * TILES * 8 + 2 * t;
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                *reinterpret_cast<float2*>(own + tile * 8) =
                    make_float2(products.total[PAIRS - 1][tile][0], products.total[PAIRS - 1][tile][1]);
            }
            wait_for_group<WARPS_ACROSS * 32>(plane);
            const float bias = p.bias ? p.bias[output] : 0.0f;
            for (int column = threadIdx.x % (WARPS_ACROSS * 32); column < COLUMNS; column += WARPS_ACROSS * 32) {
                if (first_w + column >= inside[2]) break;
                float value = bias;
#pragma unroll
                for (int j = 0; j < 8; ++j) value += plane_sums[j * PITCH + column + j];
                value = p.activation(value);
                finite = finite && is_finite(value);
                p.translated[translated_at(p, start, patch, output, d, done, first_w + column)] = value;
            }
        }
        products.advance();
    }
    if (!finite) *p.overflow = 1;
}

template <bool HAS_ZEROS>
__global__ void __launch_bounds__(THREADS, 1) convolve_to_patches(ConvolveToPatches p) {
    convolve<HAS_ZEROS>(p);
}

#endif
