// Phases of a transposed convolution -> voxels.
//
// source [N, cells, C], with `channels` numbers of each phase one after another, -> channels of target
// [N, D, H, W, C']: voxel t is phase (t + origin) % stride of cell (t + origin) / stride, phases with W
// fastest. Lanes after the channels become 0. Reads and writes each number once; numbers of few channels
// are read one by one, from rows that neighbouring threads share.
//
// Measured 2026-11-30 (H200, fp16; bounds as in docs/gpu-engine.md): 1 channel, 64^3, 5.9 us, bound by 4.7 MB,
// 19 % of it.

#include "element.cuh"

struct Interleave {
    const Element* source;
    Element* target;          // first channel that is written
    Strides source_strides, target_strides;
    int extents[3];           // of the target
    int stride[3], origin[3];
    int channels;             // of a phase
    int vectors;              // of a voxel that are written
};

extern "C" __global__ void interleave(Interleave p) {
    const Index index = (Index)blockIdx.x * blockDim.x + threadIdx.x;
    const Index voxel = index / p.vectors, line = voxel / p.extents[2];
    const int first = (int)(index - voxel * p.vectors) * LANES;
    const int w = (int)(voxel - line * p.extents[2]);
    const int d = (int)(line / p.extents[1]), h = (int)(line - (Index)d * p.extents[1]);
    if (d >= p.extents[0]) return;
    const int at[3] = {d + p.origin[0], h + p.origin[1], w + p.origin[2]};
    int cell[3], phase = 0;
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
        cell[axis] = at[axis] / p.stride[axis];
        phase = phase * p.stride[axis] + at[axis] - cell[axis] * p.stride[axis];
    }
    const Strides& from = p.source_strides;
    const Element* source = p.source + blockIdx.y * from.patch + cell[0] * from.plane +
                            cell[1] * from.row + (Index)cell[2] * from.voxel +
                            (Index)phase * p.channels + first;
    Vector result;
    if (p.channels % LANES == 0 && first < p.channels) {
        result = load(source);
    } else {
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            result.lanes[lane] = first + lane < p.channels ? source[lane] : to_element(0.0f);
        }
    }
    const Strides& to = p.target_strides;
    store(p.target + blockIdx.y * to.patch + d * to.plane + h * to.row + (Index)w * to.voxel + first,
          result);
}
