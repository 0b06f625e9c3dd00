// after(activation(source * factor + summand) + residual), sampled and padded, in one pass; the second
// + may be - or *.
//
// source, residual [patches, D, H, W, C] -> channels of target [patches, D', H', W', C'].
// Moves the source and the residual once and the target once; padding reads border voxels again, pooling
// the voxels of its window. Trilinear sampling and the binomial filter, which shrinks, read the 4 or taps^2
// voxels of each column that a voxel is in, which mostly come from the cache.
//
// Measured 2026-11-26 (H200, fp16; bounds as in docs/gpu-engine.md): 128^3 voxels of 64 channels, 144 us,
// bound by 537 MB, 88 % of it.

#include "rows.cuh"

enum Sampling { NEAREST, LARGEST, MEAN };

constexpr int MOST_THREADS = 320;  // of a block
constexpr int VOXELS = 2;          // of a thread at once, where it samples nothing

template <Form FORM>
__device__ __forceinline__ Channels<FORM> scaled(const Pointwise& p, int channel) {
    Channels<FORM> channels(p, blockIdx.z, channel);
    const int place = blockIdx.z * p.table_stride + channel % p.table_channels;
    channels.scale_by(p.factor ? p.factor + place : nullptr, p.summand + place);
    return channels;
}

// Positions of an axis that a sampled one sees, and the weight of each: the two between which it lies.
template <bool CORNERS>
struct Between {
    static constexpr int AT_ONCE = 2;
    int low, high;
    float share;  // of the second

    __device__ __forceinline__ Between(const Pointwise& p, int position, int axis) {
        const int extent = sampled_extents(p)[axis], factor = p.factors[axis];
        float place;
        if (CORNERS) {
            const int last = extent * factor - 1;
            place = last ? position * ((float)(extent - 1) / last) : 0.0f;
        } else {
            place = fmaxf((position + 0.5f) / factor - 0.5f, 0.0f);
        }
        low = min((int)place, extent - 1);
        high = min(low + 1, extent - 1);
        share = place - low;
    }
    __device__ __forceinline__ static constexpr int count() { return 2; }
    __device__ __forceinline__ int at(int index) const { return index ? high : low; }
    __device__ __forceinline__ float weight(int index) const { return index ? share : 1.0f - share; }
};

// The same of the low-pass filter, over the expression continued past its ends.
struct Filtered {
    static constexpr int AT_ONCE = 3;
    const Filter& filter;
    int first, extent;

    __device__ __forceinline__ Filtered(const Pointwise& p, int position, int axis)
        : filter(p.filter), first(position * p.factors[axis] - (p.filter.taps - 1) / 2),
          extent(sampled_extents(p)[axis]) {}
    __device__ __forceinline__ int count() const { return filter.taps; }
    __device__ __forceinline__ int at(int index) const {
        return continued(first + index, extent, filter.border);
    }
    __device__ __forceinline__ float weight(int index) const { return filter.row[index]; }
};

// Columns of the source, summed over the planes and rows that a row of the target sees. The last two
// are kept, as neighbours in a row see the same ones.
template <class Axis, Form FORM>
struct Columns {
    static constexpr int NONE = -2;
    const Channels<FORM>& channels;
    const Axis depth, height;
    int newer = NONE, older = NONE;
    float sums[LANES], older_sums[LANES];

    __device__ __forceinline__ Columns(const Channels<FORM>& channels, int d, int h)
        : channels(channels), depth(channels.p, d, 0), height(channels.p, h, 1) {}

    // Adds column x times the weight.
    __device__ __forceinline__ void add(int x, float weight, float (&values)[LANES]) {
        const bool is_older = x == older;
        if (!is_older && x != newer) {
            older = newer;
            newer = x;
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) older_sums[lane] = sums[lane];
            sum_up(x);
        }
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            values[lane] = fmaf(weight, is_older ? older_sums[lane] : sums[lane], values[lane]);
        }
    }

    // Axis::AT_ONCE rows are read at once, so that as many loads are in flight; but in the GENERAL form,
    // which the compiler takes long for. So it does for branches around the loads: what is not seen
    // is read all the same, at the border, and not shown.
    __device__ __forceinline__ void sum_up(int x) {
        constexpr int AT_ONCE = FORM == GENERAL ? 1 : Axis::AT_ONCE;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) sums[lane] = 0.0f;
#pragma unroll 1
        for (int i = 0; i < depth.count(); ++i) {
            const int z = depth.at(i);
            for (int first = 0; first < height.count(); first += AT_ONCE) {
                Vector from[AT_ONCE], beside[AT_ONCE];
                bool shows[AT_ONCE];
#pragma unroll
                for (int k = 0; k < AT_ONCE; ++k) {
                    const int y = height.at(first + k);
                    shows[k] = first + k < height.count() && (z | y | x) >= 0;
                    const int seen[3] = {max(z, 0), max(y, 0), max(x, 0)};
                    from[k] = channels.source_at(seen[0], seen[1], seen[2]);
                    if (channels.has_residual()) {
                        beside[k] = channels.residual_at(seen[0], seen[1], seen[2]);
                    }
                }
#pragma unroll
                for (int k = 0; k < AT_ONCE; ++k) {
                    const bool is_seen = first + k < height.count();
                    const float weight = is_seen ? depth.weight(i) * height.weight(first + k) : 0;
                    float one[LANES];
#pragma unroll
                    for (int lane = 0; lane < LANES; ++lane) {
                        one[lane] = channels.p.filter.border_value;
                    }
                    if (shows[k]) channels.evaluate(from[k], beside[k], one);
#pragma unroll
                    for (int lane = 0; lane < LANES; ++lane) {
                        sums[lane] = fmaf(weight, one[lane], sums[lane]);
                    }
                }
            }
        }
    }
};

// The larger number. What is not finite becomes NaN and stays: no comparison with it holds.
__device__ __forceinline__ float larger(float largest, float value) {
    if (!is_finite(value)) return value - value;
    return value > largest ? value : largest;
}

// The largest or the mean voxel of the window at (d, h, w), of those that lie in the tensor.
template <bool IS_LARGEST, Form FORM>
__device__ __forceinline__ void pool(
    const Channels<FORM>& channels, int d, int h, int w, float (&values)[LANES]
) {
    const Pointwise& p = channels.p;
    const Window& window = p.window;
    const int place[3] = {d, h, w};
    int first[3], last[3], count = 1;
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
        const int start = place[axis] * p.factors[axis] - window.padding[axis];
        first[axis] = max(start, 0);
        last[axis] = min(start + window.kernel[axis], sampled_extents(p)[axis]);
        count *= window.counts_padding ? window.kernel[axis] : last[axis] - first[axis];
    }
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) values[lane] = IS_LARGEST ? -LARGEST_FLOAT : 0.0f;
    for (int z = first[0]; z < last[0]; ++z) {
        for (int y = first[1]; y < last[1]; ++y) {
            for (int x = first[2]; x < last[2]; ++x) {
                float one[LANES];
                channels.read(z, y, x, one);
#pragma unroll
                for (int lane = 0; lane < LANES; ++lane) {
                    values[lane] = IS_LARGEST ? larger(values[lane], one[lane])
                                              : values[lane] + one[lane];
                }
            }
        }
    }
    if (IS_LARGEST) return;
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) values[lane] /= count;
}

template <int SAMPLING, Form FORM>
__device__ __forceinline__ void sample(
    const Channels<FORM>& channels, int d, int h, int w, float (&values)[LANES]
) {
    const int(&factors)[3] = channels.p.factors;
    if (SAMPLING == NEAREST) {
        channels.read(d / factors[0], h / factors[1], w / factors[2], values);
    } else {
        pool<SAMPLING == LARGEST>(channels, d, h, w, values);
    }
}

// The first of the LANES channels that a thread owns, in a block (vectors, columns or runs of them).
__device__ __forceinline__ int first_channel() {
    return (blockIdx.y * blockDim.x + threadIdx.x) * LANES;
}

// Block (vectors, columns): a thread owns LANES channels and walks over the rows of its block,
// VOXELS of them at a time so that as many loads are in flight.
template <Form FORM>
__device__ __forceinline__ void plain(const Pointwise& p) {
    const int channel = first_channel();
    if (channel >= p.channels) return;
    const Channels<FORM> channels = scaled<FORM>(p, channel);
    const Start start = start_of(p, blockIdx.z);
    const int width = p.target_extents[2], end = end_of_rows(p);
    for (int index = blockIdx.x * p.rows; index < end; ++index) {
        const Row row(p, start, index, channel);
        for (int first = threadIdx.y; first < width; first += VOXELS * blockDim.y) {
            Vector from[VOXELS], beside[VOXELS];
            int places[VOXELS];
#pragma unroll
            for (int i = 0; i < VOXELS; ++i) {
                const int column = first + i * blockDim.y;
                const int w = shown_column(p, start, column);
                places[i] = column < width && row.d >= 0 && row.h >= 0 ? w : -1;
                if (places[i] < 0) continue;
                from[i] = channels.source_at(row.d, row.h, w);
                if (channels.has_residual()) beside[i] = channels.residual_at(row.d, row.h, w);
            }
#pragma unroll
            for (int i = 0; i < VOXELS; ++i) {
                const int column = first + i * blockDim.y;
                if (column >= width) break;
                float values[LANES];
                channels.fill(values);
                if (places[i] >= 0) channels.evaluate(from[i], beside[i], values);
                store(row.at(p, column), vector_of(values, p.target_scale));
            }
        }
    }
}

template <int SAMPLING, Form FORM>
__device__ __forceinline__ void sampled(const Pointwise& p) {
    const int channel = first_channel();
    if (channel >= p.channels) return;
    const Channels<FORM> channels = scaled<FORM>(p, channel);
    const Start start = start_of(p, blockIdx.z);
    const int width = p.target_extents[2], end = end_of_rows(p);
    for (int index = blockIdx.x * p.rows; index < end; ++index) {
        const Row row(p, start, index, channel);
        for (int column = threadIdx.y; column < width; column += blockDim.y) {
            const int w = shown_column(p, start, column);
            float values[LANES];
            channels.fill(values);
            if (row.d >= 0 && row.h >= 0 && w >= 0) {
                sample<SAMPLING>(channels, row.d, row.h, w, values);
            }
            store(row.at(p, column), vector_of(values, p.target_scale));
        }
    }
}

// Block (vectors, runs): a thread makes p.run neighbouring voxels of a row, one after another.
template <class Axis, Form FORM>
__device__ __forceinline__ void blended(const Pointwise& p) {
    const int channel = first_channel();
    if (channel >= p.channels) return;
    const Channels<FORM> channels = scaled<FORM>(p, channel);
    const Start start = start_of(p, blockIdx.z);
    const int width = p.target_extents[2], end = end_of_rows(p);
    for (int index = blockIdx.x * p.rows; index < end; ++index) {
        const Row row(p, start, index, channel);
        for (int first = threadIdx.y * p.run; first < width; first += blockDim.y * p.run) {
            Columns<Axis, FORM> columns(channels, row.d, row.h);
            for (int column = first; column < min(first + p.run, width); ++column) {
                const int w = shown_column(p, start, column);
                float values[LANES];
                channels.fill(values);
                if (row.d >= 0 && row.h >= 0 && w >= 0) {
#pragma unroll
                    for (int lane = 0; lane < LANES; ++lane) values[lane] = 0.0f;
                    const Axis seen(p, w, 2);
#pragma unroll 1
                    for (int k = 0; k < seen.count(); ++k) {
                        columns.add(seen.at(k), seen.weight(k), values);
                    }
                }
                store(row.at(p, column), vector_of(values, p.target_scale));
            }
        }
    }
}

template <Form FORM>
__global__ void __launch_bounds__(MOST_THREADS, FORM == GENERAL ? 2 : 3) pointwise(Pointwise p) {
    plain<FORM>(p);
}

template <Sampling SAMPLING, Form FORM>
__global__ void __launch_bounds__(MOST_THREADS, 2) pointwise_sampled(Pointwise p) {
    sampled<SAMPLING, FORM>(p);
}

template <class Axis, Form FORM>
__global__ void __launch_bounds__(MOST_THREADS, 2) pointwise_blended(Pointwise p) {
    blended<Axis, FORM>(p);
}
