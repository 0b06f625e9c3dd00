// Mean and variance of each patch and channel, as factor and summand of the normalisation.
//
// source [patches, D, H, W, channels] -> table float [2, patches, channels]. `measure` takes each
// channel by itself, as instance norm does, and `conclude_groups` several neighbouring ones as one, as
// group norm does. Reads the source once: voxels * channels * sizeof(Element) bytes a patch.
//
// One launch: the last block of some channels to have reduced its voxels joins the moments of all blocks,
// in a fixed order, so the result is the same in every run, whichever block it is. Sums are taken of
// deviations from a voxel of the channel, so that a mean far from zero costs no digits. Convolutions that
// compute statistics do the work of `measure` themselves, and `conclude` joins the moments of their
// blocks.
//
// Measured 2026-11-26 (H200, fp16; bounds as in docs/gpu-engine.md): 90 x 128 x 128 voxels of 128 channels,
// 101 us, bound by 377 MB, 88 % of it; 64^3 of 32 15.4 us, bound by 17 MB, 26 %.

#include "blocks.cuh"
#include "moments.cuh"
#include "walk.cuh"

struct Measure {
    const Element* source;  // first voxel of the view; of its tensor where that holds cells
    Moments* partials;      // [patches][chunks][channels]
    float* table;           // [2][patches][channels]; null where conclude_groups makes it
    const float* scale;     // [channels] or null
    const float* shift;
    unsigned* counters;     // [patches][columns of blocks], 0 before and after
    Strides strides;
    int extents[3];         // of the view, counted in cells where they are stored
    int origin[3];          // of the view, where cells are stored
    int channels;
    int cells;              // voxels of a cell: 8, or 1 where no cells are stored
    int dense;              // rows and planes follow each other without a gap
    int chunk;              // of a block, counted as the extents
    float epsilon;
#ifdef IN_BLOCKS
    Blocks blocks;          // as `extents` count; the table is null
#endif
};

constexpr int THREADS = 512;
constexpr int WARPS = THREADS / 32;
constexpr int AT_ONCE = 4;  // loads in flight in one thread

// Of a patch, the first of those voxels of the view that lie at place `own` of their cells.
__device__ __forceinline__ const Element* first_voxel(
    const Measure& p, const Element* patch, int own
) {
    if (p.cells == 1) return patch;
    return patch + ((p.origin[0] + 1 - (own >> 2)) >> 1) * p.strides.plane +
           ((p.origin[1] + 1 - (own >> 1 & 1)) >> 1) * p.strides.row +
           (Index)((p.origin[2] + 1 - (own & 1)) >> 1) * p.strides.voxel + own * p.channels;
}

__device__ __forceinline__ Index place_of(const Walk& walk, const Strides& strides) {
    return walk.plane * strides.plane + walk.row * strides.row + (Index)walk.column * strides.voxel;
}

// Adds deviations from `shift` and their squares of every rows-th place of [first, last).
template <bool IS_DENSE>
__device__ __forceinline__ void add_up(
    const Measure& p, const Element* source, int first, int last, int rows, const Vector& shift,
    float (&sum)[LANES], float (&squares)[LANES]
) {
    Walk next(first, p.extents);
    const Walk step(rows, p.extents);
    for (int place = first; place < last; place += AT_ONCE * rows) {
        Vector vectors[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int own = place + i * rows;
            vectors[i] = shift;  // past the end, which adds 0
            if (own < last) {
                vectors[i] = load(source + (IS_DENSE ? (Index)own * p.strides.voxel
                                                     : place_of(next, p.strides)));
            }
            if (!IS_DENSE) next.advance(step, p.extents);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i)
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                const float value = to_float(vectors[i].lanes[lane]) - to_float(shift.lanes[lane]);
                sum[lane] += value;
                squares[lane] = fmaf(value, value, squares[lane]);
            }
    }
}

// Whether all other blocks of these channels have written their partials, which are then to be seen.
__device__ __forceinline__ bool is_last_block(const Measure& p) {
    __shared__ bool is_last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        unsigned* counter = p.counters + blockIdx.z * gridDim.y + blockIdx.y;
        is_last = atomicInc(counter, gridDim.x - 1) == gridDim.x - 1;  // the last one makes it 0
    }
    __syncthreads();
    __threadfence();
    return is_last;
}

// All partials of a channel, for the threads below `width`: as sums of what lies between the chunks'
// means and the first one's, which needs no division by the way.
__device__ __forceinline__ Moments joined_partials(
    const Measure& p, int thread, int width, float* shared
) {
    const int parts = THREADS / width, part = thread / width, local = thread % width;
    const int channel = blockIdx.y * width + local;
    const Moments* partials = p.partials + (Index)blockIdx.z * gridDim.x * p.channels + channel;
    float2 sums = make_float2(0.0f, 0.0f);  // of distances, and of squared deviations
    float middle = 0.0f;
    if (channel < p.channels) {
        middle = __ldcg(&partials->mean);
#pragma unroll 8
        for (int chunk = part; chunk < gridDim.x; chunk += parts) {
            const float* one = &partials[(Index)chunk * p.channels].count;
            const float count = __ldcg(one), distance = __ldcg(one + 1) - middle;
            sums.x = fmaf(count, distance, sums.x);
            sums.y += fmaf(count * distance, distance, __ldcg(one + 2));
        }
    }
    float2* joined = reinterpret_cast<float2*>(shared);  // [parts][width]
    joined[thread] = sums;
    __syncthreads();
    if (part) return {};
    for (int other = 1; other < parts; ++other) {
        sums.x += joined[thread + other * width].x;
        sums.y += joined[thread + other * width].y;
    }
    const float count = (float)(p.extents[0] * p.extents[1] * p.extents[2] * p.cells);
    const float offset = sums.x / count;
    return {count, middle + offset, sums.y - offset * sums.x};
}

// Factor and summand of one channel's normalisation.
__device__ __forceinline__ void write_normalisation(
    const Moments& moments, float epsilon, const float* scale, const float* shift, int channel,
    float* factors, float* summands
) {
    // Rounding may leave less than nothing; what is not a number stays so.
    const float variance = moments.squares < 0.0f ? 0.0f : moments.squares / moments.count;
    float factor = 1.0f / sqrtf(variance + epsilon);
    if (scale) factor *= scale[channel];
    factors[channel] = factor;
    summands[channel] = (shift ? shift[channel] : 0.0f) - moments.mean * factor;
}

// Of a block that reaches past its volume, what lies in it is measured.
__device__ __forceinline__ void leave_out_what_is_beyond(Measure& p) {
#ifdef IN_BLOCKS
    const Inside inside = p.blocks.inside(p.blocks.start(blockIdx.z));
    for (int axis = 0; axis < 3; ++axis) {
        p.dense = p.dense && p.extents[axis] == inside.extents[axis];
        p.extents[axis] = inside.extents[axis];
    }
#endif
}

// Block (vectors, places), a power of two of vectors; grid (chunks, columns of channels, patches).
extern "C" __global__ void __launch_bounds__(THREADS, 2) measure(Measure p) {
    extern __shared__ float shared[];
    const int across = blockDim.x, width = across * LANES;
    const int thread = threadIdx.y * across + threadIdx.x;
    const int channel = blockIdx.y * width + threadIdx.x * LANES;
    // From the end on, which the cache still holds from the step before; the next one finds the start.
    const int number = gridDim.x - 1 - blockIdx.x;
    const int first = number * p.chunk;
    leave_out_what_is_beyond(p);
    const int last = min(first + p.chunk, p.extents[0] * p.extents[1] * p.extents[2]);
    const bool is_empty = ARE_BLOCKS && first >= last;

    float sum[LANES] = {}, squares[LANES] = {};
    Vector shift = {};
    if (channel < p.channels && !is_empty) {
        const Element* patch = p.source + blockIdx.z * p.strides.patch + channel;
        shift = load(first_voxel(p, patch, 0) + place_of(Walk(first, p.extents), p.strides));
        const Element* source = first_voxel(p, patch, threadIdx.y % p.cells);
        const int row = first + threadIdx.y / p.cells, rows = blockDim.y / p.cells;
        p.dense ? add_up<true>(p, source, row, last, rows, shift, sum, squares)
                : add_up<false>(p, source, row, last, rows, shift, sum, squares);
    }
    // Lanes of a warp with the same channels, then the warps.
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
        for (int distance = 16; distance >= across; distance /= 2) {
            sum[lane] += __shfl_xor_sync(~0u, sum[lane], distance);
            squares[lane] += __shfl_xor_sync(~0u, squares[lane], distance);
        }
    }
    float2* sums = reinterpret_cast<float2*>(shared);  // [WARPS][width]
    float* shifts = shared + 2 * WARPS * width;        // [width]
    if (thread % 32 < across) {
        float2* own = sums + thread / 32 * width + threadIdx.x * LANES;
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
    const int own_channel = blockIdx.y * width + thread;
    const bool has_channel = thread < width && own_channel < p.channels;
    Moments moments{0.0f, 0.0f, 0.0f};
    if (has_channel && !is_empty) {
        float2 total = sums[thread];
#pragma unroll
        for (int other = 1; other < WARPS; ++other) {
            const float2 one = sums[other * width + thread];
            total.x += one.x;
            total.y += one.y;
        }
        const float count = (float)((last - first) * p.cells), offset = total.x / count;
        moments = {count, shifts[thread] + offset, total.y - offset * total.x};
    }
    if (gridDim.x > 1 || !p.table) {
        if (has_channel) {
            p.partials[((Index)blockIdx.z * gridDim.x + number) * p.channels + own_channel] = moments;
        }
        if (!p.table || !is_last_block(p)) return;
        moments = joined_partials(p, thread, width, shared);
    }
    if (!has_channel) return;
    float* factors = p.table + (Index)blockIdx.z * p.channels;
    write_normalisation(
        moments, p.epsilon, p.scale, p.shift, own_channel, factors,
        factors + (Index)gridDim.z * p.channels
    );
}

struct Conclude {
    const Moments* partials;
    float* table;        // [2][patches][channels]
    const float* scale;  // [channels] or null
    const float* shift;
    int patches, channels, chunks;
    float epsilon;
};

// Block (channels, parts): a thread joins every parts-th partial of one channel.
extern "C" __global__ void conclude(Conclude p) {
    extern __shared__ Moments joined[];  // [parts][channels]
    const int channel = blockIdx.x * blockDim.x + threadIdx.x;
    const int patch = blockIdx.y;
    Moments moments{0.0f, 0.0f, 0.0f};
    if (channel < p.channels) {
        const Moments* partials = p.partials + (Index)patch * p.chunks * p.channels + channel;
#pragma unroll 4
        for (int part = threadIdx.y; part < p.chunks; part += blockDim.y) {
            moments.merge(partials[(Index)part * p.channels]);
        }
    }
    Moments* own = joined + threadIdx.y * blockDim.x + threadIdx.x;
    *own = moments;
    for (int half = blockDim.y / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.y < half) {
            own->merge(own[half * blockDim.x]);
        }
    }
    if (threadIdx.y || channel >= p.channels) return;
    float* factors = p.table + (Index)patch * p.channels;
    write_normalisation(
        *own, p.epsilon, p.scale, p.shift, channel, factors, factors + (Index)p.patches * p.channels
    );
}

struct ConcludeGroups {
    const Moments* partials;  // [patches][chunks][channels]
    float* table;             // [2][patches][channels]
    const float* scale;       // [channels] or null
    const float* shift;
    const float* bias;        // [channels], of the measured values but not in them; or null
    int patches, channels, chunks;
    int group;                // channels of a group; those behind the last one are filling
    float epsilon;
};

// Block: one group of one patch. A thread joins every blockDim.x-th partial of all its channels.
extern "C" __global__ void conclude_groups(ConcludeGroups p) {
    extern __shared__ Moments joined[];  // [blockDim.x]
    const int first = blockIdx.x * p.group, patch = blockIdx.y;
    const Moments* partials = p.partials + (Index)patch * p.chunks * p.channels + first;
    Moments moments{0.0f, 0.0f, 0.0f};
    for (int index = threadIdx.x; index < p.chunks * p.group; index += blockDim.x) {
        const int part = index / p.group, channel = index - part * p.group;
        Moments one = partials[(Index)part * p.channels + channel];
        if (p.bias) one.mean += p.bias[first + channel];
        moments.merge(one);
    }
    joined[threadIdx.x] = moments;
    for (int half = blockDim.x / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) joined[threadIdx.x].merge(joined[threadIdx.x + half]);
    }
    __syncthreads();
    const Moments all = joined[0];
    const float inverse = 1.0f / sqrtf(all.squares / all.count + p.epsilon);
    float* factors = p.table + (Index)patch * p.channels;
    float* summands = factors + (Index)p.patches * p.channels;
    for (int channel = first + threadIdx.x; channel < first + p.group; channel += blockDim.x) {
        const float factor = p.scale ? inverse * p.scale[channel] : inverse;
        const float mean = all.mean - (p.bias ? p.bias[channel] : 0.0f);
        factors[channel] = factor;
        summands[channel] = (p.shift ? p.shift[channel] : 0.0f) - mean * factor;
    }
    if (blockIdx.x) return;
    for (int filling = gridDim.x * p.group + threadIdx.x; filling < p.channels;
         filling += blockDim.x) {
        factors[filling] = summands[filling] = 0.0f;
    }
}
