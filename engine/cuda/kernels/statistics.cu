// Mean and variance of each patch and channel, as factor and summand of the normalisation.
//
// source [patches, voxels, channels] -> table float [2, patches, channels / cells], cells being 8
// where sub-pixels are stored as channels. `conclude` takes each channel by itself, as instance norm
// does, and `conclude_groups` several neighbouring ones as one, as group norm does.
// Reads the source once: voxels * channels * sizeof(Element) bytes a patch. Every thread sums
// deviations from the first value it meets. Two launches, no atomics: the result is the same in
// every run. The kernel of the first layer does the work of `measure` itself.

#include "element.cuh"
#include "moments.cuh"

struct Measure {
    const Element* source;  // first voxel of the view
    Moments* partials;      // [patches][chunks][channels]
    Index patch_stride, plane_stride, row_stride;
    int height, width, voxels, channels;
    int dense;              // rows and planes follow each other without a gap
    int chunk;              // voxels of a block
};

constexpr int AT_ONCE = 4;  // loads under way in one thread

// Block (vectors, rows): a thread owns LANES channels of every rows-th voxel of the chunk.
extern "C" __global__ void measure(Measure p) {
    extern __shared__ Moments shared[];  // [rows][vectors * LANES]
    const int rows = blockDim.y, row = threadIdx.y;
    const int channel = (blockIdx.y * blockDim.x + threadIdx.x) * LANES;
    const bool active = channel < p.channels;
    // From the end on, which the cache still holds from the step before; the next one finds the start.
    const int number = gridDim.x - 1 - blockIdx.x;
    const int first = number * p.chunk;
    const int last = min(first + p.chunk, p.voxels);
    const Element* patch = p.source + blockIdx.z * p.patch_stride + channel;

    float shift[LANES], sum[LANES], squares[LANES];
    int count = 0;
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) shift[lane] = sum[lane] = squares[lane] = 0.0f;
    auto at = [&](int voxel) {
        const int line = voxel / p.width;
        const int plane = line / p.height;
        return patch + plane * p.plane_stride + (line - plane * p.height) * p.row_stride +
               (Index)(voxel - line * p.width) * p.channels;
    };
    auto add = [&](const Vector& vector) {
        ++count;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            float value = to_float(vector.lanes[lane]) - shift[lane];
            sum[lane] += value;
            squares[lane] = fmaf(value, value, squares[lane]);
        }
    };
    int voxel = first + row;
    if (active && voxel < last) {
        const Vector vector = load(at(voxel));
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) shift[lane] = to_float(vector.lanes[lane]);
        if (p.dense) {
            const Element* source = patch + (Index)voxel * p.channels;
            const Index step = (Index)rows * p.channels;
            for (; voxel + (AT_ONCE - 1) * rows < last; voxel += AT_ONCE * rows) {
                Vector vectors[AT_ONCE];
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i) vectors[i] = load(source + i * step);
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i) add(vectors[i]);
                source += AT_ONCE * step;
            }
        }
        for (; voxel < last; voxel += rows) add(load(at(voxel)));
    }

    const int pitch = blockDim.x * LANES;
    Moments* own = shared + row * pitch + threadIdx.x * LANES;
    const float inverse = count ? 1.0f / count : 0.0f;
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
        float offset = sum[lane] * inverse;
        own[lane] = {(float)count, shift[lane] + offset, squares[lane] - offset * sum[lane]};
    }
    for (int living = rows; living > 1;) {
        const int half = (living + 1) / 2;
        const int partner = row + half;
        __syncthreads();
        if (partner < living) {
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) own[lane].join(own[half * pitch + lane]);
        }
        living = half;
    }
    if (active && row == 0) {
        Moments* target = p.partials + ((Index)blockIdx.z * gridDim.x + number) * p.channels;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) target[channel + lane] = own[lane];
    }
}

struct Conclude {
    const Moments* partials;
    float* table;        // [2][patches][channels / cells]
    const float* scale;  // [channels / cells] or null
    const float* shift;
    int patches, channels, cells, chunks;
    float epsilon;
};

// Block (channels, parts): a thread joins every parts-th partial of one channel.
extern "C" __global__ void conclude(Conclude p) {
    extern __shared__ Moments joined[];  // [parts][channels]
    const int channels = p.channels / p.cells;
    const int channel = blockIdx.x * blockDim.x + threadIdx.x;
    const int patch = blockIdx.y;
    Moments moments{0.0f, 0.0f, 0.0f};
    if (channel < channels) {
        const int count = p.chunks * p.cells;
        // They lie as [chunk][cell][channel], so that parts follow each other evenly.
        const Moments* partials = p.partials + (Index)patch * p.chunks * p.channels + channel;
#pragma unroll 4
        for (int part = threadIdx.y; part < count; part += blockDim.y) {
            moments.join(partials[(Index)part * channels]);
        }
    }
    Moments* own = joined + threadIdx.y * blockDim.x + threadIdx.x;
    *own = moments;
    for (int half = blockDim.y / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.y < half) {
            own->join(own[half * blockDim.x]);
        }
    }
    if (threadIdx.y || channel >= channels) return;
    float factor = 1.0f / sqrtf(own->squares / own->count + p.epsilon);
    if (p.scale) factor *= p.scale[channel];
    float summand = (p.shift ? p.shift[channel] : 0.0f) - own->mean * factor;
    p.table[patch * channels + channel] = factor;
    p.table[(p.patches + patch) * channels + channel] = summand;
}

struct ConcludeGroups {
    const Moments* partials;  // [patches][chunks][cells][channels]
    float* table;             // [2][patches][channels]
    const float* scale;       // [channels] or null
    const float* shift;
    const float* bias;        // [channels], of the measured values but not in them; or null
    int patches, channels, cells, chunks;
    int group;                // channels of a group; those behind the last one are filling
    float epsilon;
};

// Block: one group of one patch. A thread joins every blockDim.x-th partial of all its channels.
extern "C" __global__ void conclude_groups(ConcludeGroups p) {
    extern __shared__ Moments joined[];  // [blockDim.x]
    const int first = blockIdx.x * p.group, patch = blockIdx.y, parts = p.chunks * p.cells;
    const Moments* partials = p.partials + (Index)patch * parts * p.channels + first;
    Moments moments{0.0f, 0.0f, 0.0f};
    for (int index = threadIdx.x; index < parts * p.group; index += blockDim.x) {
        const int part = index / p.group, channel = index - part * p.group;
        Moments one = partials[(Index)part * p.channels + channel];
        if (p.bias) one.mean += p.bias[first + channel];
        moments.join(one);
    }
    joined[threadIdx.x] = moments;
    for (int half = blockDim.x / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) joined[threadIdx.x].join(joined[threadIdx.x + half]);
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
