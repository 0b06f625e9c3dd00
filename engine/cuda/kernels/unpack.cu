// The translated patches, float [N, C, D, H, W], from channels-last tensors.
//
// unpack: activation(source * factor + summand); reads the source once, writes each voxel once.
// sum_taps: source [N, planes, H + kH - 1, W + kW - 1, (o, i, j)] holds the summands of a last
// convolution; reads it once (each 16 bytes are one row of taps), writes 4 bytes a voxel.
// Both raise a flag if a result is not finite.
// add_patches: for a network that adds its input to its output; moves three floats a voxel.
//
// Measured 2026-11-29 (H200, fp16; bounds as in docs/gpu-engine.md): 8 channels to 1, 128^3, 15.6 us, 64 %
// of the bound by bytes.

#include "blocks.cuh"

struct Unpack {
    const Element* source;    // first voxel and channel of the view
    const float* factor;      // [patches or 1][channels], or null
    const float* summand;
    float* translated;        // first channel that is written
    int* overflow;
    Index patch_stride, plane_stride, row_stride;
    int voxel_stride, table_stride;
    int extents[3];
    int count, channels;      // written, and of the translated patches
    Activation activation;
#ifdef IN_BLOCKS
    Blocks blocks;
#endif
};

extern "C" __global__ void unpack(Unpack p) {
    const Index voxels = (Index)p.extents[0] * p.extents[1] * p.extents[2];
    const Index voxel = (Index)blockIdx.x * blockDim.x + threadIdx.x;
    if (voxel >= voxels) return;
    const int patch = blockIdx.y;
    const int line = voxel / p.extents[2];
    const int plane = line / p.extents[1];
    const Element* source = p.source + patch * p.patch_stride + plane * p.plane_stride +
                            (line - plane * p.extents[1]) * p.row_stride +
                            (voxel - (Index)line * p.extents[2]) * p.voxel_stride;
    Index place = (Index)patch * p.channels * voxels + voxel, channel_step = voxels;
#ifdef IN_BLOCKS
    const Start start = p.blocks.start(patch);
    const Inside inside = p.blocks.inside(start);
    const int row = line - plane * p.extents[1], column = voxel - (Index)line * p.extents[2];
    if (plane >= inside.extents[0] || row >= inside.extents[1] || column >= inside.extents[2]) return;
    place = p.blocks.place(start.at[0] + plane, start.at[1] + row, start.at[2] + column);
    channel_step = p.blocks.voxels();
#endif
    bool finite = true;
    for (int channel = 0; channel < p.count; ++channel) {
        float value = to_float(source[channel]);
        if (p.factor) {
            const int entry = patch * p.table_stride + channel;
            value = fmaf(value, p.factor[entry], p.summand[entry]);
        }
        value = p.activation(value, channel);
        finite = finite && is_finite(value);
        p.translated[place + channel * channel_step] = value;
    }
    if (!finite) *p.overflow = 1;
}

struct SumTaps {
    const Element* source;
    const float* bias;        // [channels], or null
    float* translated;        // first patch and plane that is written
    int* overflow;
    int planes;               // of the source
    int extents[3];           // of the translated patches
    int channels, source_channels;
    int taps[2], lane_width;
    Activation activation;
#ifdef IN_BLOCKS
    Blocks blocks;
#endif
};

// Block: two rows of one plane, so that what is read of a voxel is a whole 32-byte sector;
// blockDim.x columns of the source.
extern "C" __global__ void sum_taps(SumTaps p) {
    extern __shared__ float sums[];  // [2][lane_width][blockDim.x]
    const int height = p.extents[1], width = p.extents[2];
    const int source_width = width + p.taps[1] - 1, source_height = height + p.taps[0] - 1;
    const int step = blockDim.x - p.taps[1] + 1;
    const int column = blockIdx.x * step + threadIdx.x, row = blockIdx.y * 2;
    const int patch = blockIdx.z / p.planes, plane = blockIdx.z - patch * p.planes;
    const int lines = min(p.taps[0] + 1, source_height - row);
    const Index line = (Index)source_width * p.source_channels;
    const Element* source =
        p.source + ((Index)blockIdx.z * source_height + row) * line + column * p.source_channels;
    Index voxels = (Index)p.extents[0] * height * width;
    int rows = height, columns = width, pitch_w = width;
    float* translated = p.translated + (Index)patch * p.channels * voxels +
                        ((Index)plane * height + row) * width + column;
#ifdef IN_BLOCKS
    const Start start = p.blocks.start(patch);
    const Inside inside = p.blocks.inside(start);
    if (p.blocks.plane + plane >= inside.extents[0]) return;
    rows = inside.extents[1], columns = inside.extents[2], pitch_w = p.blocks.volume[2];
    voxels = p.blocks.voxels();
    translated = p.translated + p.blocks.place(start.at[0] + p.blocks.plane + plane,
                                               start.at[1] + row, start.at[2] + column);
#endif
    const int pitch = p.lane_width * blockDim.x;
    bool finite = true;
    for (int channel = 0; channel < p.channels; ++channel, translated += voxels) {
        for (int first = 0; first < p.lane_width; first += LANES) {
            float sum[2][LANES];
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) sum[0][lane] = sum[1][lane] = 0.0f;
            if (column < source_width) {
#pragma unroll 8
                for (int i = 0; i < lines; ++i) {
                    const int place = (channel * p.taps[0] + i) * p.lane_width + first;
                    Vector upper, lower;
                    if (i < p.taps[0]) upper = load(source + i * line + place);
                    if (i > 0) lower = load(source + i * line + place - p.lane_width);
#pragma unroll
                    for (int lane = 0; lane < LANES; ++lane) {
                        if (i < p.taps[0]) sum[0][lane] += to_float(upper.lanes[lane]);
                        if (i > 0) sum[1][lane] += to_float(lower.lanes[lane]);
                    }
                }
            }
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                sums[(first + lane) * blockDim.x + threadIdx.x] = sum[0][lane];
                sums[pitch + (first + lane) * blockDim.x + threadIdx.x] = sum[1][lane];
            }
        }
        __syncthreads();
        if (threadIdx.x < step && column < columns) {
            for (int below = 0; below < min(2, rows - row); ++below) {
                const float* from = sums + below * pitch + threadIdx.x;
                float value = p.bias ? p.bias[channel] : 0.0f;
                for (int j = 0; j < p.taps[1]; ++j) value += from[j * blockDim.x + j];
                value = p.activation(value);
                finite = finite && is_finite(value);
                translated[below * pitch_w] = value;
            }
        }
        __syncthreads();
    }
    if (!finite) *p.overflow = 1;
}

struct AddPatches {
    const float* patches;
    float* translated;
    Index count;
};

extern "C" __global__ void add_patches(AddPatches p) {
    const Index index = (Index)blockIdx.x * blockDim.x + threadIdx.x;
    if (index < p.count) p.translated[index] += p.patches[index];
}
