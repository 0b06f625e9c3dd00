// Checks of a convolution: numbers that expose faults, a fingerprint of its whole output, and its exact
// sums at some voxels.
//
// Numbers are whole and small, so that every order of summation gives the same sum without any
// rounding, in every precision: a right output is right to the last bit.
//
// Measured 2026-11-27 (H200, fp16; bounds as in docs/gpu-engine.md): 32 channels, 128^3, filled in 126 us,
// 25 % of the bound by bytes; their fingerprint takes 62 us, 51 % of it.

#include "element.cuh"

#include <cuda_fp16.h>

struct FillNumbers {
    void* target;
    Index count;
    Index inner;     // numbers from one source channel to the next
    int channels;    // source channels of a group, a cycle of inner x channels numbers
    int kind;
    int density;     // of 65536 numbers, how many are not 0
    unsigned seed;
    int fraction;    // whether numbers have digits below 2^-11, which the low part of a pair holds
    int split_fp16;  // whether to store pairs of fp16, of 8 numbers first the high parts
    int is_float;    // whether to store float in every precision
    int extents[3];  // of UNEVEN patches
    int cell[3];     // of their parts, each with a share of ones of its own
};

struct Fingerprint {
    const unsigned* words;
    Index count;
    int are_pairs;   // each word two numbers of 16 bits
    unsigned long long* sum;
};

struct Plain {
    const Element* source;
    const Element* weight;
    void* target;
    int source_extents[3], source_channels;
    int target_extents[3], target_channels;
    int kernel[3], stride[3], before[3], dilation[3], groups;
    int patches;
    int used_channels;    // of the source or a group of it; the others are 0
    int is_gradient;
    int is_translated;    // a float result [N, K, D, H, W]
};

struct Expect {
    const void* source;
    const void* weight;
    const Index* voxels;  // counted through all patches
    double* sums;         // [2][samples][target channels]: of products, and of their magnitudes
    int source_extents[3], source_channels;
    int target_extents[3], target_channels;
    int kernel[3], stride[3], before[3], dilation[3], groups;
    int samples;
    int is_gradient;
    int split_fp16;
};

struct Compare {
    const Element* target;
    const Index* voxels;
    const double* sums;
    unsigned* found;      // how many are wrong, and the bits of the largest error in bounds
    double of_result, of_products, smallest;
    int samples, channels;
};

enum Numbers { NOISE = 0, SIGNS = 1, PAIRED = 2, OPPOSED = 3, UNEVEN = 4 };

constexpr float NOISE_WIDTH = 0.2f;
constexpr int HIGHEST = 15;           // of PAIRED and OPPOSED
constexpr float LAST_DIGIT = 1.0f / 4096;
constexpr int SUMMING = 256;          // threads of a block that sums
constexpr int EACH = 8;               // channels of a thread of plain_eights

// lowbias32 by C. Wellons.
__device__ __forceinline__ unsigned mixed(unsigned x) {
    x ^= x >> 16;
    x *= 0x7FEB352Du;
    x ^= x >> 15;
    x *= 0x846CA68Bu;
    return x ^ (x >> 16);
}

__device__ __forceinline__ unsigned random_bits(unsigned seed, Index index) {
    return mixed((unsigned)index ^ mixed((unsigned)(index >> 32) ^ seed));
}

__device__ __forceinline__ float sign(unsigned bits, int density) {
    if ((int)(bits & 0xFFFF) >= density) return 0.0f;
    return bits & 0x10000 ? 1.0f : -1.0f;
}

// 0 or 1; the share of ones is drawn per cell of a patch, for all channels alike.
__device__ __forceinline__ float uneven(const FillNumbers& p, Index index, unsigned bits) {
    Index rest = index / p.channels, cell = 0, cells = 1;
    for (int axis = 2; axis >= 0; --axis) {
        cell += cells * (rest % p.extents[axis] / p.cell[axis]);
        cells *= (p.extents[axis] + p.cell[axis] - 1) / p.cell[axis];
        rest /= p.extents[axis];
    }
    return bits < random_bits(~p.seed, cell + cells * rest) ? 1.0f : 0.0f;
}

// The upper half of the channels repeats the lower one in PAIRED numbers, and is its opposite but for
// a few in OPPOSED ones, so that their sum of products grows large and falls back.
__device__ __forceinline__ float number(const FillNumbers& p, Index index) {
    const unsigned bits = random_bits(p.seed, index);
    if (p.kind == NOISE) return ((bits >> 8) * (1.0f / 16777216) - 0.5f) * NOISE_WIDTH;
    if (p.kind == SIGNS) {
        const float low = p.fraction ? (int)(bits >> 17 & 3) - 1 : 0;
        return sign(bits, p.density) + low * LAST_DIGIT;
    }
    if (p.kind == UNEVEN) return uneven(p, index, bits);
    const int half = p.channels / 2;
    const bool is_upper = index / p.inner % p.channels >= half;
    const Index partner = is_upper ? index - half * p.inner : index;
    const int size = (random_bits(p.seed, partner) >> 16) % HIGHEST + 1;
    if (p.kind == PAIRED || !is_upper) return size;
    return sign(mixed(bits), p.density) - size;
}

extern "C" __global__ void fill_numbers(FillNumbers p) {
    const Index step = (Index)gridDim.x * blockDim.x;
    for (Index i = (Index)blockIdx.x * blockDim.x + threadIdx.x; i < p.count; i += step) {
        const float value = number(p, i);
        if (p.split_fp16) {
            __half* pair = static_cast<__half*>(p.target) + i / 8 * 16 + i % 8;
            const __half high = __float2half_rn(value);
            pair[0] = high;
            pair[8] = __float2half_rn(value - __half2float(high));
        } else if (p.is_float) {
            static_cast<float*>(p.target)[i] = value;
        } else {
            static_cast<Element*>(p.target)[i] = to_element(value);
        }
    }
}

// An odd number for each place; no two of the first 2^32 places have the same.
__device__ __forceinline__ unsigned long long own_factor(Index index) {
    const unsigned bits = mixed((unsigned)index ^ (unsigned)(index >> 32) * 0x9E3779B1u);
    return bits * 0x9E3779B97F4A7C15ull | 1;
}

// The sum of all words, each times a number of its own, modulo 2^64: one wrong word always changes it,
// and several leave it as it was by a chance below 2^-32. Zeros of both signs are the same.
extern "C" __global__ void fingerprint(Fingerprint p) {
    __shared__ unsigned long long sums[SUMMING];
    const Index step = (Index)gridDim.x * blockDim.x;
    unsigned long long sum = 0;
    for (Index i = (Index)blockIdx.x * blockDim.x + threadIdx.x; i < p.count; i += step) {
        unsigned word = p.words[i];
        if (p.are_pairs) {
            if ((word & 0xFFFFu) == 0x8000u) word &= 0xFFFF0000u;
            if ((word & 0xFFFF0000u) == 0x80000000u) word &= 0xFFFFu;
        } else if (word == 0x80000000u) {
            word = 0;
        }
        sum += own_factor(i) * word;
    }
    sums[threadIdx.x] = sum;
    for (int half = SUMMING / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0) atomicAdd(p.sum, sums[0]);
}

__device__ __forceinline__ double stored(const void* numbers, Index index, bool split_fp16) {
    if (!split_fp16) return to_float(static_cast<const Element*>(numbers)[index]);
    const __half* pair = static_cast<const __half*>(numbers) + index / 8 * 16 + index % 8;
    return (double)__half2float(pair[0]) + (double)__half2float(pair[8]);
}

// Where a tap finds the source of a result's voxel along an axis; -1 outside.
template <class Shape>
__device__ __forceinline__ int seen(const Shape& p, int axis, int voxel, int tap) {
    const int stride = p.stride[axis], way = tap * p.dilation[axis];
    int at = voxel * stride - p.before[axis] + way;
    if (p.is_gradient) {
        at = voxel + p.before[axis] - way;
        if (at % stride) return -1;
        at /= stride;
    }
    return at >= 0 && at < p.source_extents[axis] ? at : -1;
}

// Calls `sum` for each tap that finds a source of a result's voxel, with the number of the tap and
// the source's voxel. Voxels are counted through all patches.
template <class Shape, class Sum>
__device__ __forceinline__ void over_taps(const Shape& p, Index voxel, const Sum& sum) {
    int place[3];
    for (int axis = 2; axis >= 0; --axis) {
        place[axis] = voxel % p.target_extents[axis];
        voxel /= p.target_extents[axis];
    }
    const Index patch = voxel;
    for (int d = 0; d < p.kernel[0]; ++d) {
        const int depth = seen(p, 0, place[0], d);
        for (int h = 0; h < p.kernel[1]; ++h) {
            const int height = seen(p, 1, place[1], h);
            if (depth < 0 || height < 0) continue;
            const Index plane = patch * p.source_extents[0] + depth;
            const Index row = (plane * p.source_extents[1] + height) * p.source_extents[2];
            const int first = (d * p.kernel[1] + h) * p.kernel[2];
#pragma unroll 1
            for (int w = 0; w < p.kernel[2]; ++w) {
                const int column = seen(p, 2, place[2], w);
                if (column >= 0) sum(first + w, row + column);
            }
        }
    }
}

// The source channels that a channel of the result sums up, and where their weights lie.
struct Summands {
    int first, count;
    Index weight;                // of the first source channel and tap
    Index step, next, beside;    // to the next source channel, tap, and channel of the result

    template <class Shape>
    __device__ __forceinline__ Summands(const Shape& p, int channel) {
        const int taps = p.kernel[0] * p.kernel[1] * p.kernel[2];
        const int outputs = p.target_channels / p.groups, group = channel / outputs;
        count = p.source_channels / p.groups;
        first = group * count;
        step = p.is_gradient ? (Index)taps * outputs : 1;
        next = p.is_gradient ? outputs : count;
        beside = p.is_gradient ? 1 : (Index)taps * count;
        weight = p.is_gradient ? (Index)first * step + channel - group * outputs : channel * beside;
    }

    // Whether their numbers lie in whole vectors.
    __device__ __forceinline__ bool are_vectors() const { return count % LANES == 0; }

    // The weights of as many of them as a vector holds.
    __device__ __forceinline__ Vector factors(const Element* weights) const {
        if (step == 1) return load(weights);
        Vector gathered;
        for (int lane = 0; lane < LANES; ++lane) gathered.lanes[lane] = weights[lane * step];
        return gathered;
    }
};

// A convolution or its data gradient in the plainest way that is not slow: a thread finds the sources
// of one voxel, and sums some of its channels, which are of one group.
template <int CHANNELS>
__device__ __forceinline__ void convolve_plainly(const Plain& p) {
    const Index each = (Index)p.target_extents[0] * p.target_extents[1] * p.target_extents[2];
    const Index voxel = (Index)blockIdx.x * blockDim.x + threadIdx.x;
    const int channel = (blockIdx.y * blockDim.y + threadIdx.y) * CHANNELS;
    if (voxel >= each * p.patches || channel >= p.target_channels) return;
    const Summands summands(p, channel);
    float sums[CHANNELS] = {};
    over_taps(p, voxel, [&](int tap, Index from) {
        const Element* source = p.source + from * p.source_channels + summands.first;
        const Element* weight = p.weight + summands.weight + tap * summands.next;
        if (!summands.are_vectors() || p.used_channels % LANES) {
#pragma unroll 1
            for (int c = 0; c < p.used_channels; ++c, weight += summands.step) {
                const float value = to_float(source[c]);
                for (int k = 0; k < CHANNELS; ++k)
                    sums[k] = fmaf(to_float(weight[k * summands.beside]), value, sums[k]);
            }
            return;
        }
#pragma unroll 1
        for (int c = 0; c < p.used_channels; c += LANES, weight += LANES * summands.step) {
            const Vector values = load(source + c);
            for (int k = 0; k < CHANNELS; ++k) {
                const Vector factors = summands.factors(weight + k * summands.beside);
                for (int lane = 0; lane < LANES; ++lane)
                    sums[k] = fmaf(to_float(factors.lanes[lane]), to_float(values.lanes[lane]), sums[k]);
            }
        }
    });
    for (int k = 0; k < CHANNELS; ++k) {
        if (p.is_translated) {
            const Index line = voxel / each * p.target_channels + channel + k;
            static_cast<float*>(p.target)[line * each + voxel % each] = sums[k];
        } else {
            static_cast<Element*>(p.target)[voxel * p.target_channels + channel + k] = to_element(sums[k]);
        }
    }
}

// What all others are compared with, so it shares nothing with them.
extern "C" __global__ void plain(Plain p) { convolve_plainly<1>(p); }

// The same for groups of whole eights of channels.
extern "C" __global__ void plain_eights(Plain p) { convolve_plainly<EACH>(p); }

// A block a voxel and 64 of its channels.
extern "C" __global__ void expect(Expect p) {
    const int channel = blockIdx.y * blockDim.x + threadIdx.x;
    if (channel >= p.target_channels) return;
    const Summands summands(p, channel);
    double sum = 0, magnitudes = 0;
    const auto add = [&](double factor, double value) {
        sum += factor * value;
        magnitudes += fabs(factor * value);
    };
    over_taps(p, p.voxels[blockIdx.x], [&](int tap, Index from) {
        Index source = from * p.source_channels + summands.first;
        Index weight = summands.weight + tap * summands.next;
        if (p.split_fp16 || !summands.are_vectors()) {
            for (int c = 0; c < summands.count; ++c, ++source, weight += summands.step)
                add(stored(p.weight, weight, p.split_fp16), stored(p.source, source, p.split_fp16));
            return;
        }
#pragma unroll 1
        for (int c = 0; c < summands.count; c += LANES, source += LANES, weight += LANES * summands.step) {
            const Vector values = load(static_cast<const Element*>(p.source) + source);
            const Vector factors = summands.factors(static_cast<const Element*>(p.weight) + weight);
            for (int lane = 0; lane < LANES; ++lane)
                add(to_float(factors.lanes[lane]), to_float(values.lanes[lane]));
        }
    });
    const Index place = (Index)blockIdx.x * p.target_channels + channel;
    p.sums[place] = sum;
    p.sums[place + (Index)p.samples * p.target_channels] = magnitudes;
}

extern "C" __global__ void compare(Compare p) {
    const Index count = (Index)p.samples * p.channels;
    const Index place = (Index)blockIdx.x * blockDim.x + threadIdx.x;
    if (place >= count) return;
    const Index voxel = p.voxels[place / p.channels];
    const double got = to_float(p.target[voxel * p.channels + place % p.channels]);
    const double bound = p.of_result * fabs(p.sums[place]) +
                         p.of_products * p.sums[place + count] + p.smallest;
    float error = fabs(got - p.sums[place]) / bound;
    if (!is_finite(error)) error = 3.4e38f;
    if (error > 1.0f) atomicAdd(p.found, 1u);
    atomicMax(p.found + 1, __float_as_uint(error));
}
