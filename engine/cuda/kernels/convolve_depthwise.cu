// Convolution and its data gradient of each channel by itself, in plain float arithmetic.
//
// source [N, D, H, W, C], weight [C, kD, kH, kW] -> target [N, D', H', W', C]. A thread owns LANES
// channels of ACROSS neighbouring voxels of a row, whose sums share each weight. Neighbours read
// nearly the same of the source, which comes from the cache for all taps but the first: the source
// and the target are moved once each, and large kernels are bound by loads from the L1 cache.
//
// Measured 2026-11-27 (H100, fp16; bounds as in docs/gpu-engine.md): 7^3, 64 channels, 64^3, 1.82 ms,
// 6.3 TFLOP/s, 9 % of the bound by fp32 arithmetic.
// Alternative (H200, 2026-11-29): by cuDNN the layer's network takes 6.19 ms, with this kernel 1.89.

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
};

constexpr int ACROSS = 4;

// The source's position on an axis that a tap sees from one of the target; below 0 for none.
template <bool GRADIENT>
__device__ __forceinline__ int seen(const ConvolveDepthwise& p, int axis, int place, int tap) {
    int position = tap * p.dilation[axis] - p.before[axis];
    if (GRADIENT) {
        position = place - position;
        if (position % p.stride[axis]) return -1;
        position /= p.stride[axis];
    } else {
        position += place * p.stride[axis];
    }
    return position < p.source_extents[axis] ? position : -1;
}

// Block (vectors, runs of ACROSS voxels); grid (blocks of runs, blocks of vectors).
template <bool GRADIENT>
__device__ __forceinline__ void convolve_channels(const ConvolveDepthwise& p) {
    const int channel = (blockIdx.y * blockDim.x + threadIdx.x) * LANES;
    const int runs = (p.target_extents[2] + ACROSS - 1) / ACROSS;  // of a row
    const Index run = (Index)blockIdx.x * blockDim.y + threadIdx.y;
    const Index row = run / runs, plane = row / p.target_extents[1];
    const Index patch = plane / p.target_extents[0];
    if (channel >= p.target_channels || patch >= p.patches) return;
    const int w = (run - row * runs) * ACROSS;
    const int h = row - plane * p.target_extents[1], d = plane - patch * p.target_extents[0];

    const int taps = p.kernel[0] * p.kernel[1] * p.kernel[2];
    const Element* source = p.source + patch * p.source_patch + channel;
    const Element* weight = p.weight + (Index)channel * taps;
    float sums[ACROSS][LANES] = {};
    for (int tap = 0; tap < taps; ++tap) {
        const int line = tap / p.kernel[2];
        const int z = seen<GRADIENT>(p, 0, d, line / p.kernel[1]);
        const int y = seen<GRADIENT>(p, 1, h, line % p.kernel[1]);
        if (z < 0 || y < 0) continue;
        const Element* from = source + ((Index)z * p.source_extents[1] + y) * p.source_extents[2] *
                                           p.source_channels;
        float factor[LANES];
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) factor[lane] = to_float(weight[lane * taps + tap]);
#pragma unroll
        for (int i = 0; i < ACROSS; ++i) {
            const int x = seen<GRADIENT>(p, 2, w + i, tap - line * p.kernel[2]);
            if (x < 0) continue;
            const Vector values = load(from + (Index)x * p.source_channels);
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                sums[i][lane] = fmaf(factor[lane], to_float(values.lanes[lane]), sums[i][lane]);
            }
        }
    }

    Element* target = p.target + patch * p.target_patch + channel +
                      (((Index)d * p.target_extents[1] + h) * p.target_extents[2] + w) *
                          p.target_channels;
#pragma unroll
    for (int i = 0; i < ACROSS; ++i) {
        if (w + i >= p.target_extents[2]) break;
        Vector made;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) made.lanes[lane] = to_element(sums[i][lane]);
        store(target + i * p.target_channels, made);
    }
}

template <bool GRADIENT>
__global__ void __launch_bounds__(256) convolve_depthwise(ConvolveDepthwise p) {
    convolve_channels<GRADIENT>(p);
}
