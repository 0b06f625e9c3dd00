// after(activation(source * factor + summand) + residual) through the binomial filter, which shrinks, and
// padded, in one pass; the second + may be - or *.
//
// source, residual [patches, D, H, W, C] -> channels of target [patches, D', H', W', C'].
// Reads the taps^2 voxels of each column that a voxel is in, which mostly come from the cache.
//
// Not measured yet.

#include "rows.cuh"

constexpr int MOST_THREADS = 320;  // of a block

// Positions of an axis that one of the low-pass filter's sees, of the expression continued past its
// ends, and the weight of each.
struct Filtered {
    const Filter& filter;
    int first, extent;

    __device__ __forceinline__ Filtered(const Pointwise& p, int position, int axis)
        : filter(p.filter), first(position * p.factors[axis] - (p.filter.taps - 1) / 2),
          extent(sampled_extents(p)[axis]) {}
    __device__ __forceinline__ int at(int index) const {
        return continued(first + index, extent, filter.border);
    }
};

// Columns of the source, filtered along the planes and rows that a row of the target sees. The last
// two are kept, as neighbours in a row see the same ones.
template <Form FORM>
struct Columns {
    static constexpr int NONE = -2;
    const Channels<FORM>& channels;
    const Filtered depth, height;
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

    // Three rows are read at once, so that as many loads are in flight; but in the GENERAL form, which
    // the compiler takes long for. So it does for branches around the loads: what is not seen is read
    // all the same, at the border, and not shown.
    __device__ __forceinline__ void sum_up(int x) {
        constexpr int AT_ONCE = FORM == GENERAL ? 1 : 3;
        const Filter& filter = channels.p.filter;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) sums[lane] = 0.0f;
#pragma unroll 1
        for (int i = 0; i < filter.taps; ++i) {
            const int z = depth.at(i);
            for (int first = 0; first < filter.taps; first += AT_ONCE) {
                Vector from[AT_ONCE], beside[AT_ONCE];
                bool shows[AT_ONCE];
#pragma unroll
                for (int k = 0; k < AT_ONCE; ++k) {
                    const int y = height.at(first + k);
                    shows[k] = first + k < filter.taps && (z | y | x) >= 0;
                    const int seen[3] = {max(z, 0), max(y, 0), max(x, 0)};
                    from[k] = channels.source_at(seen[0], seen[1], seen[2]);
                    if (channels.has_residual()) {
                        beside[k] = channels.residual_at(seen[0], seen[1], seen[2]);
                    }
                }
#pragma unroll
                for (int k = 0; k < AT_ONCE; ++k) {
                    const bool is_seen = first + k < filter.taps;
                    const float weight = is_seen ? filter.row[i] * filter.row[first + k] : 0;
                    float one[LANES];
#pragma unroll
                    for (int lane = 0; lane < LANES; ++lane) one[lane] = filter.border_value;
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

// Block (vectors, runs): a thread makes p.run neighbouring voxels of a row, one after another.
template <Form FORM>
__device__ __forceinline__ void filtered(const Pointwise& p) {
    const int channel = first_channel();
    if (channel >= p.channels) return;
    const Channels<FORM> channels = scaled<FORM>(p, channel);
    const Start start = start_of(p, blockIdx.z);
    const int width = p.target_extents[2], end = end_of_rows(p);
    for (int index = blockIdx.x * p.rows; index < end; ++index) {
        const Row row(p, start, index, channel);
        for (int first = threadIdx.y * p.run; first < width; first += blockDim.y * p.run) {
            Columns<FORM> columns(channels, row.d, row.h);
            for (int column = first; column < min(first + p.run, width); ++column) {
                const int w = shown_column(p, start, column);
                float values[LANES];
                channels.fill(values);
                if (row.d >= 0 && row.h >= 0 && w >= 0) {
#pragma unroll
                    for (int lane = 0; lane < LANES; ++lane) values[lane] = 0.0f;
                    const Filtered seen(p, w, 2);
#pragma unroll 1
                    for (int k = 0; k < p.filter.taps; ++k) {
                        columns.add(seen.at(k), p.filter.row[k], values);
                    }
                }
                store(row.at(p, column), vector_of(values, p.target_scale));
            }
        }
    }
}

template <Form FORM>
__global__ void __launch_bounds__(MOST_THREADS, 2) low_pass(Pointwise p) {
    filtered<FORM>(p);
}
