// What a kernel computes as it reads: activation(source * factor + summand), of some of the channels
// that it reads one after another.
#pragma once

#include "element.cuh"

struct Part {
    const Element* source;
    const float* factor;   // [patches or 1][channels], or null
    const float* summand;
    Strides strides;
    int channels;
    int table_stride;      // 0 where one table serves all patches
    float slope;           // of values below 0
    int shuffled;          // whether the source holds cells of 2 x 2 x 2 voxels
    int origin[3];         // if so, of the first voxel
};

// activation(voxel * factor + summand) of a vector. slope: of values below 0, at most 1.
__device__ __forceinline__ uint4 activated(
    const uint4& voxel, const float (&factor)[LANES], const float (&summand)[LANES], float slope
) {
    Vector vector = reinterpret_cast<const Vector&>(voxel);
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
        const float value = fmaf(to_float(vector.lanes[lane]), factor[lane], summand[lane]);
        vector.lanes[lane] = to_element(fmaxf(value, slope * value));
    }
    return reinterpret_cast<const uint4&>(vector);
}

// Normalisation and activation of LANES channels of a part, with a slope of at most 1.
struct Prologue {
    float factor[LANES], summand[LANES], slope;

    __device__ __forceinline__ Prologue(const Part& part, int number, int channel) {
        slope = part.slope;
        const Index first = (Index)number * part.table_stride + channel;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            factor[lane] = part.factor ? part.factor[first + lane] : 1.0f;
            summand[lane] = part.factor ? part.summand[first + lane] : 0.0f;
        }
    }

    __device__ __forceinline__ uint4 operator()(const uint4& voxel) const {
        return activated(voxel, factor, summand, slope);
    }
};
