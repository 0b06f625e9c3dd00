// Vectors of a tensor in memory: numbers, or in a float program fp16 halves of them.
//
// A voxel of C numbers kept as halves holds C high ones, then C low ones, in the same bytes. What
// they stand for is (high + low) * unit, unit being a power of two and 0 for numbers kept as such.
#pragma once

#include "element.cuh"

#if defined(ELEMENT_FP32)
#include <cuda_fp16.h>

struct alignas(8) Four {
    __half lanes[LANES];
};

// LANES high halves and the low ones that belong to them.
struct alignas(16) Halves {
    Four high, low;
};
#endif

// Floats or elements from a voxel's first to the vector of a channel.
__device__ __forceinline__ int place_of(int channel, bool is_halves) {
#if defined(ELEMENT_FP32)
    if (is_halves) return channel / 2;
#endif
    return channel;
}

// voxel_size: C, from the high halves to the low ones.
__device__ __forceinline__ Vector load_stored(const Element* address, int voxel_size, bool is_halves) {
#if defined(ELEMENT_FP32)
    if (is_halves) {
        const Four* high = reinterpret_cast<const Four*>(address);
        const Halves halves = {*high, *reinterpret_cast<const Four*>(address + voxel_size / 2)};
        return reinterpret_cast<const Vector&>(halves);
    }
#endif
    return load(address);
}

__device__ __forceinline__ float value_of(const Vector& vector, int lane, float unit) {
#if defined(ELEMENT_FP32)
    if (unit != 0.0f) {
        const Halves& halves = reinterpret_cast<const Halves&>(vector);
        return (__half2float(halves.high.lanes[lane]) + __half2float(halves.low.lanes[lane])) * unit;
    }
#endif
    return to_float(vector.lanes[lane]);
}

// scale: 0 for numbers kept as such.
__device__ __forceinline__ void store_values(
    Element* address, const float (&values)[LANES], int voxel_size, float scale
) {
#if defined(ELEMENT_FP32)
    if (scale != 0.0f) {
        Halves halves;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            const float value = values[lane] * scale;
            halves.high.lanes[lane] = __float2half_rn(value);
            halves.low.lanes[lane] = __float2half_rn(value - __half2float(halves.high.lanes[lane]));
        }
        *reinterpret_cast<Four*>(address) = halves.high;
        *reinterpret_cast<Four*>(address + voxel_size / 2) = halves.low;
        return;
    }
#endif
    Vector vector;
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) vector.lanes[lane] = to_element(values[lane]);
    store(address, vector);
}
