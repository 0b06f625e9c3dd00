// The last layer of a U-Net: a transposed convolution of 4^3, stride 2 and padding 1, to few output
// channels, on Tensor Cores.
//
// One or two sources, whose channels follow each other, each activation(source * factor + summand) ->
// transposed convolution -> activation -> translated patches float [N, K, 2 D, 2 H, 2 W]. Reads the
// sources, mostly twice, the second time from the cache, and writes 32 K bytes for each voxel of them;
// nothing is stored in memory between. The channels of a source are a multiple of 32.
//
// Along each axis the target voxels 2 c - 1 and 2 c, a pair, read the source voxels c - 1 and c, and no
// others; c runs from 0 to the source's extent, which it includes. Voxels past an end are 0.
//
// The matrix product has as M the 8 voxels of a pair along each axis, for each of the two source voxels
// along W that they read; as N 8 voxels of a source row, and as depth 32 channels of it. The two summands
// of a target voxel along W are in the same lane or its neighbour. A source row contributes to two rows of
// pairs, so a warp loops along H with the sums of both in registers. It owns some columns of one plane.
//
// Measured 2026-11-26 (H200, fp16; bounds as in docs/gpu-engine.md): 64 to 1 channels, 128^3, 42.6 us,
// bound by 42 MB, 23 % of it.
// Alternative (2026-11-29): by cuDNN the layer's network takes 131 us, with this kernel 77.

#include "element.cuh"
#include "matrix.cuh"
#include "part.cuh"
#include "view.cuh"

struct ConvTransposeToPatches {
    Part parts[2];           // the second of 0 channels where there is one
    const Element* weights;  // mma operands: [K][2][channels / 32][2][2][32 lanes][8]
    const float* bias;       // [K], or null
    float* translated;
    int* overflow;
    int extents[3];          // of the source
    int rows;                // of cells, a block
    int outputs;             // K
    Activation activation;
};

#ifndef ELEMENT_FLOAT

constexpr int WARPS = 8, TILES = 3, CHUNK = 32;
constexpr int CELLS = TILES * 8 - 1;  // along W, a warp: the last column serves the cell before it

// What a warp loads at once: its columns of one source row, 32 channels.
struct Operand {
    uint4 voxels[TILES];
    bool is_inside;
};

// A part as a lane reads it, from its own channels of the patch on. columns: of the tiles, -1 outside.
struct Reader {
    const Element* source;
    int places[TILES];

    __device__ __forceinline__ Reader(
        const Part& part, int patch, int channel, const int (&columns)[TILES]
    ) : source(part.source + patch * part.strides.patch + channel) {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            places[tile] = (int)offset_along<2>(part, {columns[tile]});
        }
    }

    __device__ __forceinline__ void read(
        const Part& part, int d, int h, int channel, const int (&columns)[TILES], Operand& operand
    ) const {
        const Element* line = source + channel + offset_along<0>(part, {d, h});
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            if (columns[tile] < 0) continue;
            operand.voxels[tile] = *reinterpret_cast<const uint4*>(line + places[tile]);
        }
    }
};

__device__ __forceinline__ void load_table(
    const Part& part, int patch, float* factors, float* summands
) {
    const Index first = (Index)patch * part.table_stride;
    for (int channel = threadIdx.x; channel < part.channels; channel += blockDim.x) {
        factors[channel] = part.factor ? part.factor[first + channel] : 1.0f;
        summands[channel] = part.factor ? part.summand[first + channel] : 0.0f;
    }
}

// Of 8 channels, activation(voxel * factor + summand).
__device__ __forceinline__ uint4 activated_by_any_slope(
    const uint4& voxel, const float (&factor)[8], const float (&summand)[8], float slope
) {
    Vector vector = reinterpret_cast<const Vector&>(voxel);
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
        const float value = fmaf(to_float(vector.lanes[lane]), factor[lane], summand[lane]);
        vector.lanes[lane] = to_element(value < 0.0f ? slope * value : value);
    }
    return reinterpret_cast<const uint4&>(vector);
}

// Sums of a warp's cells: of the row that ends with a source row, and of the one that begins with it.
struct Products {
    float total[2][TILES][4] = {};

    // weights: of an operand, at this lane.
    __device__ __forceinline__ void add(const uint4* weights, const uint4 (&voxels)[TILES]) {
#pragma unroll
        for (int cells = 0; cells < 2; ++cells) {
            const uint4 low = weights[cells * 64], high = weights[cells * 64 + 32];
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                const uint4& b = voxels[tile];
                multiply_add(total[cells][tile], low, b.x, b.y);
                multiply_add(total[cells][tile], high, b.z, b.w);
            }
        }
    }

    // Moves on by a row.
    __device__ __forceinline__ void advance() {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                total[0][tile][i] = total[1][tile][i];
                total[1][tile][i] = 0.0f;
            }
    }
};

extern "C" __global__ void __launch_bounds__(WARPS * 32, 2) conv_transpose_to_patches(
    ConvTransposeToPatches p
) {
    extern __shared__ char shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int first_chunks = p.parts[0].channels / CHUNK;
    const int chunks = first_chunks + p.parts[1].channels / CHUNK, each = 2 * chunks;
    const int operands = each * 4 * 32;
    uint4* weights = reinterpret_cast<uint4*>(shared);
    float* factors = reinterpret_cast<float*>(weights + operands);  // [channels]
    float* summands = factors + chunks * CHUNK;

    const int output = blockIdx.z % p.outputs, patch = blockIdx.z / p.outputs;
    const uint4* from = reinterpret_cast<const uint4*>(p.weights) + (Index)output * operands;
    for (int i = threadIdx.x; i < operands; i += blockDim.x) weights[i] = from[i];
    const int second = p.parts[0].channels;
    load_table(p.parts[0], patch, factors, summands);
    load_table(p.parts[1], patch, factors + second, summands + second);
    __syncthreads();

    const int depth = p.extents[0], height = p.extents[1], width = p.extents[2];
    const int strips = (width + CELLS) / CELLS;  // of the width + 1 cells of a row
    const int strip = blockIdx.x * WARPS + warp;
    const int d = strip / strips, first_w = strip % strips * CELLS;
    if (d > depth) return;  // no warp waits for another from here on
    const int first_h = blockIdx.y * p.rows, last_h = min(first_h + p.rows, height + 1);

    int columns[TILES];
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
        const int column = first_w - 1 + tile * 8 + g;
        columns[tile] = column < width ? column : -1;
    }
    const Reader first_part(p.parts[0], patch, t * 8, columns);
    const Reader second_part(p.parts[1], patch, t * 8, columns);
    // Operand `index` of a row: 32 channels of the source plane d - 1, then those of d.
    auto read = [&](int row, int index, Operand& operand) {
        const bool is_upper = index >= chunks;
        const int plane = is_upper ? d : d - 1, chunk = is_upper ? index - chunks : index;
        operand.is_inside = plane >= 0 && plane < depth && row >= 0 && row < height;
        if (!operand.is_inside) return;
        if (chunk < first_chunks) {
            first_part.read(p.parts[0], plane, row, chunk * CHUNK, columns, operand);
        } else {
            const int channel = (chunk - first_chunks) * CHUNK;
            second_part.read(p.parts[1], plane, row, channel, columns, operand);
        }
    };

    Products products;
    auto multiply = [&](int index, const Operand& operand) {
        if (!operand.is_inside) return;
        const int chunk = index < chunks ? index : index - chunks, channel = chunk * CHUNK + t * 8;
        const float slope = chunk < first_chunks ? p.parts[0].slope : p.parts[1].slope;
        float factor[8], summand[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            factor[i] = factors[channel + i];
            summand[i] = summands[channel + i];
        }
        uint4 voxels[TILES];
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            voxels[tile] = make_uint4(0, 0, 0, 0);
            if (columns[tile] >= 0) {
                voxels[tile] = activated_by_any_slope(operand.voxels[tile], factor, summand, slope);
            }
        }
        products.add(weights + index * 4 * 32 + lane, voxels);
    };

    const int target_d = 2 * d - 1 + (g >> 2), over_h = (g >> 1 & 1) - 1, over_w = (g & 1) - 1;
    const bool has_plane = target_d >= 0 && target_d < 2 * depth;
    float* target = p.translated +
                    (((Index)patch * p.outputs + output) * 2 * depth + target_d) * 4 * height * width;
    const float bias = p.bias ? p.bias[output] : 0.0f;
    bool finite = true;
    auto write = [&](int row, int cell, float sum) {
        const int h = 2 * row + over_h, w = 2 * cell + over_w;
        if (!has_plane || h < 0 || h >= 2 * height || w < 0 || w >= 2 * width) return;
        const float value = p.activation(sum + bias);
        finite = finite && is_finite(value);
        target[(Index)h * 2 * width + w] = value;
    };

    const int neighbour = (lane & ~3) | ((lane + 1) & 3);
    Operand even, odd;
    read(first_h - 1, 0, even);
    for (int row = first_h - 1; row < last_h; ++row) {
        // While one operand is multiplied, the other is in flight; a row has an even number.
        for (int index = 0; index < each; index += 2) {
            read(row, index + 1, odd);
            multiply(index, even);
            const bool is_last = index + 2 == each;
            read(is_last ? row + 1 : row, is_last ? 0 : index + 2, even);
            multiply(index + 1, odd);
        }
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            float beside = __shfl_sync(~0u, products.total[0][tile][2], neighbour);
            if (tile + 1 < TILES) {
                const float next = __shfl_sync(~0u, products.total[0][tile + 1][2], neighbour);
                if (t == 3) beside = next;
            }
            const int cell = tile * 8 + 2 * t;
            if (row >= first_h) {
                write(row, first_w + cell, products.total[0][tile][0] + products.total[0][tile][3]);
                if (cell + 1 < CELLS) write(row, first_w + cell + 1, products.total[0][tile][1] + beside);
            }
        }
        products.advance();
    }
    if (!finite) *p.overflow = 1;
}

#endif
