// after(activation(source * factor + summand) + residual), pooled or repeated, and padded, in one pass; the
// second + may be - or *.
//
// source, residual [patches, D, H, W, C] -> channels of target [patches, D', H', W', C'].
// Moves the source and the residual once and the target once; padding reads border voxels again, pooling
// the voxels of its window.
//
// Measured 2026-11-26 (H200, fp16; bounds as in docs/gpu-engine.md): 128^3 voxels of 64 channels, 144 us,
// bound by 537 MB, 88 % of it.

#include "rows.cuh"

enum Sampling { NEAREST, LARGEST, MEAN };

constexpr int MOST_THREADS = 320;  // of a block
constexpr int VOXELS = 2;          // of a thread at once, where it samples nothing

// The larger number. What is not finite becomes NaN and stays: no comparison with it holds.
__device__ __forceinline__ float larger(float largest, float value) {
    if (!is_finite(value)) return value - value;
    return value > largest ? value : largest;
}

// The largest or the mean voxel of the window at (d, h, w), of those that lie in the tensor. AT_ONCE of
// them are read at once, so that as many loads are in flight; but in the GENERAL form, which the compiler
// takes long for.
template <bool IS_LARGEST, Form FORM>
__device__ __forceinline__ void pool(
    const Channels<FORM>& channels, int d, int h, int w, float (&values)[LANES]
) {
    constexpr int AT_ONCE = FORM == GENERAL ? 1 : 4;
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
    int z = first[0], y = first[1], x = first[2];
    for (int left = (last[0] - z) * (last[1] - y) * (last[2] - x); left > 0; left -= AT_ONCE) {
        Vector from[AT_ONCE], beside[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            from[k] = channels.source_at(z, y, x);
            if (channels.has_residual()) beside[k] = channels.residual_at(z, y, x);
            // The last voxel is read again instead of none, and does not count. No branches.
            x += k + 1 < left;
            const bool ends = x == last[2];
            x = ends ? first[2] : x;
            y += ends;
            const bool is_whole = y == last[1];
            y = is_whole ? first[1] : y;
            z += is_whole;
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            float one[LANES];
            channels.evaluate(from[k], beside[k], one);
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                if (IS_LARGEST) {
                    values[lane] = larger(values[lane], one[lane]);
                } else {
                    values[lane] += k < left ? one[lane] : 0.0f;
                }
            }
        }
    }
    if (IS_LARGEST) return;
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) values[lane] *= 1.0f / count;
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

template <Form FORM>
__global__ void __launch_bounds__(MOST_THREADS, FORM == GENERAL ? 2 : 3) pointwise(Pointwise p) {
    plain<FORM>(p);
}

template <Sampling SAMPLING, Form FORM>
__global__ void __launch_bounds__(MOST_THREADS, 2) pointwise_sampled(Pointwise p) {
    sampled<SAMPLING, FORM>(p);
}
