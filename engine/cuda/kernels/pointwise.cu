// after(activation(source * factor + summand) + residual), sampled and padded, in one pass; the second
// + may be - or *.
//
// source, residual [patches, D, H, W, C] -> channels of target [patches, D', H', W', C'].
// Moves the source and the residual once and the target once; padding reads border voxels again,
// trilinear sampling reads 8 neighbours, which mostly come from the cache, the binomial filter, which
// shrinks, taps^3 for each voxel that it makes, and pooling the voxels of its window.

#include "pass.cuh"

enum Sampling { NEAREST, TRILINEAR, TRILINEAR_CORNERS, BINOMIAL, LARGEST, MEAN };

template <Form FORM>
__device__ __forceinline__ Channels<FORM> scaled(const Pointwise& p, int channel) {
    Channels<FORM> channels(p, blockIdx.z, channel);
    const int place = blockIdx.z * p.table_stride + channel % p.table_channels;
    channels.scale_by(p.factor ? p.factor + place : nullptr, p.summand + place);
    return channels;
}

// Voxels of an axis between which a sampled position lies, and the share of the second.
struct Between {
    int low, high;
    float share;

    __device__ __forceinline__ Between(int position, int extent, int factor, bool corners) {
        float place;
        if (corners) {
            const int last = extent * factor - 1;
            place = last ? position * ((float)(extent - 1) / last) : 0.0f;
        } else {
            place = fmaxf((position + 0.5f) / factor - 0.5f, 0.0f);
        }
        low = min((int)place, extent - 1);
        high = min(low + 1, extent - 1);
        share = place - low;
    }
};

// The low-pass filter around voxel (d, h, w) * factors, over the expression continued past its ends.
template <Form FORM>
__device__ __forceinline__ void filter(
    const Channels<FORM>& channels, int d, int h, int w, float (&values)[LANES]
) {
    const Pointwise& p = channels.p;
    const Filter& f = p.filter;
    const int before = (f.taps - 1) / 2;
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) values[lane] = 0.0f;
    for (int i = 0; i < f.taps; ++i) {
        const int z = continued(d * p.factors[0] - before + i, sampled_extents(p)[0], f.border);
        for (int j = 0; j < f.taps; ++j) {
            const int y = continued(h * p.factors[1] - before + j, sampled_extents(p)[1], f.border);
            for (int k = 0; k < f.taps; ++k) {
                const int x =
                    continued(w * p.factors[2] - before + k, sampled_extents(p)[2], f.border);
                const float weight = f.row[i] * f.row[j] * f.row[k];
                float one[LANES];
#pragma unroll
                for (int lane = 0; lane < LANES; ++lane) one[lane] = f.border_value;
                if ((z | y | x) >= 0) channels.read(z, y, x, one);
#pragma unroll
                for (int lane = 0; lane < LANES; ++lane) {
                    values[lane] = fmaf(weight, one[lane], values[lane]);
                }
            }
        }
    }
}

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
    const Pointwise& p = channels.p;
    if (SAMPLING == NEAREST) {
        channels.read(d / p.factors[0], h / p.factors[1], w / p.factors[2], values);
    } else if (SAMPLING == BINOMIAL) {
        filter(channels, d, h, w, values);
    } else if (SAMPLING == LARGEST || SAMPLING == MEAN) {
        pool<SAMPLING == LARGEST>(channels, d, h, w, values);
    } else {
        constexpr bool corners = SAMPLING == TRILINEAR_CORNERS;
        const Between depth(d, sampled_extents(p)[0], p.factors[0], corners);
        const Between height(h, sampled_extents(p)[1], p.factors[1], corners);
        const Between width(w, sampled_extents(p)[2], p.factors[2], corners);
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) values[lane] = 0.0f;
        for (int corner = 0; corner < 8; ++corner) {
            const bool z = corner & 4, y = corner & 2, x = corner & 1;
            const float weight = (z ? depth.share : 1.0f - depth.share) *
                                 (y ? height.share : 1.0f - height.share) *
                                 (x ? width.share : 1.0f - width.share);
            float one[LANES];
            channels.read(z ? depth.high : depth.low, y ? height.high : height.low,
                          x ? width.high : width.low, one);
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                values[lane] = fmaf(weight, one[lane], values[lane]);
            }
        }
    }
}

// A row of the target: its first voxel, and the plane and row of the value that it shows.
struct Row {
    Element* target;
    int d, h;

    __device__ __forceinline__ Row(
        const Pointwise& p, const Start& start, int row, int channel
    ) {
        const int plane = row / p.target_extents[1], line = row - plane * p.target_extents[1];
        d = continued(plane + p.origin[0] + start.at[0], padded_extents(p)[0], p.border);
        h = continued(line + p.origin[1] + start.at[1], padded_extents(p)[1], p.border);
        const Strides& strides = p.target_strides;
        target = p.target + blockIdx.z * strides.patch + channel;
        if (p.target_cell) {
            target += (plane >> 1) * strides.plane + (line >> 1) * strides.row +
                      ((plane & 1) * 2 + (line & 1)) * 2 * p.target_cell;
        } else {
            target += plane * strides.plane + line * strides.row;
        }
    }

    __device__ __forceinline__ Element* at(const Pointwise& p, int column) const {
        if (!p.target_cell) return target + (Index)column * p.target_strides.voxel;
        return target + (Index)(column >> 1) * p.target_strides.voxel +
               (column & 1) * p.target_cell;
    }
};

// Block (vectors, columns): a thread owns LANES channels and walks over the rows of its block,
// AT_ONCE voxels at a time so that as many loads are under way.
template <Form FORM>
__device__ __forceinline__ void plain(const Pointwise& p) {
    constexpr int AT_ONCE = 2;
    const int channel = (blockIdx.y * blockDim.x + threadIdx.x) * LANES;
    if (channel >= p.channels) return;
    const Channels<FORM> channels = scaled<FORM>(p, channel);
    const Start start = start_of(p, blockIdx.z);
    const int width = p.target_extents[2], rows = p.target_extents[0] * p.target_extents[1];
    const int last = min((int)(blockIdx.x + 1) * p.rows, rows);
    for (int index = blockIdx.x * p.rows; index < last; ++index) {
        const Row row(p, start, index, channel);
        for (int first = threadIdx.y; first < width; first += AT_ONCE * blockDim.y) {
            Vector from[AT_ONCE], beside[AT_ONCE];
            int places[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const int column = first + i * blockDim.y;
                const int w = continued(column + p.origin[2] + start.at[2], padded_extents(p)[2], p.border);
                places[i] = column < width && row.d >= 0 && row.h >= 0 ? w : -1;
                if (places[i] < 0) continue;
                from[i] = channels.source_at(row.d, row.h, w);
                if (channels.has_residual()) beside[i] = channels.residual_at(row.d, row.h, w);
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const int column = first + i * blockDim.y;
                if (column >= width) break;
                float values[LANES];
                channels.fill(values);
                if (places[i] >= 0) channels.express(from[i], beside[i], values);
                store(row.at(p, column), vector_of(values, p.target_scale));
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(320, 3) pointwise(Pointwise p) {
    plain<PLAIN>(p);
}
extern "C" __global__ void __launch_bounds__(320, 3) pointwise_residual(Pointwise p) {
    plain<RESIDUAL>(p);
}
extern "C" __global__ void __launch_bounds__(320, 2) pointwise_general(Pointwise p) {
    plain<GENERAL>(p);
}

template <int SAMPLING, Form FORM>
__device__ __forceinline__ void sampled(const Pointwise& p) {
    const int channel = (blockIdx.y * blockDim.x + threadIdx.x) * LANES;
    if (channel >= p.channels) return;
    const Channels<FORM> channels = scaled<FORM>(p, channel);
    const Start start = start_of(p, blockIdx.z);
    const int width = p.target_extents[2], rows = p.target_extents[0] * p.target_extents[1];
    const int last = min((int)(blockIdx.x + 1) * p.rows, rows);
    for (int index = blockIdx.x * p.rows; index < last; ++index) {
        const Row row(p, start, index, channel);
        for (int column = threadIdx.y; column < width; column += blockDim.y) {
            const int w = continued(column + p.origin[2] + start.at[2], padded_extents(p)[2], p.border);
            float values[LANES];
            channels.fill(values);
            if (row.d >= 0 && row.h >= 0 && w >= 0) {
                sample<SAMPLING>(channels, row.d, row.h, w, values);
            }
            store(row.at(p, column), vector_of(values, p.target_scale));
        }
    }
}

#define SAMPLED(name, sampling)                                                        \
    extern "C" __global__ void name(Pointwise p) {                                     \
        if (p.general) return sampled<sampling, GENERAL>(p);                      \
        p.residual ? sampled<sampling, RESIDUAL>(p) : sampled<sampling, PLAIN>(p);     \
    }

SAMPLED(pointwise_nearest, NEAREST)
SAMPLED(pointwise_trilinear, TRILINEAR)
SAMPLED(pointwise_trilinear_corners, TRILINEAR_CORNERS)
SAMPLED(pointwise_binomial, BINOMIAL)
SAMPLED(pointwise_largest, LARGEST)
SAMPLED(pointwise_mean, MEAN)
