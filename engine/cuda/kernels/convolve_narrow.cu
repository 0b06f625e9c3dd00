// Convolutions to few channels, of stride 1 and any dilation, on Tensor Cores; with bias and activation.
//
// source [N, D, H, W, C] in vectors of 8 channels, each of any tensor -> target [N, D, H, W, K], K 8 or 16,
// or some of its channels, or float [N, K, D, H, W], K up to 16. The matrix product has 16 voxels of a row
// as M, the outputs as N, and 16 channels at one tap as its depth.
//
// A block computes PLANES planes of WARPS rows, a row a warp. Planes and rows are as far apart as the taps
// along D and H, so those that it reads are as many at any dilation; columns lie side by side. In each step
// it copies what it reads of 16 channels to shared memory, and its weights; an operand that a warp loads
// counts for all taps along D. While a block waits for its copies, another on the multiprocessor computes.
//
// Bound by latency: a block has one step in shared memory, and waits for its copies.
//
// Measured 2026-11-29 (H200, fp16; bounds as in docs/gpu-engine.md): 3^3, 32 to 8 channels, 128^3, 179 us,
// bound by 168 MB, 22 % of it.
// Alternative (2026-11-29): by cuDNN the layer's network takes 595 us, with this kernel 336. Operands that
// each warp loads from global memory took up to 2.3 times as long. Next: copies for the next step while this
// one is computed.

#include "copies.cuh"
#include "matrix.cuh"

struct ConvolveNarrow {
    const Element* vectors[16];  // of 8 channels each: the first voxel's
    int strides[16];             // elements from a voxel to the next
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
    Activation activation;
};

#ifndef ELEMENT_FLOAT

constexpr int WARPS = 8;        // and rows of a block
constexpr int THREADS = 32 * WARPS;
constexpr int PLANES = 4;       // of a block
constexpr int HIGHEST = 3;      // rows of a kernel, at most
constexpr int ROWS = WARPS + HIGHEST - 1;  // that a block reads
constexpr int DEPTH = 16;       // channels of a step

// A warp's voxels: those of plane i are in plane d + i * apart.
struct Position {
    int patch, d, apart, h, high, w;
};

// Begins to copy the voxels that a block reads of two vectors: [2][READ][ROWS][span].
template <int READ>
__device__ __forceinline__ void begin_operands(
    const ConvolveNarrow& p, const Position& at, int first_h, int step, unsigned operands
) {
    const int depth = p.source_extents[0], height = p.source_extents[1], width = p.source_extents[2];
    const Element* const low = p.vectors[2 * step];
    const bool has_high = 2 * step + 1 < p.count;
    const Element* const high = has_high ? p.vectors[2 * step + 1] : low;
    const int low_stride = p.strides[2 * step];
    const int high_stride = has_high ? p.strides[2 * step + 1] : low_stride;
    const unsigned bytes = READ * ROWS * p.span * 16;  // of a vector
    int line = threadIdx.x / p.span, column = threadIdx.x % p.span;
    const int more_lines = THREADS / p.span, more_columns = THREADS % p.span;
    for (unsigned i = threadIdx.x; line < READ * ROWS; i += THREADS) {
        const int d = at.d - p.before[0] + line / ROWS * at.apart;
        const int h = first_h - p.before[1] + line % ROWS * at.high;
        const int w = at.w - p.before[2] + column;
        const bool is_inside = d >= 0 && d < depth && h >= 0 && h < height && w >= 0 && w < width;
        const Index voxel = is_inside ? (((Index)at.patch * depth + d) * height + h) * width + w : 0;
        begin_copy(operands + 16 * i, low + voxel * low_stride, is_inside);
        begin_copy(operands + bytes + 16 * i, high + voxel * high_stride, is_inside && has_high);
        line += more_lines, column += more_columns;
        if (column >= p.span) column -= p.span, ++line;
    }
}

// Adds the products of a step to the sums of a warp.
template <int GROUPS, int DEEP, int TILES>
__device__ __forceinline__ void sum_taps(
    const ConvolveNarrow& p, unsigned operands, const uint2* weights,
    float (&sums)[PLANES][TILES][GROUPS][4]
) {
    constexpr int READ = PLANES + DEEP - 1;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // This lane names row lane % 8 of a matrix: of the first or last 8 voxels, of the first or last vector.
    const int own = lane / 16 * READ * ROWS * p.span + lane / 8 % 2 * 8 + lane % 8;
    for (int i = 0; i < p.kernel[1]; ++i) {
        for (int j = 0; j < p.kernel[2]; ++j) {
            uint2 b[DEEP][GROUPS];
#pragma unroll
            for (int k = 0; k < DEEP; ++k)
#pragma unroll
                for (int group = 0; group < GROUPS; ++group) {
                    const int tap = i * p.kernel[2] + j;
                    b[k][group] = weights[((tap * DEEP + k) * GROUPS + group) * 32 + lane];
                }
            const int first = own + (warp + i) * p.span + j * p.dilation[2];
#pragma unroll
            for (int read = 0; read < READ; ++read)
#pragma unroll
                for (int tile = 0; tile < TILES; ++tile) {
                    const int voxel = first + read * ROWS * p.span + 16 * tile;
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
}

// Not inlined: with all curves at each of its sums, a kernel would not fit into the instruction cache.
__device__ __noinline__ float curved(Activation activation, float value) {
    return activation(value);
}

// Writes two neighbouring outputs of a voxel; false if one that is translated is not finite.
__device__ __forceinline__ bool write(
    const ConvolveNarrow& p, const Position& at, int d, int w, int output, const float* sums
) {
    const Index depth = p.target_extents[0], height = p.target_extents[1];
    float values[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const bool has_bias = p.bias && output + i < p.end;
        const float sum = sums[i] + (has_bias ? p.bias[output + i] : 0.0f);
        const bool is_linear = p.activation.curve == LINEAR;
        values[i] = is_linear ? p.activation.linear(sum) : curved(p.activation, sum);
    }
    const Index row = (d * height + at.h) * p.target_extents[2] + w;
    const Index patch = depth * height * p.target_extents[2];
    if (!p.target) {
        bool finite = true;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (output + i >= p.end) break;
            p.translated[((Index)at.patch * p.outputs + output + i) * patch + row] = values[i];
            finite = finite && is_finite(values[i]);
        }
        return finite;
    }
    Element* voxel = p.target + (at.patch * patch + row) * p.outputs + output;
    if (output >= p.first && output + 2 <= p.end) {
        *reinterpret_cast<unsigned*>(voxel) = pair(values[0], values[1]);
    } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (output + i >= p.first && output + i < p.end) voxel[i] = to_element(values[i]);
        }
    }
    return true;
}

template <int GROUPS, int DEEP, int TILES>
__device__ __forceinline__ void convolve(const ConvolveNarrow& p) {
    constexpr int READ = PLANES + DEEP - 1;
    extern __shared__ uint4 shared[];  // weights of a step, then its operands
    const int words = p.kernel[1] * p.kernel[2] * DEEP * 8 * GROUPS * 2;
    const unsigned begin = __cvta_generic_to_shared(shared), operands = begin + 16 * words;
    const int apart = DEEP > 1 ? p.dilation[0] : 1, high = p.kernel[1] > 1 ? p.dilation[1] : 1;
    const int warp = threadIdx.x / 32, chunk = blockIdx.z % (p.chunks * apart);
    const int first_h = (int)blockIdx.y / high * WARPS * high + (int)blockIdx.y % high;
    const Position at = {
        (int)blockIdx.z / (p.chunks * apart),
        chunk / apart * PLANES * apart + chunk % apart,
        apart,
        first_h + warp * high,
        high,
        (int)blockIdx.x * TILES * 16,
    };
    float sums[PLANES][TILES][GROUPS][4] = {};
    for (int step = 0; 2 * step < p.count; ++step) {
        const Element* weights = p.weights + (Index)step * words * 8;
        __syncthreads();
        for (int i = threadIdx.x; i < words; i += THREADS) {
            begin_copy(begin + 16 * i, weights + 8 * i, true);
        }
        begin_operands<READ>(p, at, first_h, step, operands);
        end_group();
        wait_for_all_groups_but<0>();
        __syncthreads();
        sum_taps<GROUPS, DEEP, TILES>(p, operands, reinterpret_cast<const uint2*>(shared), sums);
    }
    if (at.h >= p.target_extents[1]) return;

    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    bool finite = true;
#pragma unroll
    for (int plane = 0; plane < PLANES; ++plane) {
        const int d = at.d + plane * apart;
        if (d >= p.target_extents[0]) break;
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int w = at.w + 16 * tile + 8 * half + g;
                if (w >= p.target_extents[2]) continue;
#pragma unroll
                for (int group = 0; group < GROUPS; ++group) {
                    const float* two = sums[plane][tile][group] + 2 * half;
                    finite &= write(p, at, d, w, 8 * group + 2 * t, two);
                }
            }
    }
    if (!finite) *p.overflow = 1;
}

template <int GROUPS, int DEEP, int TILES>
__global__ void __launch_bounds__(THREADS, 2) convolve_narrow(ConvolveNarrow p) {
    convolve<GROUPS, DEEP, TILES>(p);
}

#endif
