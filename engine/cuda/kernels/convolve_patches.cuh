// Arguments of both kernels of the first layer.
#pragma once

#include "blocks.cuh"
#include "moments.cuh"

struct ConvolvePatches {
    const float* patches;
    const Element* weights;    // operands, as each kernel takes them
    Element* target;
    Moments* partials;         // [N][blocks of a patch][K], or null
    int patch_channels, extents[3];
    int target_extents[3];
    int kernel[2];             // planes and rows
    int origin[3], limit[3];   // first position that the target sees on each axis, and its end
    int border;
    int steps;                 // of two lines each
    int outputs;               // K
    int rows, planes;          // of the target, a block
#ifdef IN_BLOCKS
    Blocks blocks;
#endif
};
