// Count, mean and sum of squared deviations of some numbers, merged by Chan's rule, so that a mean
// far from zero costs no digits.
#pragma once

struct Moments {
    float count, mean, squares;

    __device__ __forceinline__ void merge(const Moments& other) {
        const float total = count + other.count;
        if (total == 0.0f) return;
        const float share = other.count / total;
        const float distance = other.mean - mean;
        squares += other.squares + distance * distance * count * share;
        mean += distance * share;
        count = total;
    }
};

// Running sums of one channel's numbers, about the first of them.
struct Sums {
    float shift, sum, squares;

    __device__ __forceinline__ void add(float value) {
        const float deviation = value - shift;
        sum += deviation;
        squares = fmaf(deviation, deviation, squares);
    }

    __device__ __forceinline__ Moments moments(int count) const {
        if (!count) return {0.0f, 0.0f, 0.0f};
        const float offset = sum / count;
        return {(float)count, shift + offset, squares - offset * sum};
    }
};

// Those of four lanes that follow each other, in all of them.
__device__ __forceinline__ Moments of_four_lanes(Moments moments) {
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) {
        moments.merge({__shfl_xor_sync(~0u, moments.count, distance),
                      __shfl_xor_sync(~0u, moments.mean, distance),
                      __shfl_xor_sync(~0u, moments.squares, distance)});
    }
    return moments;
}

// Moments of a warp's 16 channels, to `own` of it. As sums of wgmma lie, lane 4 g + t has `count` numbers of
// each of the channels g and 8 + g, and the other three of g have the rest.
__device__ __forceinline__ void keep(Moments* own, int g, int t, const Sums& low, const Sums& high, int count) {
    const Moments lower = of_four_lanes(low.moments(count));
    const Moments upper = of_four_lanes(high.moments(count));
    if (t == 0) own[g] = lower, own[8 + g] = upper;
}

// Those of channel threadIdx.x of OUTPUTS, of which each of eight warps kept 16: [warp][16].
template <int OUTPUTS>
__device__ __forceinline__ Moments of_eight_warps(const Moments* kept) {
    Moments moments{0.0f, 0.0f, 0.0f};
    for (int warp = threadIdx.x / 16; warp < 8; warp += OUTPUTS / 16) {
        moments.merge(kept[warp * 16 + threadIdx.x % 16]);
    }
    return moments;
}
