// Convolutions to few channels, of stride 1 and any dilation, on Tensor Cores; with bias and activation.
//
// source [N, D, H, W, C] in vectors of 8 channels, each of any tensor -> target [N, D, H, W, K], K 8, 16
// or 24, or some of its channels, or float [N, K, D, H, W], K up to 24. The matrix product has 16 voxels of
// a row as M, the outputs as N, and 16 channels at one tap as its depth.
//
// A block computes PLANES planes of WARPS rows, a row a warp. Planes and rows are as far apart as the taps
// along D and H, so those that it reads are as many at any dilation; columns lie side by side. In each step
// it copies what it reads of 16 channels to shared memory, and its weights; an operand that a warp loads
// counts for all taps along D. While a block waits for its copies, another on the multiprocessor computes.
// A kernel of 5^3 has 4.6 times as many weights as one of 3^3: they are copied for a row of taps while the
// row before is used, so that two blocks still fit on a multiprocessor.
//
// If a map has too few blocks for the GPU, the steps are split among several of them. Each writes its sums in
// float, and add_splits adds these in order: a result does not depend on which block ends first.
//
// Bound by latency: a block has one step in shared memory, and waits for its copies.
//
// Measured 2026-11-29 (H200, fp16; bounds as in docs/gpu-engine.md): 3^3, 32 to 8 channels, 128^3, 179 us,
// bound by 168 MB, 22 % of it.
// Alternative (2026-11-29): by cuDNN the layer's network takes 595 us, with this kernel 336. Operands that
// each warp loads from global memory took up to 2.3 times as long. Next: copies for the next step while this
// one is computed.
// Measured 2026-11-30 (H200, fp16): 5^3, 32 to 8 channels, 64^3, 65 us; 3^3 to 16 channels, split: from 336
// at 16^3 14 us, from 192 at 32^3 26 us, from 64 at 32^3 15 us.
// Not measured yet: copies of whole sectors and a bias that is loaded once at 128^3, both newer than the
// figures above; 3^3, 48 to 24 channels, 64^3, estimated at 45 us if copies are hidden, else at 75 us
// (cuDNN at 250 TFLOP/s: 87 us).

#include "copies.cuh"
#include "matrix.cuh"

struct ConvolveNarrow {
    const Element* vectors[64];  // of 8 channels each: the first voxel's
    int strides[64];             // elements from a voxel to the next
    const Element* weights;      // [steps][kH][kW][kD][8 GROUPS][4][4]
    const float* bias;           // [K], or null
    Element* target;             // or null
    float* translated;           // where the target is null
    int* overflow;
    int source_extents[3], target_extents[3];
    int kernel[3], dilation[3], before[3];
    int count;                   // of vectors
    int outputs;                 // K, or channels of a voxel of the target
    int first, end;              // of the outputs that are written
    int span;                    // columns that a block reads
    int chunks;                  // of PLANES planes
    float* partials;             // [splits][voxels][8 GROUPS], or null if one block adds all steps
    int splits, steps;           // of the sum over the inputs, and of each of them
    int voxels;                  // of all patches
    Activation activation;
};

#ifndef ELEMENT_FLOAT

constexpr int WARPS = 8;        // and rows of a block
constexpr int THREADS = 32 * WARPS;
constexpr int PLANES = 4;       // of a block
constexpr int HIGHEST = 3;      // rows of a kernel, at most; as many as planes if these are more
constexpr int DEPTH = 16;       // channels of a step
constexpr int BANKS = 8;        // of shared memory, of 16 bytes each
constexpr int STAGED = 5;       // planes of a kernel from which rows of taps are copied one by one

// What a block reads, for a kernel of so many planes.
template <int DEEP>
struct Read {
    static constexpr int planes = PLANES + DEEP - 1;
    static constexpr int rows = WARPS - 1 + (DEEP > HIGHEST ? DEEP : HIGHEST);
    static constexpr int lines = planes * rows;
};

// A warp's voxels: those of plane i are in plane d + i * apart.
struct Position {
    int patch, d, apart, h, high, w;
};

// Begins to copy a step's weights of some rows of taps.
template <int GROUPS, int DEEP>
__device__ __forceinline__ void begin_weights(
    const ConvolveNarrow& p, int step, int row, int rows, unsigned target
) {
    const int words = p.kernel[2] * DEEP * 8 * GROUPS * 2;  // of a row
    const Element* const weights = p.weights + ((Index)step * p.kernel[1] + row) * words * 8;
    for (int i = threadIdx.x; i < rows * words; i += THREADS) {
        begin_copy(target + 16 * i, weights + 8 * i, true);
    }
}

// Voxels from a step's first vectors to its second ones. Four of each together go to all banks.
template <int DEEP>
__device__ __forceinline__ int to_second(const ConvolveNarrow& p) {
    const int voxels = Read<DEEP>::lines * p.span;
    return voxels + (BANKS + BANKS / 2 - voxels % BANKS) % BANKS;
}

// Begins to copy the voxels that a block reads of two vectors: [2][planes][rows][span]. Eight threads copy
// both of four voxels, as these are in the same 32 bytes, which memory reads as one.
template <int DEEP>
__device__ __forceinline__ void begin_operands(
    const ConvolveNarrow& p, const Position& at, int first_h, int step, unsigned operands
) {
    const int depth = p.source_extents[0], height = p.source_extents[1], width = p.source_extents[2];
    const int second = threadIdx.x / 4 % 2, first = threadIdx.x / 8 * 4 + threadIdx.x % 4;
    const bool is_any = 2 * step + second < p.count;
    const int number = is_any ? 2 * step + second : 2 * step, stride = p.strides[number];
    const Index patch = (Index)at.patch * depth * height * width;
    const Element* const source = p.vectors[number] + patch * stride;
    unsigned target = operands + 16 * (second * to_second<DEEP>(p) + first);
    int line = first / p.span, column = first % p.span;
    const int more_lines = THREADS / 2 / p.span, more_columns = THREADS / 2 % p.span;
    while (line < Read<DEEP>::lines) {
        const int d = at.d - p.before[0] + line / Read<DEEP>::rows * at.apart;
        const int h = first_h - p.before[1] + line % Read<DEEP>::rows * at.high;
        const int w = at.w - p.before[2] + column;
        const bool is_inside = d >= 0 && d < depth && h >= 0 && h < height && w >= 0 && w < width;
        const unsigned voxel = is_inside ? ((unsigned)d * height + h) * width + w : 0;
        begin_copy(target, source + (Index)voxel * stride, is_inside && is_any);
        target += 16 * THREADS / 2;
        line += more_lines, column += more_columns;
        if (column >= p.span) column -= p.span, ++line;
    }
}

// Adds the products of a step at a row of taps to the sums of a warp.
template <int GROUPS, int DEEP, int TILES>
__device__ __forceinline__ void sum_taps(
    const ConvolveNarrow& p, unsigned operands, int row, const uint2* weights,
    float (&sums)[PLANES][TILES][GROUPS][4]
) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // This lane names row lane % 8 of a matrix: of the first or last 8 voxels, of the first or last vector.
    const int own = lane / 16 * to_second<DEEP>(p) + lane / 8 % 2 * 8 + lane % 8;
    for (int j = 0; j < p.kernel[2]; ++j) {
        uint2 b[DEEP][GROUPS];
#pragma unroll
        for (int k = 0; k < DEEP; ++k)
#pragma unroll
            for (int group = 0; group < GROUPS; ++group) {
                b[k][group] = weights[((j * DEEP + k) * GROUPS + group) * 32 + lane];
            }
        const int first = own + (warp + row) * p.span + j * p.dilation[2];
#pragma unroll
        for (int read = 0; read < Read<DEEP>::planes; ++read)
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                const int voxel = first + read * Read<DEEP>::rows * p.span + 16 * tile;
                const uint4 a = load_matrices(operands + 16 * voxel);
#pragma unroll
                for (int k = 0; k < DEEP; ++k) {
                    if (read - k < 0 || read - k >= PLANES) continue;
#pragma unroll
                    for (int group = 0; group < GROUPS; ++group) {
                        const uint2& column = b[k][group];
                        multiply_add(sums[read - k][tile][group], a, column.x, column.y);
                    }
                }
            }
    }
}

// Not inlined: with all curves at each of its sums, a kernel would not fit into the instruction cache.
__device__ __noinline__ float curved(Activation activation, float value) {
    return activation(value);
}

__device__ __forceinline__ Index voxels_of_patch(const ConvolveNarrow& p) {
    return (Index)p.target_extents[0] * p.target_extents[1] * p.target_extents[2];
}

// The bias of two neighbouring outputs.
__device__ __forceinline__ float2 bias_of(const ConvolveNarrow& p, int output) {
    return make_float2(
        p.bias && output < p.end ? p.bias[output] : 0.0f,
        p.bias && output + 1 < p.end ? p.bias[output + 1] : 0.0f
    );
}

// Writes two neighbouring outputs of a voxel; false if one that is translated is not finite. row: the first
// voxel of its row, in the patch.
__device__ __forceinline__ bool write(
    const ConvolveNarrow& p, int number, Index row, int w, int output, const float* sums,
    const float2& bias
) {
    const bool is_linear = p.activation.curve == LINEAR;
    float values[2] = {sums[0] + bias.x, sums[1] + bias.y};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float sum = values[i];
        values[i] = is_linear ? p.activation.linear(sum) : curved(p.activation, sum);
    }
    const Index patch = voxels_of_patch(p);
    if (!p.target) {
        bool finite = true;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (output + i >= p.end) break;
            p.translated[((Index)number * p.outputs + output + i) * patch + row + w] = values[i];
            finite = finite && is_finite(values[i]);
        }
        return finite;
    }
    Element* const to = p.target + (number * patch + row) * p.outputs + (w * p.outputs + output);
    if (output >= p.first && output + 2 <= p.end) {
        *reinterpret_cast<unsigned*>(to) = pair(values[0], values[1]);
    } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (output + i >= p.first && output + i < p.end) to[i] = to_element(values[i]);
        }
    }
    return true;
}

template <int GROUPS, int DEEP, int TILES>
__device__ __forceinline__ void convolve(const ConvolveNarrow& p) {
    constexpr bool IS_STAGED = DEEP >= STAGED;
    extern __shared__ uint4 shared[];  // weights of a step or of two of its rows of taps, then its operands
    const int words = p.kernel[2] * DEEP * 8 * GROUPS * 2;  // of a row of taps
    const int kept = IS_STAGED ? min(p.kernel[1], 2) : p.kernel[1];
    const unsigned begin = __cvta_generic_to_shared(shared), operands = begin + 16 * kept * words;
    const int apart = DEEP > 1 ? p.dilation[0] : 1, high = p.kernel[1] > 1 ? p.dilation[1] : 1;
    const int split = blockIdx.z % p.splits, of_split = blockIdx.z / p.splits;
    const int warp = threadIdx.x / 32, chunk = of_split % (p.chunks * apart);
    const int first_h = (int)blockIdx.y / high * WARPS * high + (int)blockIdx.y % high;
    const Position at = {
        of_split / (p.chunks * apart),
        chunk / apart * PLANES * apart + chunk % apart,
        apart,
        first_h + warp * high,
        high,
        (int)blockIdx.x * TILES * 16,
    };
    float sums[PLANES][TILES][GROUPS][4] = {};
    const int end_step = min((split + 1) * p.steps, (p.count + 1) / 2);
    for (int step = split * p.steps; step < end_step; ++step) {
        __syncthreads();
        begin_weights<GROUPS, DEEP>(p, step, 0, IS_STAGED ? 1 : kept, begin);
        begin_operands<DEEP>(p, at, first_h, step, operands);
        end_group();
        for (int row = 0; row < p.kernel[1]; ++row) {
            if (IS_STAGED || row == 0) {
                wait_for_all_groups_but<0>();
                __syncthreads();
            }
            if (IS_STAGED && row + 1 < p.kernel[1]) {
                const int next = (row + 1) % 2 * words;
                begin_weights<GROUPS, DEEP>(p, step, row + 1, 1, begin + 16 * next);
                end_group();
            }
            const uint4* const weights = shared + (IS_STAGED ? row % 2 : row) * words;
            const uint2* const pairs = reinterpret_cast<const uint2*>(weights);
            sum_taps<GROUPS, DEEP, TILES>(p, operands, row, pairs, sums);
        }
    }
    if (at.h >= p.target_extents[1]) return;

    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float2 bias[GROUPS];
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) bias[group] = bias_of(p, 8 * group + 2 * t);
    bool finite = true;
#pragma unroll
    for (int plane = 0; plane < PLANES; ++plane) {
        const int d = at.d + plane * apart;
        if (d >= p.target_extents[0]) break;
        const Index row = ((Index)d * p.target_extents[1] + at.h) * p.target_extents[2];
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int w = at.w + 16 * tile + 8 * half + g;
                if (w >= p.target_extents[2]) continue;
#pragma unroll
                for (int group = 0; group < GROUPS; ++group) {
                    const float* two = sums[plane][tile][group] + 2 * half;
                    const int output = 8 * group + 2 * t;
                    if (p.partials) {
                        const Index before = split * (Index)p.voxels + at.patch * voxels_of_patch(p) + row;
                        float* const to = p.partials + before * 8 * GROUPS + (w * 8 * GROUPS + output);
                        *reinterpret_cast<float2*>(to) = make_float2(two[0], two[1]);
                    } else {
                        finite &= write(p, at.patch, row, w, output, two, bias[group]);
                    }
                }
            }
    }
    if (!finite) *p.overflow = 1;
}

template <int GROUPS, int DEEP, int TILES>
__global__ void __launch_bounds__(THREADS, 2) convolve_narrow(ConvolveNarrow p) {
    convolve<GROUPS, DEEP, TILES>(p);
}

// Adds the sums of all splits, in their order, two outputs a thread.
template <int GROUPS>
__global__ void __launch_bounds__(THREADS) add_splits(ConvolveNarrow p) {
    constexpr int PAIRS = 4 * GROUPS;
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= p.voxels * PAIRS) return;
    const float2* const partials = reinterpret_cast<const float2*>(p.partials) + i;
    float sums[2] = {};
#pragma unroll 8
    for (int split = 0; split < p.splits; ++split) {
        const float2 two = partials[(Index)split * p.voxels * PAIRS];
        sums[0] += two.x, sums[1] += two.y;
    }
    const int patch = voxels_of_patch(p), voxel = i / PAIRS, output = 2 * (i % PAIRS);
    const float2 bias = bias_of(p, output);
    if (!write(p, voxel / patch, 0, voxel % patch, output, sums, bias)) *p.overflow = 1;
}

#endif
