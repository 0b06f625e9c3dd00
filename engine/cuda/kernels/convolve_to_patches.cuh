// What both kernels of the last layer are told.
#pragma once

#include "blocks.cuh"

struct ConvolveToPatches {
    const Element* source;
    const Element* weights;  // operands, as each kernel takes them
    const float* bias;       // [K], or null
    float* translated;
    int* overflow;
    Strides source_strides;
    int channels;
    int extents[3];          // of the source, as the convolution sees it
    int target_extents[3];
    int kernel[3];
    int origin[3];
    int border, shuffled;
    int rows;                // of the target, a block
    int outputs;             // K
    Activation activation;
#ifdef IN_BLOCKS
    Blocks blocks;
#endif
};
