// Vectors of a tensor in memory: numbers, or in a float program split fp16.
//
// Split fp16 is a number as a high and a low fp16 part, which add up to it. Of 8 channels kept so
// the high parts come first, then the low ones, in the same 32 bytes.
// They stand for (high + low) * unit, unit being a power of two and 0 for numbers kept as such.
// So of two lanes that own 4 channels each, the even one moves all high parts and the odd one all
// low ones, 16 bytes as ever, and they exchange what is not theirs.
#pragma once

#include "element.cuh"

#ifdef ELEMENT_FLOAT
#include <cuda_fp16.h>

struct Four {
    __half lanes[LANES];
};

// The high and low parts of a lane's channels.
struct alignas(16) SplitFp16 {
    Four high, low;
};

// From parts as they are moved to those of a lane's own channels, and back.
__device__ __forceinline__ Vector exchanged(const Vector& vector) {
    const bool is_odd = threadIdx.x & 1;
    const unsigned both = 3u << ((threadIdx.y * blockDim.x + threadIdx.x) % 32 & ~1);
    uint4 words = reinterpret_cast<const uint4&>(vector);
    const unsigned first = __shfl_xor_sync(both, is_odd ? words.x : words.z, 1);
    const unsigned second = __shfl_xor_sync(both, is_odd ? words.y : words.w, 1);
    words = is_odd ? make_uint4(first, second, words.z, words.w)
                   : make_uint4(words.x, words.y, first, second);
    return reinterpret_cast<const Vector&>(words);
}
#endif

// LANES channels of a vector that was loaded.
__device__ __forceinline__ void values_of(
    const Vector& vector, float unit, float (&values)[LANES]
) {
#ifdef ELEMENT_FLOAT
    if (unit != 0.0f) {
        const Vector own = exchanged(vector);
        const SplitFp16& parts = reinterpret_cast<const SplitFp16&>(own);
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            const float high = __half2float(parts.high.lanes[lane]);
            values[lane] = (high + __half2float(parts.low.lanes[lane])) * unit;
        }
        return;
    }
#endif
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) values[lane] = to_float(vector.lanes[lane]);
}

// The vector to be stored for LANES channels; scale: 0 for numbers kept as such.
__device__ __forceinline__ Vector vector_of(const float (&values)[LANES], float scale) {
#ifdef ELEMENT_FLOAT
    if (scale != 0.0f) {
        SplitFp16 parts;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            const float value = values[lane] * scale;
            parts.high.lanes[lane] = __float2half_rn(value);
            parts.low.lanes[lane] = __float2half_rn(value - __half2float(parts.high.lanes[lane]));
        }
        return exchanged(reinterpret_cast<const Vector&>(parts));
    }
#endif
    Vector vector;
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) vector.lanes[lane] = to_element(values[lane]);
    return vector;
}
