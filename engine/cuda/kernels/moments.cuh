// Count, mean and sum of squared deviations of some numbers, joined by Chan's rule, so that a mean
// far from zero costs no digits.
#pragma once

struct Moments {
    float count, mean, squares;

    __device__ __forceinline__ void join(const Moments& other) {
        const float total = count + other.count;
        if (total == 0.0f) return;
        const float share = other.count / total;
        const float distance = other.mean - mean;
        squares += other.squares + distance * distance * count * share;
        mean += distance * share;
        count = total;
    }
};
