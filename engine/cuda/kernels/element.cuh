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

// Normal distribution function. For numbers of 16 bits it is exact to 3e-7: its tail by formula 7.1.26
// of Abramowitz and Stegun takes half of erff's instructions, for which a pass would wait.
__device__ __forceinline__ float normal_distribution(float value) {
#ifdef ELEMENT_FLOAT
    return fmaf(0.5f, erff(0.70710678f * value), 0.5f);
#else
    const float t = __fdividef(1.0f, fmaf(0.3275911f * 0.70710678f, fabsf(value), 1.0f));
    float sum = fmaf(t, 0.5f * 1.061405429f, 0.5f * -1.453152027f);
    sum = fmaf(t, sum, 0.5f * 1.421413741f);
    sum = fmaf(t, sum, 0.5f * -0.284496736f);
    sum = fmaf(t, sum, 0.5f * 0.254829592f);
    const float tail = t * sum * expf(-0.5f * value * value);
    return value < 0.0f ? tail : 1.0f - tail;
#endif
}

enum Curve { LINEAR = 0, TANH = 1, SIGMOID = 2, ELU = 3, SOFTPLUS = 4, CLIP = 5, ERF = 6,
             EXP = 7, INVERSE = 8, INVERSE_ROOT = 9, GELU = 10, SWISH = 11, HARD_SWISH = 12,
             MISH = 13 };

// LINEAR and ELU bend at 0: below it x times slope, or e^x - 1 times slope. CLIP keeps x from low to
// high. INVERSE and INVERSE_ROOT are of an x of at least low. GELU, SWISH, HARD_SWISH and MISH are x
// times a share from 0 to 1, that of SWISH the sigmoid of slope * x + cube * x^3. What is not finite
// stays so, as -inf * 0 is NaN: an overflow is never hidden.
struct Activation {
    const float* slopes;  // [channels] of LINEAR, in place of the one slope; or null
    float slope, cube;
    float low, high;
    int curve;

    __device__ __forceinline__ float operator()(float value) const {
        if (curve == LINEAR) return linear(value);
        return is_finite(value) ? curved(curve, value) : value - value;
    }

    // Of a channel, which may have a slope of its own.
    __device__ __forceinline__ float operator()(float value, int channel) const {
        if (!slopes) return (*this)(value);
        return value < 0.0f ? slopes[channel] * value : value;
    }

    // Of all numbers of a vector from a channel on. The curve is chosen once: if each number chose it,
    // the code of all curves would lie between that of one number and that of the next.
    __device__ __forceinline__ void apply(float (&values)[LANES], int channel) const {
        if (slopes) {
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                values[lane] = (*this)(values[lane], channel + lane);
            }
            return;
        }
        switch (curve) {
            case LINEAR: apply_curve<LINEAR>(values); break;
            case SOFTPLUS: apply_curve<SOFTPLUS>(values); break;
            case CLIP: apply_curve<CLIP>(values); break;
            case ERF: apply_curve<ERF>(values); break;
            case EXP: apply_curve<EXP>(values); break;
            case INVERSE: apply_curve<INVERSE>(values); break;
            case INVERSE_ROOT: apply_curve<INVERSE_ROOT>(values); break;
            case GELU: apply_curve<GELU>(values); break;
            case SWISH: apply_curve<SWISH>(values); break;
            case HARD_SWISH: apply_curve<HARD_SWISH>(values); break;
            case MISH: apply_curve<MISH>(values); break;
            case TANH: apply_curve<TANH>(values); break;
            case SIGMOID: apply_curve<SIGMOID>(values); break;
            case ELU: apply_curve<ELU>(values); break;
        }
    }

    template <int CURVE>
    __device__ __forceinline__ void apply_curve(float (&values)[LANES]) const {
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            const float value = values[lane];  // whose own difference is 0, or NaN: without a branch
            values[lane] = CURVE == LINEAR ? linear(value) : curved(CURVE, value) + (value - value);
        }
    }

    __device__ __forceinline__ float linear(float value) const {
        return value < 0.0f ? slope * value : value;
    }

    // Of t = tanh(x / 2), sigmoid is (1 + t) / 2 and e^x - 1 is 2 t / (1 - t). Of n = e^x (e^x + 2),
    // tanh(softplus(x)) is n / (n + 2).
    __device__ __forceinline__ float curved(int curve, float value) const {
        if (curve == CLIP) return fminf(fmaxf(value, low), high);
        if (curve == ERF) return erff(value);
        if (curve == EXP) return expf(value);
        if (curve == INVERSE) return __fdividef(1.0f, fmaxf(value, low));
        if (curve == INVERSE_ROOT) return rsqrtf(fmaxf(value, low));
        if (curve == SOFTPLUS) return fmaxf(value, 0.0f) + log1pf(expf(-fabsf(value)));
        if (curve == GELU) return value * normal_distribution(value);
        if (curve == SWISH) {
            const float power = value * fmaf(cube * value, value, slope);
            return __fdividef(value, 1.0f + expf(-power));
        }
        if (curve == HARD_SWISH) {
            return value * fminf(fmaxf(fmaf(value, 1.0f / 6.0f, 0.5f), 0.0f), 1.0f);
        }
        if (curve == MISH) {
            const float power = expf(fminf(value, 20.0f)), n = power * (power + 2.0f);
            return value * __fdividef(n, n + 2.0f);
        }
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
