// The stored number: __half, __nv_bfloat16 or float, chosen by -DELEMENT_FP16, _BF16 or _FLOAT.
// Tensors are channels-last with channels in whole 16-byte vectors; arithmetic is in float.
#pragma once

#if defined(ELEMENT_FP16)
#include <cuda_fp16.h>
typedef __half Element;
#elif defined(ELEMENT_BF16)
#include <cuda_bf16.h>
typedef __nv_bfloat16 Element;
#elif defined(ELEMENT_FLOAT)
typedef float Element;
#endif

typedef long long Index;

constexpr int LANES = 16 / sizeof(Element);

struct alignas(16) Vector {
    Element lanes[LANES];
};

// Numbers from one to the next.
struct Strides {
    Index patch, plane, row;
    int voxel;
};

constexpr float LARGEST_FLOAT = 3.402823466e+38f;

__device__ __forceinline__ bool is_finite(float value) {
    return fabsf(value) <= LARGEST_FLOAT;
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

enum Curve { LINEAR = 0, TANH = 1, SIGMOID = 2, ELU = 3, SOFTPLUS = 4, CLIP = 5, ERF = 6,
             EXP = 7, INVERSE = 8, INVERSE_ROOT = 9 };

// LINEAR and ELU bend at 0: below it x times slope, or e^x - 1 times slope. CLIP keeps x from low to
// high. INVERSE and INVERSE_ROOT are of an x of at least low. What is not finite stays so, as -inf * 0
// is NaN: an overflow is never hidden.
struct Activation {
    const float* slopes;  // [channels] of LINEAR, in place of the one slope; or null
    float slope;
    float low, high;
    int curve;

    __device__ __forceinline__ float operator()(float value) const {
        if (curve == LINEAR) return linear(value);
        return is_finite(value) ? curved(value) : value - value;
    }

    // Of a channel, which may have a slope of its own.
    __device__ __forceinline__ float operator()(float value, int channel) const {
        if (!slopes) return (*this)(value);
        return value < 0.0f ? slopes[channel] * value : value;
    }

    __device__ __forceinline__ float linear(float value) const {
        return value < 0.0f ? slope * value : value;
    }

    // Of t = tanh(x / 2), sigmoid is (1 + t) / 2 and e^x - 1 is 2 t / (1 - t).
    __device__ __forceinline__ float curved(float value) const {
        if (curve == CLIP) return fminf(fmaxf(value, low), high);
        if (curve == ERF) return erff(value);
        if (curve == EXP) return expf(value);
        if (curve == INVERSE) return __fdividef(1.0f, fmaxf(value, low));
        if (curve == INVERSE_ROOT) return rsqrtf(fmaxf(value, low));
        if (curve == SOFTPLUS) return fmaxf(value, 0.0f) + log1pf(expf(-fabsf(value)));
        const float t = tanhf(curve == TANH ? value : 0.5f * value);
        if (curve == TANH) return t;
        if (curve == SIGMOID) return fmaf(0.5f, t, 0.5f);
        return value < 0.0f ? slope * __fdividef(2.0f * t, 1.0f - t) : value;
    }
};

enum Border { REFLECT = 0, REPLICATE = 1, CONSTANT = 2 };

// Position on an axis continued past its ends; -1 where the value is a constant.
__device__ __forceinline__ int continued(int position, int extent, int border) {
    if (border == REFLECT) {
        position = abs(position);
        return min(position, 2 * (extent - 1) - position);
    }
    if (border == REPLICATE) return min(max(position, 0), extent - 1);
    return position >= 0 && position < extent ? position : -1;
}
