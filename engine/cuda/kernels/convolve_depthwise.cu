// Convolution and its data gradient of each channel by itself, in plain float arithmetic.
//
// source [N, D, H, W, C], weight [C, kD, kH, kW] -> target [N, D', H', W', C]. A block owns the
// channels of up to 8 threads at TILES x TILES neighbouring tiles along D and H, which share most of
// the source in the L1 cache. It converts the weights of its channels once, into shared memory.
// Bound by fp32 arithmetic, or by bytes where few taps reach a voxel.
//
// Instructions for a product in fp16 (read from the machine code for sm_90): 2.0 with a kernel of 3^3,
// 1.5 with 5^3, 1.4 with 7^3; about 4 with strides, dilation or a gradient.
//
// Measured 2026-11-30 (H200, fp16; bounds as in docs/gpu-engine.md): 4^3 of stride 2 as a gradient, 128
// channels to 64^3, 81 us, bound by 76 MB, 22 % of it.
// Not measured yet: the others. At a full issue rate of an H200, in fp16: 3^3, 32 channels, 64^3, 14 us (bound by
// 8 us of arithmetic); 3^3 of stride 2 as a gradient, 64 channels to 63^3, 13 us (bound by 8 us for its
// bytes); 7^3, 64 channels, 64^3, 0.24 ms (bound by 0.17 ms of arithmetic).

#include "element.cuh"

struct ConvolveDepthwise {
    const Element* source;
    const Element* weight;
    Element* target;
    Index source_patch, target_patch;  // elements from one patch to the next
    int source_extents[3], source_channels;
    int target_extents[3], target_channels;
    int kernel[3], stride[3], before[3];
    int patches;
    int dilation[3];
    int period[3], hop[3];  // from a tap that reaches a place to the next: taps, and source voxels
};

constexpr int TILES = 4;  // of a block, along D and along H
constexpr int APART = 4;  // voxels of a thread of `convolve_taps`
constexpr int FEW = 4;    // channels of a thread of `convolve_windows`

// Neighbouring channels of a voxel.
template <int CHANNELS>
struct alignas(CHANNELS * sizeof(Element)) Channels {
    unsigned words[CHANNELS * sizeof(Element) / 4];

    __device__ __forceinline__ float4 quad(int number) const {
        const Element* lanes = reinterpret_cast<const Element*>(words) + 4 * number;
        return make_float4(to_float(lanes[0]), to_float(lanes[1]), to_float(lanes[2]),
                           to_float(lanes[3]));
    }

    __device__ __forceinline__ void set_quad(int number, const float4& values) {
        Element* lanes = reinterpret_cast<Element*>(words) + 4 * number;
        lanes[0] = to_element(values.x);
        lanes[1] = to_element(values.y);
        lanes[2] = to_element(values.z);
        lanes[3] = to_element(values.w);
    }
};

__device__ __forceinline__ void add_products(
    float4& sums, const float4& factors, const float4& values
) {
    sums.x = fmaf(factors.x, values.x, sums.x);
    sums.y = fmaf(factors.y, values.y, sums.y);
    sums.z = fmaf(factors.z, values.z, sums.z);
    sums.w = fmaf(factors.w, values.w, sums.w);
}

// Reads the voxels at x, x + apart, ... of a row of the source; zero outside its extent.
// first: address of the one at x, inside or not. bytes: of a voxel.
template <int CHANNELS, int COUNT>
__device__ __forceinline__ void read_voxels(
    Channels<CHANNELS> (&voxels)[COUNT], const char* first, int bytes, int x, int apart, int extent
) {
    const int step = apart * bytes;
    const auto at = [&](int i) {
        return *reinterpret_cast<const Channels<CHANNELS>*>(first + (Index)i * step);
    };
    if (x >= 0 && x + (COUNT - 1) * apart < extent) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) voxels[i] = at(i);
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const bool is_inside = (unsigned)(x + i * apart) < extent;
            voxels[i] = is_inside ? at(i) : Channels<CHANNELS>{};
        }
    }
}

// Stores the first `count` of some voxels; step: elements from one to the next.
template <int QUADS, int COUNT>
__device__ __forceinline__ void store_voxels(
    Element* address, int step, const float4 (&sums)[COUNT][QUADS], int count
) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i, address += step) {
        if (i >= count) continue;
        Channels<4 * QUADS> made;
#pragma unroll
        for (int quad = 0; quad < QUADS; ++quad) made.set_quad(quad, sums[i][quad]);
        *reinterpret_cast<Channels<4 * QUADS>*>(address) = made;
    }
}

// Weights of a thread's channels, four of them at a time. In shared memory those of a thread follow
// each other in an odd number of float4, so that neighbouring threads read other banks.
template <bool STAGED>
struct Weights {
    const float4* staged;
    const Element* stored;
    int taps;

    __device__ __forceinline__ Weights(const ConvolveDepthwise& p, int channel, int quads)
        : staged(nullptr), taps(p.kernel[0] * p.kernel[1] * p.kernel[2]) {
        stored = p.weight + (Index)channel * taps;
        if (!STAGED) return;
        extern __shared__ float4 memory[];
        float4* own = memory + threadIdx.x * (taps | 1);
        staged = own;
        for (int quad = 0; quad < quads && channel < p.target_channels; ++quad) {
            const int first = threadIdx.z * blockDim.y + threadIdx.y;
            for (int tap = first; tap < taps; tap += blockDim.z * blockDim.y) {
                own[tap] = converted(quad, tap);
            }
            own += blockDim.x * (taps | 1);
        }
        __syncthreads();
    }

    __device__ __forceinline__ float4 converted(int quad, int tap) const {
        const Element* first = stored + 4 * quad * taps + tap;
        return make_float4(to_float(first[0]), to_float(first[taps]), to_float(first[2 * taps]),
                           to_float(first[3 * taps]));
    }

    __device__ __forceinline__ float4 at(int quad, int tap) const {
        return STAGED ? staged[quad * blockDim.x * (taps | 1) + tap] : converted(quad, tap);
    }
};

// A thread's tile: its first channel, its patch, and its number on each axis.
struct Tile {
    int channel, patch, d, h, w;

    // channels: of a thread. rows, columns: tiles along H and W.
    __device__ __forceinline__ Tile(
        const ConvolveDepthwise& p, int channels, int rows, int columns
    ) {
        channel = (blockIdx.y * blockDim.x + threadIdx.x) * channels;
        const unsigned high = (rows + TILES - 1) / TILES;
        const unsigned deep = (p.target_extents[0] + TILES - 1) / TILES;
        const unsigned row = blockIdx.x / columns, plane = row / high;
        patch = plane / deep;
        w = blockIdx.x - row * columns;
        h = (row - plane * high) * TILES + threadIdx.y;
        d = (plane - patch * deep) * TILES + threadIdx.z;
    }
};

// Stride and dilation 1. A thread owns FEW channels of ROWS x ACROSS voxels of a plane. It reads
// each row of the source that they need once per plane, as a window of ACROSS + TAPS - 1 vectors.
template <int TAPS, int ROWS, int ACROSS>
__device__ __forceinline__ void convolve_windows(const ConvolveDepthwise& p) {
    constexpr int WINDOW = ACROSS + TAPS - 1;
    const int height = p.target_extents[1], width = p.target_extents[2];
    const Tile tile(p, FEW, (height + ROWS - 1) / ROWS, (width + ACROSS - 1) / ACROSS);
    const int channel = tile.channel, d = tile.d, h = tile.h * ROWS, w = tile.w * ACROSS;
    const Weights<true> weights(p, channel, 1);
    if (channel >= p.target_channels || d >= p.target_extents[0] || h >= height) return;

    const int z = d - p.before[0], y = h - p.before[1], x = w - p.before[2];
    const auto extent_of = [&](int line) {  // of a row that may be above or below the source
        return (unsigned)(y + line) < p.source_extents[1] ? p.source_extents[2] : 0;
    };
    const int first = max(0, -z), last = min(p.kernel[0], p.source_extents[0] - z);
    const int lines = p.kernel[1] + ROWS - 1;
    const int voxel = p.source_channels * (int)sizeof(Element);  // bytes
    const Index row = (Index)p.source_extents[2] * voxel, plane = row * p.source_extents[1];
    const Index turn = plane - (lines - 1) * row;  // from the last line to the next plane's first
    const char* from = reinterpret_cast<const char*>(
        p.source + tile.patch * p.source_patch + channel
    ) + (z + first) * plane + y * row + (Index)x * voxel;

    float4 sums[ROWS][ACROSS][1] = {};
    const float4* factors = weights.staged + first * p.kernel[1] * TAPS;  // of the first of ROWS
    Channels<FEW> next[WINDOW];
    if (first < last) read_voxels(next, from, voxel, x, 1, extent_of(0));
    for (int k = first; k < last; ++k, factors -= (ROWS - 1) * TAPS) {
        for (int line = 0; line < lines; ++line, factors += TAPS) {
            float4 window[WINDOW];
#pragma unroll
            for (int i = 0; i < WINDOW; ++i) window[i] = next[i].quad(0);
            const bool ends_plane = line + 1 == lines;
            from += ends_plane ? turn : row;
            if (!ends_plane || k + 1 < last) {  // read while this line is multiplied
                read_voxels(next, from, voxel, x, 1, extent_of(ends_plane ? 0 : line + 1));
            }
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                if (line < i || line - i >= p.kernel[1]) continue;
#pragma unroll
                for (int tap = 0; tap < TAPS; ++tap) {
                    const float4 factor = factors[tap - i * TAPS];
#pragma unroll
                    for (int j = 0; j < ACROSS; ++j) add_products(sums[i][j][0], factor, window[j + tap]);
                }
            }
        }
    }

    const Index rows = (Index)d * height + h;
    Element* target =
        p.target + tile.patch * p.target_patch + (rows * width + w) * p.target_channels + channel;
#pragma unroll
    for (int i = 0; i < ROWS; ++i, target += (Index)width * p.target_channels) {
        if (h + i < height) store_voxels(target, p.target_channels, sums[i], width - w);
    }
}

// The first tap of an axis that reaches a place of the target, and the source's position there.
template <bool GRADIENT>
struct Reach {
    int tap, position;

    __device__ __forceinline__ Reach(const ConvolveDepthwise& p, int axis, int place) {
        const int stride = p.stride[axis];
        tap = 0;
        if (!GRADIENT) {
            position = place * stride - p.before[axis];
            return;
        }
        position = (place + p.before[axis]) / stride;
        int rest = place + p.before[axis] - position * stride;
        while (rest != 0 && tap < p.kernel[axis]) {
            ++tap;
            for (rest -= p.dilation[axis]; rest < 0; rest += stride) --position;
        }
    }
};

// Any stride and dilation. A thread owns LANES channels of a run of voxels of a row, and sums APART at
// once that the same taps reach: neighbours, or in a gradient those `stride` apart.
template <bool GRADIENT, bool STAGED>
__device__ __forceinline__ void convolve_taps(const ConvolveDepthwise& p) {
    constexpr int QUADS = LANES / 4;
    const int height = p.target_extents[1], width = p.target_extents[2];
    const int apart = GRADIENT ? p.stride[2] : 1;  // of the target
    const int run = apart * APART;
    const Tile tile(p, LANES, height, (width + run - 1) / run);
    const int channel = tile.channel, d = tile.d, h = tile.h;
    const Weights<STAGED> weights(p, channel, QUADS);
    if (channel >= p.target_channels || d >= p.target_extents[0] || h >= height) return;

    const Reach<GRADIENT> deep(p, 0, d), high(p, 1, h);
    const int next = GRADIENT ? 1 : p.stride[2];                 // voxels of the source
    const int voxel = p.source_channels * (int)sizeof(Element);  // bytes
    const Index row = (Index)p.source_extents[2] * voxel;
    const char* source =
        reinterpret_cast<const char*>(p.source + tile.patch * p.source_patch + channel);
    Element* target = p.target + tile.patch * p.target_patch + channel +
                      ((Index)d * height + h) * width * p.target_channels;
    const int end = min(width, tile.w * run + apart);
    for (int w = tile.w * run; w < end; ++w) {
        const Reach<GRADIENT> wide(p, 2, w);
        float4 sums[APART][QUADS] = {};
        for (int k = deep.tap, z = deep.position; k < p.kernel[0]; k += p.period[0], z += p.hop[0]) {
            if (z < 0 || z >= p.source_extents[0]) continue;
            for (int r = high.tap, y = high.position; r < p.kernel[1];
                 r += p.period[1], y += p.hop[1]) {
                if (y < 0 || y >= p.source_extents[1]) continue;
                const char* from = source + ((Index)z * p.source_extents[1] + y) * row;
                const int line = (k * p.kernel[1] + r) * p.kernel[2];
                for (int tap = wide.tap, x = wide.position; tap < p.kernel[2];
                     tap += p.period[2], x += p.hop[2]) {
                    Channels<LANES> voxels[APART];
                    read_voxels(voxels, from + (Index)x * voxel, voxel, x, next, p.source_extents[2]);
#pragma unroll
                    for (int quad = 0; quad < QUADS; ++quad) {
                        const float4 factors = weights.at(quad, line + tap);
#pragma unroll
                        for (int i = 0; i < APART; ++i) {
                            add_products(sums[i][quad], factors, voxels[i].quad(quad));
                        }
                    }
                }
            }
        }
        store_voxels(target + (Index)w * p.target_channels, apart * p.target_channels, sums,
                     (width - w + apart - 1) / apart);
    }
}

template <int TAPS, int ROWS, int ACROSS>
__global__ void __launch_bounds__(128, TAPS > 3 || sizeof(Element) == 4 ? 2 : 3)
convolve_depthwise_windows(ConvolveDepthwise p) {
    convolve_windows<TAPS, ROWS, ACROSS>(p);
}

template <bool GRADIENT, bool STAGED>
__global__ void __launch_bounds__(128, 4) convolve_depthwise(ConvolveDepthwise p) {
    convolve_taps<GRADIENT, STAGED>(p);
}
