// The stored number: __half, __nv_bfloat16 or float, chosen by -DELEMENT_FP16, _BF16, _TF32 or
// _FP32.
// Tensors are channels-last with channels in whole 16-byte vectors; arithmetic is in float.
#pragma once

#if defined(ELEMENT_FP16)
#include <cuda_fp16.h>
typedef __half Element;
#elif defined(ELEMENT_BF16)
#include <cuda_bf16.h>
typedef __nv_bfloat16 Element;
#else
#define ELEMENT_FLOAT
typedef float Element;
#endif

typedef long long Index;

constexpr int LANES = 16 / sizeof(Element);

struct alignas(16) Vector {
    Element lanes[LANES];
};

__device__ __forceinline__ bool is_finite(float value) {
    return fabsf(value) <= 3.402823466e+38f;
}

__device__ __forceinline__ float to_float(Element value) {
    return static_cast<float>(value);
}

__device__ __forceinline__ Element to_element(float value) {
#if defined(ELEMENT_FP16)
    return __float2half_rn(value);
#elif defined(ELEMENT_BF16)
    return __float2bfloat16_rn(value);
#else
    return value;
#endif
}

__device__ __forceinline__ Vector load(const Element* address) {
    return *reinterpret_cast<const Vector*>(address);
}

__device__ __forceinline__ void store(Element* address, const Vector& vector) {
    *reinterpret_cast<Vector*>(address) = vector;
}

// x below 0 times slope; -inf * 0 is NaN, so that an overflow is never hidden.
struct Activation {
    float slope;
    int tanh;

    __device__ __forceinline__ float operator()(float value) const {
        value = value < 0.0f ? slope * value : value;
        if (tanh) value = is_finite(value) ? tanhf(value) : value - value;
        return value;
    }
};

enum Border { REFLECT = 0, REPLICATE = 1, ZERO = 2 };

// Position on an axis continued past its ends; -1 where the value is zero.
__device__ __forceinline__ int continued(int position, int extent, int border) {
    if (border == REFLECT) {
        position = abs(position);
        return min(position, 2 * (extent - 1) - position);
    }
    if (border == REPLICATE) return min(max(position, 0), extent - 1);
    return position >= 0 && position < extent ? position : -1;
}
