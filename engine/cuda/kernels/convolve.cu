// Convolution and its data gradient in plain float arithmetic, for what cuDNN has no plan for.
//
// source [N, D, H, W, C], weight [K, kD, kH, kW, C / groups] -> target [N, D', H', W', K]; as gradient
// the source has K channels and the target C. An implicit matrix product of each group: voxels x
// channels of the target, summed over taps x channels of the source, in tiles of TILE_VOXELS x
// TILE_CHANNELS a block of 128 threads, 8 x 8 sums a thread. The channels of a group are whole
// vectors. Bound by arithmetic, not by bytes.
//
// Measured 2026-11-27 (H200, fp32; bounds as in docs/gpu-engine.md): 3^3, 128 to 128 channels, 32^3,
// 1.25 ms, 67 % of the bound by arithmetic.
// Alternative (2026-11-29): cuDNN's best plan in fp32 takes 0.70 ms, so this kernel runs where none is right.

#include "element.cuh"

struct Convolve {
    const Element* source;
    const Element* weight;
    Element* target;
    Index source_patch, target_patch;  // elements from one patch to the next
    int source_extents[3], source_channels;
    int target_extents[3], target_channels;
    int kernel[3], stride[3], before[3];
    int patches;
    int dilation[3];
    int inputs, outputs;               // channels of a group of the source and of the target
};

constexpr int THREADS = 128;
constexpr int DEPTH = 16;  // source channels of one step
constexpr int PITCH = 4;   // by which rows in shared memory are longer, so that they lie in other banks

struct Quad {
    float values[4];
};

__device__ __forceinline__ Quad load_quad(const Element* address) {
    Quad quad;
    struct alignas(4 * sizeof(Element)) Four {
        Element values[4];
    };
    const Four four = *reinterpret_cast<const Four*>(address);
#pragma unroll
    for (int i = 0; i < 4; ++i) quad.values[i] = to_float(four.values[i]);
    return quad;
}

// Weights of a thread for DEPTH channels of the source from `depth` on, at one tap.
template <int TILE_CHANNELS, bool GRADIENT, int COUNT>
__device__ __forceinline__ void read_weights(
    const Convolve& p, const Element* weight_of_group, int tap, int taps, int depth,
    int first_channel, Quad (&quads)[COUNT]
) {
    constexpr int QUADS = DEPTH / 4;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const int index = threadIdx.x + i * THREADS;
        quads[i] = Quad{};
        if (GRADIENT) {  // quads along the target's channels
            const int k = depth + index / (TILE_CHANNELS / 4);
            const int c = first_channel + index % (TILE_CHANNELS / 4) * 4;
            if (k < p.inputs && c < p.outputs) {
                quads[i] = load_quad(weight_of_group + ((Index)k * taps + tap) * p.outputs + c);
            }
        } else {
            const int k = first_channel + index / QUADS;
            const int c = depth + index % QUADS * 4;
            if (k < p.outputs && c < p.inputs) {
                quads[i] = load_quad(weight_of_group + ((Index)k * taps + tap) * p.inputs + c);
            }
        }
    }
}

// Address of the source voxel that a tap at `offset` reads for a voxel at `place`; null outside.
template <bool GRADIENT>
__device__ __forceinline__ const Element* source_at(
    const Convolve& p, const Element* patch, const int (&place)[3], const int (&offset)[3]
) {
    bool inside = true;
    int at[3];
    for (int axis = 0; axis < 3; ++axis) {
        int position = GRADIENT ? place[axis] - offset[axis] : place[axis] + offset[axis];
        if (GRADIENT) {
            inside = inside && position >= 0 && position % p.stride[axis] == 0;
            position /= p.stride[axis];
        }
        inside = inside && position >= 0 && position < p.source_extents[axis];
        at[axis] = position;
    }
    return inside ? patch + (((Index)at[0] * p.source_extents[1] + at[1]) * p.source_extents[2] + at[2]) *
                                p.source_channels
                  : nullptr;
}

// Stores the quads of `read_weights` by source channel, then by channel of the target.
template <bool GRADIENT, int COUNT, int WIDTH>
__device__ __forceinline__ void share_weights(const Quad (&quads)[COUNT], float (&weights)[DEPTH][WIDTH]) {
    constexpr int QUADS = DEPTH / 4;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const int index = threadIdx.x + i * THREADS;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            if (GRADIENT) {
                weights[index / ((WIDTH - PITCH) / 4)][index % ((WIDTH - PITCH) / 4) * 4 + k] =
                    quads[i].values[k];
            } else {
                weights[index % QUADS * 4 + k][index / QUADS] = quads[i].values[k];
            }
        }
    }
}

// Writes a thread's sums of 8 voxels and 8 channels of a group, from the first ones on.
__device__ __forceinline__ void write(
    const Convolve& p, Index first_voxel, int group, int first_channel, const float (&sums)[8][8]
) {
    const Index voxels =
        (Index)p.target_extents[0] * p.target_extents[1] * p.target_extents[2] * p.patches;
    const Index patch_voxels = voxels / p.patches;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const Index voxel = first_voxel + i;
        if (voxel >= voxels) continue;
        Element* target = p.target + voxel / patch_voxels * p.target_patch +
                          voxel % patch_voxels * p.target_channels + group * p.outputs;
#pragma unroll
        for (int j = 0; j < 8; j += LANES) {
            const int channel = first_channel + j;
            if (channel >= p.outputs) continue;
            Vector result;
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) result.lanes[lane] = to_element(sums[i][j + lane]);
            store(target + channel, result);
        }
    }
}

template <int TILE_VOXELS, int TILE_CHANNELS, bool GRADIENT>
__device__ __forceinline__ void convolve_tile(const Convolve& p) {
    static_assert(TILE_VOXELS / 8 * (TILE_CHANNELS / 8) == THREADS, "8 x 8 sums a thread");
    constexpr int QUADS = DEPTH / 4;
    constexpr int SOURCE_LOADS = TILE_VOXELS * QUADS / THREADS;
    constexpr int WEIGHT_LOADS = TILE_CHANNELS * QUADS / THREADS;
    __shared__ float sources[DEPTH][TILE_VOXELS + PITCH];
    __shared__ float weights[DEPTH][TILE_CHANNELS + PITCH];

    const Index voxels =
        (Index)p.target_extents[0] * p.target_extents[1] * p.target_extents[2] * p.patches;
    const int tiles = (p.outputs + TILE_CHANNELS - 1) / TILE_CHANNELS;
    const int group = blockIdx.y / tiles;
    const int first_channel = (blockIdx.y - group * tiles) * TILE_CHANNELS;  // in the group
    const int taps = p.kernel[0] * p.kernel[1] * p.kernel[2];
    const Element* weight_of_group = p.weight + (Index)group * p.inputs * taps * p.outputs;
    const int thread = threadIdx.x;

    // The source voxels of this thread's loads: their place for tap 0, before bounds.
    const Element* patch[SOURCE_LOADS];
    int place[SOURCE_LOADS][3];
#pragma unroll
    for (int i = 0; i < SOURCE_LOADS; ++i) {
        Index voxel = (Index)blockIdx.x * TILE_VOXELS + (thread + i * THREADS) / QUADS;
        const bool inside = voxel < voxels;
        if (!inside) voxel = 0;
        const int w = voxel % p.target_extents[2];
        voxel /= p.target_extents[2];
        const int h = voxel % p.target_extents[1];
        voxel /= p.target_extents[1];
        const int d = voxel % p.target_extents[0];
        patch[i] = p.source + (voxel / p.target_extents[0]) * p.source_patch + group * p.inputs;
        const int target[3] = {d, h, w};
        for (int axis = 0; axis < 3; ++axis) {
            place[i][axis] = GRADIENT ? target[axis] + p.before[axis]
                                      : target[axis] * p.stride[axis] - p.before[axis];
        }
        if (!inside) place[i][0] = -(1 << 29);
    }

    float sums[8][8];
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[i][j] = 0.0f;
    const int column = thread % (TILE_CHANNELS / 8), line = thread / (TILE_CHANNELS / 8);

    for (int tap = 0; tap < taps; ++tap) {
        const int kw = tap % p.kernel[2], kh = tap / p.kernel[2] % p.kernel[1];
        const int kd = tap / (p.kernel[2] * p.kernel[1]);
        const int offset[3] = {kd * p.dilation[0], kh * p.dilation[1], kw * p.dilation[2]};
        const Element* from[SOURCE_LOADS];
#pragma unroll
        for (int i = 0; i < SOURCE_LOADS; ++i) {
            from[i] = source_at<GRADIENT>(p, patch[i], place[i], offset);
        }
        for (int depth = 0; depth < p.inputs; depth += DEPTH) {
            Quad source_quads[SOURCE_LOADS], weight_quads[WEIGHT_LOADS];
#pragma unroll
            for (int i = 0; i < SOURCE_LOADS; ++i) {
                const int channel = depth + (thread + i * THREADS) % QUADS * 4;
                source_quads[i] = Quad{};
                if (from[i] && channel < p.inputs) {
                    source_quads[i] = load_quad(from[i] + channel);
                }
            }
            read_weights<TILE_CHANNELS, GRADIENT>(
                p, weight_of_group, tap, taps, depth, first_channel, weight_quads
            );
            __syncthreads();
#pragma unroll
            for (int i = 0; i < SOURCE_LOADS; ++i) {
                const int index = thread + i * THREADS;
#pragma unroll
                for (int k = 0; k < 4; ++k)
                    sources[index % QUADS * 4 + k][index / QUADS] = source_quads[i].values[k];
            }
            share_weights<GRADIENT>(weight_quads, weights);
            __syncthreads();
#pragma unroll
            for (int k = 0; k < DEPTH; ++k) {
                float a[8], b[8];
#pragma unroll
                for (int i = 0; i < 8; ++i) a[i] = sources[k][line * 8 + i];
#pragma unroll
                for (int j = 0; j < 8; ++j) b[j] = weights[k][column * 8 + j];
#pragma unroll
                for (int i = 0; i < 8; ++i)
#pragma unroll
                    for (int j = 0; j < 8; ++j) sums[i][j] = fmaf(a[i], b[j], sums[i][j]);
            }
        }
    }

    write(p, (Index)blockIdx.x * TILE_VOXELS + line * 8, group, first_channel + column * 8, sums);
}

template <int VOXELS, int CHANNELS, bool GRADIENT>
__global__ void __launch_bounds__(THREADS) convolve(Convolve p) {
    convolve_tile<VOXELS, CHANNELS, GRADIENT>(p);
}
