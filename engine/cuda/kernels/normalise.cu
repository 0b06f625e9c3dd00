// Instance normalisation of a small tensor in one launch: its statistics, then the pass that
// applies them, pads and adds a residual.
//
// source [patches, D, H, W, C] -> target [patches, D', H', W', C']. Reads the source twice, the
// second time from the cache, and moves residual and target once. All blocks are on the card at
// the same time and wait for each other between both parts; a block has a share of the voxels of
// some columns, a column being a few channels of one patch. Sums are taken of deviations from a
// voxel of the channel, so that a mean far from zero costs no digits, and in a fixed order: the
// result is the same in every run.
//
// 32^3 voxels of 128 channels, fp16, H200: 12 us; statistics and pass by themselves take 18.

#include "pass.cuh"
#include "walk.cuh"

struct Normalise {
    Pointwise pointwise;
    float2* partials;     // [patches][gridDim.x][C]: mean, sum of squared deviations
    const float* scale;   // [C] or null
    const float* shift;
    unsigned* barrier;    // 0 but for its highest bit, before and after
    int voxels;           // of a patch of the source
    int groups, columns;  // of channels; groups x patches
    float epsilon;
};

constexpr int THREADS = 512;
constexpr int WARPS = THREADS / 32;
constexpr int AT_ONCE = 4;  // loads under way in one thread

struct Column {
    int group, patch;

    __device__ __forceinline__ Column(const Normalise& p, int number) {
        patch = number / p.groups;
        group = number - patch * p.groups;
    }
};

// Voxels [first, last) that block `number` of a row of blocks measures.
struct Share {
    int first, last;

    __device__ __forceinline__ Share(int voxels, int number) {
        const int each = (voxels + gridDim.x - 1) / gridDim.x;
        first = min(number * each, voxels);
        last = min(first + each, voxels);
    }
    __device__ __forceinline__ int count() const { return last - first; }
};

// Mean and sum of squared deviations of this block's voxels, to its partials.
__device__ __forceinline__ void measure(const Normalise& p, const Column& column, float* shared) {
    const int across = blockDim.x, beside = blockDim.y;
    const int warp = (threadIdx.y * across + threadIdx.x) / 32;
    const int channels = p.pointwise.channels;
    const int channel = (column.group * across + threadIdx.x) * LANES;
    const bool active = channel < channels;
    const Share share(p.voxels, blockIdx.x);
    const Element* source =
        p.pointwise.source + column.patch * p.pointwise.source_strides.patch + channel;

    float sum[LANES] = {}, squares[LANES] = {};
    Vector shift = {};
    if (active && share.count()) {
        shift = load(source + (Index)share.first * channels);
        for (int voxel = share.first + threadIdx.y; voxel < share.last; voxel += AT_ONCE * beside) {
            Vector vectors[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const int own = voxel + i * beside;  // past the end the shift itself, which adds 0
                vectors[i] = load(source + (Index)(own < share.last ? own : share.first) * channels);
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
#pragma unroll
                for (int lane = 0; lane < LANES; ++lane) {
                    const float value =
                        to_float(vectors[i].lanes[lane]) - to_float(shift.lanes[lane]);
                    sum[lane] += value;
                    squares[lane] = fmaf(value, value, squares[lane]);
                }
        }
    }
    // Lanes of a warp with the same channels, then the warps.
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
        for (int distance = 16; distance >= across; distance /= 2) {
            sum[lane] += __shfl_xor_sync(~0u, sum[lane], distance);
            squares[lane] += __shfl_xor_sync(~0u, squares[lane], distance);
        }
    }
    const int width = across * LANES, thread = threadIdx.y * across + threadIdx.x;
    float2* joined = reinterpret_cast<float2*>(shared);  // [WARPS][width]
    float* shifts = shared + 2 * WARPS * width;          // [width]
    if (thread % 32 < across) {
        float2* own = joined + warp * width + threadIdx.x * LANES;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) own[lane] = make_float2(sum[lane], squares[lane]);
    }
    if (threadIdx.y == 0) {
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            shifts[threadIdx.x * LANES + lane] = to_float(shift.lanes[lane]);
        }
    }
    __syncthreads();
    const int own_channel = column.group * width + thread;
    if (thread >= width || own_channel >= channels) return;
    float2 total = joined[thread];
#pragma unroll
    for (int other = 1; other < WARPS; ++other) {
        const float2 one = joined[other * width + thread];
        total.x += one.x;
        total.y += one.y;
    }
    const float offset = share.count() ? total.x / share.count() : 0.0f;
    p.partials[((Index)column.patch * gridDim.x + blockIdx.x) * channels + own_channel] =
        make_float2(shifts[thread] + offset, total.y - offset * total.x);
}

// Factors and summands of a column's channels from the partials of all blocks: float [2][width].
__device__ __forceinline__ float* conclude(
    const Normalise& p, const Column& column, float* shared
) {
    const int width = blockDim.x * LANES, thread = threadIdx.y * blockDim.x + threadIdx.x;
    const int local = thread % width, part = thread / width, parts = THREADS / width;
    const int channel = column.group * width + local;
    float2* joined = reinterpret_cast<float2*>(shared + 2 * width);  // [parts][width]
    const float2* partials =
        p.partials + (Index)column.patch * gridDim.x * p.pointwise.channels + channel;
    float2 total = make_float2(0.0f, 0.0f);
    float mean = 0.0f;
    if (channel < p.pointwise.channels) {
        mean = __ldcg(partials).x;
#pragma unroll 4
        for (int block = part; block < gridDim.x; block += parts) {
            const float2 one = __ldcg(partials + (Index)block * p.pointwise.channels);
            const int count = Share(p.voxels, block).count();
            const float distance = count ? one.x - mean : 0.0f;
            total.x = fmaf(count, distance, total.x);
            total.y += fmaf(count * distance, distance, one.y);
        }
    }
    joined[thread] = total;
    __syncthreads();
    if (part == 0 && channel < p.pointwise.channels) {
#pragma unroll 8
        for (int other = 1; other < parts; ++other) {
            const float2 one = joined[other * width + local];
            total.x += one.x;
            total.y += one.y;
        }
        const float offset = total.x / p.voxels;
        float variance = total.y / p.voxels - offset * offset;
        if (variance < 0.0f) variance = 0.0f;  // what is not a number stays so
        float factor = 1.0f / sqrtf(variance + p.epsilon);
        if (p.scale) factor *= p.scale[channel];
        shared[local] = factor;
        shared[width + local] = (p.shift ? p.shift[channel] : 0.0f) - (mean + offset) * factor;
    }
    __syncthreads();
    return shared;
}

template <Form FORM>
__device__ __forceinline__ void apply(
    const Pointwise& p, const Column& column, const float* table
) {
    constexpr int AT_ONCE = 5;
    const int width = blockDim.x * LANES, local = threadIdx.x * LANES;
    const int channel = column.group * width + local;
    if (channel >= p.channels) return;
    Channels<FORM> channels(p, column.patch, channel);
    channels.scale_by(table + local, table + width + local);
    const int (&extents)[3] = p.target_extents;
    const Share share(extents[0] * extents[1] * extents[2], blockIdx.x);
    // The tensors are small: within a patch an int tells their numbers apart.
    const Strides residual = p.residual_strides;
    const int plane = residual.plane, row = residual.row;
    Element* target = p.target + column.patch * p.target_strides.patch + channel;
    Walk next(share.first + threadIdx.y, extents);
    const Walk step(blockDim.y, extents);
    for (int voxel = share.first + threadIdx.y; voxel < share.last; voxel += AT_ONCE * blockDim.y) {
        Vector from[AT_ONCE], beside[AT_ONCE];
        bool shows[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int d = continued(next.plane + p.origin[0], p.extents[0], p.border);
            const int h = continued(next.row + p.origin[1], p.extents[1], p.border);
            const int w = continued(next.column + p.origin[2], p.extents[2], p.border);
            next.advance(step, extents);
            shows[i] = voxel + i * blockDim.y < share.last && (d | h | w) >= 0;
            if (!shows[i]) continue;
            const int line = d * p.source_extents[1] + h;
            from[i] = load(channels.source + (line * p.source_extents[2] + w) * p.channels);
            if (channels.has_residual()) {
                beside[i] = load(channels.residual + d * plane + h * row + w * residual.voxel);
            }
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int own = voxel + i * blockDim.y;
            if (own >= share.last) break;
            float values[LANES];
            channels.fill(values);
            if (shows[i]) channels.express(from[i], beside[i], values);
            store(target + own * p.target_strides.voxel, vector_of(values, p.target_scale));
        }
    }
}

// Waits for all blocks of the launch. What they add together is 2^31: the highest bit turns over
// when the last of them has come, and the others are as before.
__device__ __forceinline__ void wait_for_all_blocks(unsigned* barrier) {
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        const unsigned highest = 1u << 31, others = gridDim.x * gridDim.y - 1;
        const bool is_first = blockIdx.x == 0 && blockIdx.y == 0;
        const unsigned added = is_first ? highest - others : 1;
        unsigned before, now;
        asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
                     : "=r"(before) : "l"(barrier), "r"(added) : "memory");
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(barrier) : "memory");
        } while (((now ^ before) & highest) == 0);
    }
    __syncthreads();
}

template <Form FORM>
__device__ __forceinline__ void normalise_all(const Normalise& p) {
    extern __shared__ float shared[];
    for (int number = blockIdx.y; number < p.columns; number += gridDim.y) {
        measure(p, Column(p, number), shared);
        __syncthreads();
    }
    wait_for_all_blocks(p.barrier);
    for (int number = blockIdx.y; number < p.columns; number += gridDim.y) {
        const Column column(p, number);
        apply<FORM>(p.pointwise, column, conclude(p, column, shared));
        __syncthreads();
    }
}

// Block (vectors, voxels), a power of two of vectors; grid (shares, columns at once).
extern "C" __global__ void __launch_bounds__(THREADS, 1) normalise(Normalise p) {
    normalise_all<PLAIN>(p);
}
extern "C" __global__ void __launch_bounds__(THREADS, 1) normalise_residual(Normalise p) {
    normalise_all<RESIDUAL>(p);
}
extern "C" __global__ void __launch_bounds__(THREADS, 1) normalise_general(Normalise p) {
    normalise_all<GENERAL>(p);
}
