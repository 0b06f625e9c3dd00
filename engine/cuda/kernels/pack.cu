// Patches as they come -> channels last, the kernel taps of H and W as channels (c, i, j), padded.
//
// patches float [N, C, D, H, W] -> target [N, D', H', W', C'].
// Writes D' * H' * W' * C' elements a patch; each input row is read once for every row of the
// output that reads it, from the cache.
//
// Measured 2026-11-27 (H200, fp16; bounds as in docs/gpu-engine.md): 1 channel for a kernel of 5^3, 128^3,
// 83 us, 42 % of the bound by bytes.

#include "blocks.cuh"

struct Pack {
    const float* patches;   // first patch
    Element* target;
    int patch_channels, extents[3];
    int target_extents[3], channels;
    int origin[3], taps[2], stride[2];
    int border;
    int columns;            // of the target, a block
    int span;               // input columns that these see
    float border_value;     // of CONSTANT
#ifdef IN_BLOCKS
    Blocks blocks;
#endif
};

// Block: `columns` voxels of one row of one patch.
extern "C" __global__ void pack(Pack p) {
    extern __shared__ char shared[];
    int* places = reinterpret_cast<int*>(shared);                       // [channels]
    Element* seen = reinterpret_cast<Element*>(places + p.channels);    // [c][i][span]
    const int patch = blockIdx.z / p.target_extents[0];
    const int plane = blockIdx.z - patch * p.target_extents[0];
    const int row = blockIdx.y, first = blockIdx.x * p.columns;
    const int lines = p.patch_channels * p.taps[0];
    const Index plane_size = (Index)p.extents[1] * p.extents[2];
    const Start start = start_of(p, patch);
    const int given = ARE_BLOCKS ? 0 : patch;
    const float* source = p.patches + given * p.patch_channels * p.extents[0] * plane_size;

    for (int channel = threadIdx.x; channel < p.channels; channel += blockDim.x) {
        const int line = channel / p.taps[1];
        places[channel] = line < lines ? line * p.span + channel - line * p.taps[1] : -1;
    }
    const int d = continued(plane + p.origin[0] + start.at[0], p.extents[0], p.border);
    for (int place = threadIdx.x; place < lines * p.span; place += blockDim.x) {
        const int line = place / p.span, column = place - line * p.span;
        const int c = line / p.taps[0], i = line - c * p.taps[0];
        const int h =
            continued(row * p.stride[0] + i + p.origin[1] + start.at[1], p.extents[1], p.border);
        const int w = continued(first * p.stride[1] + column + p.origin[2] + start.at[2],
                                p.extents[2], p.border);
        const bool is_outside = d < 0 || h < 0 || w < 0;
        const float value =
            is_outside ? p.border_value : source[(c * p.extents[0] + d) * plane_size + (Index)h * p.extents[2] + w];
        seen[place] = to_element(value);
    }
    __syncthreads();

    const int vectors = p.channels / LANES;
    const int columns = min(p.columns, p.target_extents[2] - first);
    Element* target =
        p.target + (((Index)blockIdx.z * p.target_extents[1] + row) * p.target_extents[2] + first) *
                       p.channels;
    for (int index = threadIdx.x; index < columns * vectors; index += blockDim.x) {
        const int column = index / vectors, vector = index - column * vectors;
        Vector result;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            const int place = places[vector * LANES + lane];
            result.lanes[lane] = place < 0 ? to_element(0.0f) : seen[place + column * p.stride[1]];
        }
        store(target + (Index)index * LANES, result);
    }
}
