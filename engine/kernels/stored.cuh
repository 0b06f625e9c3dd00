// Vectors of a tensor in memory: numbers, or in a float program fp16 halves of them.
//
// Of 8 channels kept as halves the high ones come first, then the low ones, in the same 32 bytes.
// They stand for (high + low) * unit, unit being a power of two and 0 for numbers kept as such.
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

constexpr int TO_LOW = 4;  // floats from high halves to their low ones
#endif

// Elements from a voxel's first to the vector of a channel, or to its high halves.
__device__ __forceinline__ int place_of(int channel, bool is_halves) {
#if defined(ELEMENT_FP32)
    if (is_halves) return channel - (channel & 4) / 2;
#endif
    return channel;
}

__device__ __forceinline__ Vector load_stored(const Element* address, bool is_halves) {
#if defined(ELEMENT_FP32)
    if (is_halves) {
        const Halves halves = {*reinterpret_cast<const Four*>(address),
                               *reinterpret_cast<const Four*>(address + TO_LOW)};
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
    Element* address, const float (&values)[LANES], float scale
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
        *reinterpret_cast<Four*>(address + TO_LOW) = halves.low;
        return;
    }
#endif
    Vector vector;
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) vector.lanes[lane] = to_element(values[lane]);
    store(address, vector);
}

// Between reading and writing in place: the halves of 8 channels lie where two lanes read numbers.
__device__ __forceinline__ void wait_for_neighbour(bool has_halves) {
#if defined(ELEMENT_FP32)
    const int lane = (threadIdx.y * blockDim.x + threadIdx.x) % 32;
    if (has_halves) __syncwarp(3u << (lane & ~1));
#endif
}
