// Patches out of a volume and back into it, channels first; floats but for the volume's own voxels.
//
// The GPU has some rows of a volume: row r along its slowest axis is at r % rows of a ring
// [channels][rows][..][..]. Its axes may come in another order than the network's D, H and W, and
// run against them: a patch's voxel (a, b, c) in the volume's order lies at a * patch_steps[0] +
// b * patch_steps[1] + c * patch_steps[2] of the patch, a step against its axis being below 0.
// Threads follow the volume; a patch fits into the L2 cache, where its scattered words are gathered.
// cut: reads and writes each voxel of a patch once, and maps it to the network's intensity. blend:
// reads a translated patch and its weights once, reads and writes what they cover of the ring once.
// store_voxels: reads each float once, writes its voxel and counts what is clipped. The arithmetic is that of the host
// (Scaling in scaling.py, Blender in blending.py), operation by operation and without contraction,
// so that both give the same bits.
//
// Measured 2026-11-29 (H200; bounds as in docs/gpu-engine.md): patches of 128^3 of an int16 volume, cut in
// 15 us, 20 % of the bound by bytes, and blended in 15 us, 79 % of it; 256x256x180 voxels are stored in
// 24 us, 70 % of it, and in 34 us where half of them are clipped (one voxel a thread: 45 and 155 us).

#include "element.cuh"

enum Fill { FILL_REFLECT = 0, FILL_EDGE = 1, FILL_MINIMUM = 2 };
enum Voxel { VOXEL_FLOAT = 0, VOXEL_INT8 = 1, VOXEL_UINT8 = 2, VOXEL_INT16 = 3, VOXEL_UINT16 = 4 };

// network = (value - centre) / radius, in double where floats are stored; kept from lowest to 1 if it
// clips.
struct Scaling {
    double centre, radius, lowest;
    int clips, voxel;
};

__device__ __forceinline__ float short_at(const void* voxels, Index at, int voxel) {
    switch (voxel) {
        case VOXEL_INT8: return static_cast<const signed char*>(voxels)[at];
        case VOXEL_UINT8: return static_cast<const unsigned char*>(voxels)[at];
        case VOXEL_INT16: return static_cast<const short*>(voxels)[at];
        default: return static_cast<const unsigned short*>(voxels)[at];
    }
}

__device__ __forceinline__ void put_short(void* voxels, Index at, int voxel, float value) {
    switch (voxel) {
        case VOXEL_INT8: static_cast<signed char*>(voxels)[at] = value; return;
        case VOXEL_UINT8: static_cast<unsigned char*>(voxels)[at] = value; return;
        case VOXEL_INT16: static_cast<short*>(voxels)[at] = value; return;
        default: static_cast<unsigned short*>(voxels)[at] = value;
    }
}

__device__ __forceinline__ float intensity_at(const void* voxels, Index at, const Scaling& map) {
    if (map.voxel == VOXEL_FLOAT) {
        const double value = static_cast<const float*>(voxels)[at];
        const double network = __ddiv_rn(__dsub_rn(value, map.centre), map.radius);
        return map.clips ? fmin(fmax(network, map.lowest), 1.0) : network;
    }
    const float value = short_at(voxels, at, map.voxel), centre = map.centre, radius = map.radius;
    const float network = __fdiv_rn(__fsub_rn(value, centre), radius), lowest = map.lowest;
    return map.clips ? fminf(fmaxf(network, lowest), 1.0f) : network;
}

struct Cut {
    const void* ring;         // of voxels as they are stored
    const float* lowest;      // [channels], for FILL_MINIMUM
    float* patch;             // [channels][D][H][W]
    int extents[3];           // of the volume, as all that follows in the order of its axes
    int patch_extents[3];
    int patch_steps[3];
    int origin[3];            // of the patch in the volume; it may lie before and end behind it
    int rows, fill;
    Scaling scaling;
};

// As numpy.pad: the volume is mirrored without its outermost voxel, again and again.
__device__ __forceinline__ int within(int position, int extent, int fill) {
    if (position >= 0 && position < extent) return position;
    if (fill != FILL_REFLECT) return position < 0 ? 0 : extent - 1;
    if (extent == 1) return 0;
    const int period = 2 * (extent - 1);
    position = (position < 0 ? -position : position) % period;
    return position < extent ? position : period - position;
}

// Grid: voxels of a plane by blocks, planes, channels.
extern "C" __global__ void cut(Cut p) {
    const int height = p.patch_extents[1], width = p.patch_extents[2];
    const int voxel = blockIdx.x * blockDim.x + threadIdx.x;
    if (voxel >= height * width) return;
    const int plane = blockIdx.y, line = voxel / width, column = voxel % width;
    const int channel = blockIdx.z;
    const int at[3] = {p.origin[0] + plane, p.origin[1] + line, p.origin[2] + column};
    int from[3];
    bool outside = false;
    for (int axis = 0; axis < 3; ++axis) {
        from[axis] = within(at[axis], p.extents[axis], p.fill);
        outside = outside || at[axis] < 0 || at[axis] >= p.extents[axis];
    }
    const Index row = (Index)channel * p.rows + from[0] % p.rows;
    const Index place = (row * p.extents[1] + from[1]) * p.extents[2] + from[2];
    const Index target = (Index)plane * p.patch_steps[0] + line * p.patch_steps[1] +
                         column * p.patch_steps[2];
    p.patch[(Index)channel * p.patch_extents[0] * height * width + target] =
        outside && p.fill == FILL_MINIMUM ? p.lowest[channel]
                                         : intensity_at(p.ring, place, p.scaling);
}

struct Blend {
    const float* patch;       // [channels][D][H][W]
    const float* weights;     // of a patch's voxels, in the order of the volume's axes
    float* mean;              // ring
    float* total;             // ring of one channel
    const int* overflow;      // of the run that made the patch
    int* overflowed;          // of all runs
    int extents[3];           // of the volume, as all that follows in the order of its axes
    int patch_extents[3];
    int patch_steps[3];
    int first[3];             // voxel of the patch that lies in the volume
    int count[3];             // voxels that do
    int place[3];             // where the first of them lies
    int rows, channels;
};

// Grid: voxels of a covered plane by blocks, covered planes.
extern "C" __global__ void blend(Blend p) {
    const int voxel = blockIdx.x * blockDim.x + threadIdx.x;
    if (voxel == 0 && blockIdx.y == 0 && *p.overflow) *p.overflowed = 1;
    if (voxel >= p.count[1] * p.count[2]) return;
    const int plane = blockIdx.y, line = voxel / p.count[2], column = voxel % p.count[2];
    const Index patch_plane = (Index)p.patch_extents[1] * p.patch_extents[2];
    const int at[3] = {p.first[0] + plane, p.first[1] + line, p.first[2] + column};
    const Index source = (Index)at[0] * p.patch_steps[0] + at[1] * p.patch_steps[1] +
                         at[2] * p.patch_steps[2];
    const Index volume_plane = (Index)p.extents[1] * p.extents[2];
    const Index target = (Index)((p.place[0] + plane) % p.rows) * volume_plane +
                         (Index)(p.place[1] + line) * p.extents[2] + p.place[2] + column;
    const float weight = p.weights[at[0] * patch_plane + at[1] * p.patch_extents[2] + at[2]];
    const float total = __fadd_rn(p.total[target], weight);
    const float share = __fdiv_rn(weight, total);
    p.total[target] = total;
    for (int channel = 0; channel < p.channels; ++channel) {
        const float value = p.patch[channel * p.patch_extents[0] * patch_plane + source];
        float* mean = p.mean + channel * p.rows * volume_plane + target;
        *mean = __fadd_rn(*mean, __fmul_rn(__fsub_rn(value, *mean), share));
    }
}

// Values of a volume that its voxel type could not hold; all 0 at first.
struct Clipped {
    unsigned below, above;            // how many
    float most_below, most_above;     // how far the farthest of them were from the type's ends
};

__device__ __forceinline__ void raise_to(float* most, float distance) {
    if (distance > *most)  // bits of floats above 0 have the order of the floats
        atomicMax(reinterpret_cast<unsigned*>(most), __float_as_uint(distance));
}

__device__ __forceinline__ void add_to(Clipped* all, const Clipped& some) {
    if (some.below + some.above == 0) return;
    atomicAdd(&all->below, some.below);
    atomicAdd(&all->above, some.above);
    raise_to(&all->most_below, some.most_below);
    raise_to(&all->most_above, some.most_above);
}

// The sum of all lanes, in each of them.
__device__ __forceinline__ Clipped of_warp(Clipped sum) {
    for (int distance = 16; distance > 0; distance /= 2) {
        sum.below += __shfl_xor_sync(~0u, sum.below, distance);
        sum.above += __shfl_xor_sync(~0u, sum.above, distance);
        sum.most_below = fmaxf(sum.most_below, __shfl_xor_sync(~0u, sum.most_below, distance));
        sum.most_above = fmaxf(sum.most_above, __shfl_xor_sync(~0u, sum.most_above, distance));
    }
    return sum;
}

struct StoreVoxels {
    const float* mean;
    void* stored;
    int* overflowed;          // of all runs
    Clipped* clipped;
    Index count;
    float lowest, highest;    // of the voxel type
    Scaling scaling;
};

constexpr int VOXELS_EACH = 8;  // of a thread, a block apart: so many loads are under way at once

__device__ __forceinline__ bool store_voxel(const StoreVoxels& p, Index at, float network,
                                            Clipped& clipped) {
    if (p.scaling.voxel == VOXEL_FLOAT) {
        const float value = __dadd_rn(__dmul_rn(network, p.scaling.radius), p.scaling.centre);
        static_cast<float*>(p.stored)[at] = value;
        return is_finite(value);
    }
    const float centre = p.scaling.centre, radius = p.scaling.radius;
    const float value = rintf(__fadd_rn(__fmul_rn(network, radius), centre));
    put_short(p.stored, at, p.scaling.voxel, fminf(fmaxf(value, p.lowest), p.highest));
    if (value < p.lowest) {
        ++clipped.below;
        clipped.most_below = fmaxf(clipped.most_below, __fsub_rn(p.lowest, value));
    } else if (value > p.highest) {
        ++clipped.above;
        clipped.most_above = fmaxf(clipped.most_above, __fsub_rn(value, p.highest));
    }
    return is_finite(network);  // which the integer would hide
}

// Grid: VOXELS_EACH voxels a thread by blocks. Each block counts its own clipped values first.
extern "C" __global__ void store_voxels(StoreVoxels p) {
    __shared__ Clipped clipped;
    if (threadIdx.x == 0) clipped = Clipped{0, 0, 0.0f, 0.0f};
    const Index first = (Index)blockIdx.x * blockDim.x * VOXELS_EACH + threadIdx.x;
    float network[VOXELS_EACH];
#pragma unroll
    for (int i = 0; i < VOXELS_EACH; ++i) {
        const Index at = first + i * blockDim.x;
        network[i] = at < p.count ? p.mean[at] : 0.0f;
    }
    Clipped own{0, 0, 0.0f, 0.0f};
    bool is_right = true;
#pragma unroll
    for (int i = 0; i < VOXELS_EACH; ++i) {
        const Index at = first + i * blockDim.x;
        if (at < p.count) is_right &= store_voxel(p, at, network[i], own);
    }
    if (!is_right) *p.overflowed = 1;
    if (!__syncthreads_or(own.below + own.above)) return;
    const Clipped sum = of_warp(own);
    if (threadIdx.x % 32 == 0) add_to(&clipped, sum);
    __syncthreads();
    if (threadIdx.x == 0) add_to(p.clipped, clipped);
}
