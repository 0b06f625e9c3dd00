// The last layer, of kernel 1^3, which activates its input, straight to the translated patches.
//
// source [N, D, H, W, C], all of a tensor, C up to 32 vectors -> float [N, K, D, H, W], K up to 4:
// activation(bias + sum over C of weight * activated source). Reads the source once and writes 4 K
// bytes a voxel; there is little to compute. Raises a flag if a result is not finite.
//
// Each lane has one vector of a voxel's channels, and their weights; the lanes of a voxel add up their
// sums.
//
// Measured 2026-11-26 (H200, fp16; bounds as in docs/gpu-engine.md): 32 to 1 channels, 128^3, 46 us, bound
// by 143 MB, 73 % of it.
// Alternative (2026-11-29): by cuDNN with its passes the layer's network takes 203 us, with this kernel 92.

#include "part.cuh"

struct ConvolveVoxels {
    Part part;
    const float* weights;  // [K][C]
    const float* bias;     // [K], or null
    float* translated;
    int* overflow;
    Index voxels;          // of a patch
    Activation activation;
};

constexpr int THREADS = 256;
constexpr int AT_ONCE = 4;  // voxels of a thread, so that their loads overlap

template <int OUTPUTS>
__device__ __forceinline__ void convolve(const ConvolveVoxels& p) {
    const int patch = blockIdx.y, channel = threadIdx.x * LANES;
    const bool has_channels = channel < p.part.channels;
    const Element* const source = p.part.source + patch * p.part.strides.patch + channel;

    float factor[LANES], summand[LANES], weights[OUTPUTS][LANES], bias[OUTPUTS];
#pragma unroll
    for (int output = 0; output < OUTPUTS; ++output) bias[output] = p.bias ? p.bias[output] : 0.0f;
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
        const Index entry = (Index)patch * p.part.table_stride + channel + lane;
        const bool is_scaled = has_channels && p.part.factor;
        factor[lane] = is_scaled ? p.part.factor[entry] : 1.0f;
        summand[lane] = is_scaled ? p.part.summand[entry] : 0.0f;
#pragma unroll
        for (int output = 0; output < OUTPUTS; ++output) {
            const int place = output * p.part.channels + channel + lane;
            weights[output][lane] = has_channels ? p.weights[place] : 0.0f;
        }
    }

    const Index each = (Index)blockDim.y * AT_ONCE, step = gridDim.x * each;
    const auto fetch = [&](Index first, Vector (&vectors)[AT_ONCE]) {
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const Index voxel = first + i * blockDim.y + threadIdx.y;
            vectors[i] = {};
            if (has_channels && voxel < p.voxels) {
                vectors[i] = load(source + voxel * p.part.strides.voxel);
            }
        }
    };
    bool finite = true;
    Vector ahead[AT_ONCE];
    fetch(blockIdx.x * each, ahead);
    // All lanes of a warp go on together, as they add up.
    for (Index first = blockIdx.x * each; first < p.voxels; first += step) {
        Vector vectors[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) vectors[i] = ahead[i];
        fetch(first + step, ahead);
        float sums[OUTPUTS][AT_ONCE] = {};
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                float value = fmaf(to_float(vectors[i].lanes[lane]), factor[lane], summand[lane]);
                value = value < 0.0f ? p.part.slope * value : value;
#pragma unroll
                for (int output = 0; output < OUTPUTS; ++output) {
                    sums[output][i] = fmaf(weights[output][lane], value, sums[output][i]);
                }
            }
        }
        for (int distance = 1; distance < blockDim.x; distance *= 2) {
#pragma unroll
            for (int output = 0; output < OUTPUTS; ++output) {
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i) {
                    sums[output][i] += __shfl_xor_sync(~0u, sums[output][i], distance);
                }
            }
        }
        for (int own = threadIdx.x; own < AT_ONCE; own += blockDim.x) {
            const Index voxel = first + own * blockDim.y + threadIdx.y;
            if (voxel >= p.voxels) break;
#pragma unroll
            for (int output = 0; output < OUTPUTS; ++output) {
                float sum = bias[output];
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i) sum += i == own ? sums[output][i] : 0.0f;
                const float value = p.activation(sum);
                finite = finite && is_finite(value);
                p.translated[((Index)patch * OUTPUTS + output) * p.voxels + voxel] = value;
            }
        }
    }
    if (!finite) *p.overflow = 1;
}

template <int OUTPUTS>
__global__ void __launch_bounds__(THREADS) convolve_voxels(ConvolveVoxels p) {
    convolve<OUTPUTS>(p);
}
