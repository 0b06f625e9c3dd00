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
