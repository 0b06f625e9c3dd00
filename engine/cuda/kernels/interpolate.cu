// Trilinear upsampling of activation(source * factor + summand), and padding, in one pass.
//
// source [patches, D, H, W, C] -> channels of target [patches, D', H', W', C'].
// Between two planes, two rows and two columns of the source lie factor^3 voxels of the target: a thread
// keeps what two columns give for two planes and two rows of the target, so that it computes each voxel of
// the source once for four. The blends are separate for each axis.
//
// Measured 2026-12-01 (H200, fp16; bounds as in docs/gpu-engine.md): 256 channels of 16^3 voxels to 32^3,
// 14 us, bound by 19 MB, 32 % of it: a vector of the target takes some 140 instructions. With 16 warps of
// 128 registers in place of 12 of 170 it takes 19 us, as columns do not stay in them.
// Alternative: blends of half2, which would round in between.

#include "rows.cuh"

constexpr int MOST_THREADS = 128;  // of a block

// What a thread knows of an axis: how far apart neighbouring positions lie in the source.
template <bool CORNERS>
struct Axis {
    int extent, padded, origin, target, border;
    float step;

    __device__ __forceinline__ Axis(const Pointwise& p, const Start& start, int axis)
        : extent(sampled_extents(p)[axis]), padded(padded_extents(p)[axis]),
          origin(p.origin[axis] + start.at[axis]), target(p.target_extents[axis]), border(p.border) {
        const int factor = p.factors[axis], last = extent * factor - 1;
        step = !CORNERS ? 1.0f / factor : last ? (float)(extent - 1) / last : 0.0f;
    }

    // Where a position of the value lies among the voxels of the source.
    __device__ __forceinline__ float place(int position) const {
        return CORNERS ? position * step : fmaxf((position + 0.5f) * step - 0.5f, 0.0f);
    }

    // The first position of the first pair, 0 or -1, so that pairs lie between two voxels if the factor
    // is even. With aligned corners each voxel, but the first, is just before one of those positions.
    __device__ __forceinline__ int begin(int factor) const {
        const int even = CORNERS ? 1 : factor / 2;
        return factor % 2 ? 0 : -((even + origin) & 1);
    }
};

// Two neighbouring positions of an axis of the target, and the two voxels of the source between which
// both lie.
struct Pair {
    int target[2];   // -1 for none
    bool shows[2];   // whether a position shows the value
    int seen[2];
    float share[2];  // of the second voxel, by position
    bool fits;       // whether both lie there

    template <bool CORNERS>
    __device__ __forceinline__ Pair(const Axis<CORNERS>& axis, int one, int other)
        : target{one, other} {
        float places[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (target[i] >= axis.target) target[i] = -1;
            const int shown = continued(target[i] + axis.origin, axis.padded, axis.border);
            shows[i] = target[i] >= 0 && shown >= 0;
            places[i] = shows[i] ? axis.place(shown) : axis.extent;
        }
        seen[0] = min((int)fminf(places[0], places[1]), axis.extent - 1);
        seen[1] = min(seen[0] + 1, axis.extent - 1);
#pragma unroll
        for (int i = 0; i < 2; ++i) share[i] = shows[i] ? places[i] - seen[0] : 0.0f;
        fits = fmaxf(share[0], share[1]) <= 1.0f;
    }
};

// From one number to another; exactly either one where the share is 0 or 1.
__device__ __forceinline__ float between(float one, float other, float share) {
    return fmaf(share, other, fmaf(-share, one, one));
}

// A column of the source as a pair of planes and a pair of rows of the target see it.
struct Column {
    float values[2][2][LANES];  // by plane and row of the target

    __device__ __forceinline__ void read(
        const Channels<PLAIN>& channels, const Pair& depth, const Pair& height, int x
    ) {
        Vector from[2][2];
#pragma unroll
        for (int z = 0; z < 2; ++z) {
#pragma unroll
            for (int y = 0; y < 2; ++y) {
                from[z][y] = channels.source_at(depth.seen[z], height.seen[y], x);
            }
        }
#pragma unroll
        for (int z = 0; z < 2; ++z) {
            float one[LANES], other[LANES];
            channels.evaluate(from[z][0], from[z][0], one);
            channels.evaluate(from[z][1], from[z][1], other);
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                values[z][0][lane] = between(one[lane], other[lane], height.share[0]);
                values[z][1][lane] = between(one[lane], other[lane], height.share[1]);
            }
        }
#pragma unroll
        for (int y = 0; y < 2; ++y) {
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                const float one = values[0][y][lane], other = values[1][y][lane];
                values[0][y][lane] = between(one, other, depth.share[0]);
                values[1][y][lane] = between(one, other, depth.share[1]);
            }
        }
    }
};

__device__ __forceinline__ Row row_of(
    const Channels<PLAIN>& channels, const Start& start, const Pair& depth, const Pair& height, int z,
    int y
) {
    return {channels.p, start, max(depth.target[z], 0), max(height.target[y], 0), channels.first};
}

// A run of columns of the target, from `first` to before `end`, in a pair of planes and of rows.
template <bool CORNERS>
__device__ __forceinline__ void make_run(
    const Channels<PLAIN>& channels, const Start& start, const Pair& depth, const Pair& height,
    const Axis<CORNERS>& across, int first, int end
) {
    constexpr int NONE = -1;
    const Pointwise& p = channels.p;
    Column left, right;  // neighbours in a row see the same ones
    int left_at = NONE, right_at = NONE;
    const Row rows[2][2] = {
        {row_of(channels, start, depth, height, 0, 0), row_of(channels, start, depth, height, 0, 1)},
        {row_of(channels, start, depth, height, 1, 0), row_of(channels, start, depth, height, 1, 1)}};
    for (int column = first; column < end; ++column) {
        const Pair width(across, column, NONE);
        const float share = width.share[0];
        if (width.shows[0] && width.seen[0] != left_at) {
            if (width.seen[0] == right_at) {
                left = right;
            } else {
                left.read(channels, depth, height, width.seen[0]);
            }
            left_at = width.seen[0];
        }
        if (share > 0.0f && width.seen[1] != right_at) {
            right.read(channels, depth, height, width.seen[1]);
            right_at = width.seen[1];
        }
#pragma unroll
        for (int z = 0; z < 2; ++z) {
            if (depth.target[z] < 0) continue;
#pragma unroll
            for (int y = 0; y < 2; ++y) {
                if (height.target[y] < 0) continue;
                float values[LANES];
                channels.fill(values);
                if (depth.shows[z] && height.shows[y] && width.shows[0]) {
#pragma unroll
                    for (int lane = 0; lane < LANES; ++lane) {
                        const float one = left.values[z][y][lane];
                        values[lane] =
                            share > 0.0f ? between(one, right.values[z][y][lane], share) : one;
                    }
                }
                store(rows[z][y].at(p, column), vector_of(values, p.target_scale));
            }
        }
    }
}

// Block (vectors, runs): a thread makes p.run neighbouring voxels of a row, one after another, in two
// planes and two rows at once.
template <bool CORNERS>
__device__ __forceinline__ void interpolated(const Pointwise& p) {
    const int channel = first_channel();
    if (channel >= p.channels) return;
    const Channels<PLAIN> channels = scaled<PLAIN>(p, channel);
    const Start start = start_of(p, blockIdx.z);
    const int lines = p.target_extents[1] / 2 + 1, pairs = (p.target_extents[0] / 2 + 1) * lines;
    const int width = p.target_extents[2], end = min((int)(blockIdx.x + 1) * p.rows, pairs);
    const Axis<CORNERS> down(p, start, 0), along(p, start, 1), across(p, start, 2);
    const int first_column = across.begin(p.factors[2]);
    for (int index = blockIdx.x * p.rows; index < end; ++index) {
        const int d = down.begin(p.factors[0]) + index / lines * 2;
        const int h = along.begin(p.factors[1]) + index % lines * 2;
        const bool is_split = !Pair(down, d, d + 1).fits, is_cut = !Pair(along, h, h + 1).fits;
#pragma unroll 1
        for (int turn = 0; turn < (1 + is_split) * (1 + is_cut); ++turn) {
            const int z = is_split ? turn & 1 : 0, y = is_cut ? turn >> is_split : 0;
            const Pair depth(down, d + z, is_split ? -1 : d + 1);
            const Pair height(along, h + y, is_cut ? -1 : h + 1);
            for (int first = first_column + threadIdx.y * p.run; first < width;
                 first += blockDim.y * p.run) {
                const int last = min(first + p.run, width);
                make_run(channels, start, depth, height, across, max(first, 0), last);
            }
        }
    }
}

template <bool CORNERS>
__global__ void __launch_bounds__(MOST_THREADS, 3) interpolate(Pointwise p) {
    interpolated<CORNERS>(p);
}
