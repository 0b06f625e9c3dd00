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
