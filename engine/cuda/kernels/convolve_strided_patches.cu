// The first layer of a U-Net: a convolution of 4^3 and stride 2 of one input channel, straight from
// the patches, on Tensor Cores.
//
// patches float [N, D, H, W] -> target [N, D', H', W', K]. Reads 4 bytes a voxel of the patch and
// writes 2 K bytes one of the target. The matrix product has the target's voxels along a row as M, 16
// or 32 of the K outputs as N, and the 16 taps of a kernel plane as its depth. Neighbouring voxels read
// windows two apart, so that each pair of taps along W is one aligned word of a row as it is stored.
// A block keeps the input of some rows of some planes in shared memory, and its weights in registers.
//
// Measured 2026-11-26 (H200, fp16; bounds as in docs/gpu-engine.md): 1 to 32 channels, 128^3 to 64^3,
// 12.4 us, bound by 25 MB, 48 % of it.
// Alternative (2026-11-29): by cuDNN the layer's network takes 78.9 us, with this kernel 47.2.

#include "epilogue.cuh"

struct ConvolveStridedPatches {
    const float* patches;
    const Element* weights;    // as mma operands: [4][K / 8][32 lanes][4]
    Element* target;
    int extents[3];            // of a patch
    int target_extents[3];
    int origin[3], limit[3];   // first position that the target sees on each axis, and its end
    int border;
    int outputs;               // K
    int strips;                // of the target's width, a row
};

#ifndef ELEMENT_FLOAT

constexpr int KERNEL = 4;
constexpr int PLANES = 2, ROWS = 8, COLUMNS = 64;           // of the target, a block
constexpr int DEEP = 2 * PLANES + 2, HIGH = 2 * ROWS + 2;   // planes and rows that they see
constexpr int WORDS = COLUMNS + 1;                          // pairs of voxels of such a row
constexpr int PITCH = 80;                                   // 16 mod 32: two rows in unlike banks
constexpr int WARPS = 8;

// What a block sees, as pairs of numbers; each warp some rows.
__device__ __forceinline__ void load_rows(
    const ConvolveStridedPatches& p, const float* patch, unsigned* rows, int d, int h, int w
) {
    constexpr int EACH = (WORDS + 31) / 32;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int columns[EACH][2];
#pragma unroll
    for (int i = 0; i < EACH; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int voxel = w + 2 * (lane + 32 * i) + half;
            columns[i][half] = voxel < p.limit[2] ? continued(voxel, p.extents[2], p.border) : -1;
        }
#pragma unroll 2
    for (int line = warp; line < DEEP * HIGH; line += WARPS) {
        const int plane = d + line / HIGH, row = h + line % HIGH;
        int z = -1, y = -1;
        if (plane < p.limit[0]) z = continued(plane, p.extents[0], p.border);
        if (row < p.limit[1]) y = continued(row, p.extents[1], p.border);
        const float* source = patch + ((Index)z * p.extents[1] + y) * p.extents[2];
        float values[EACH][2];
#pragma unroll
        for (int i = 0; i < EACH; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int column = columns[i][half];
                values[i][half] = (z | y | column) >= 0 ? source[column] : 0.0f;
            }
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int word = lane + 32 * i;
            if (word < WORDS) rows[line * PITCH + word] = pair(values[i][0], values[i][1]);
        }
    }
}

// A warp takes 16 voxels of a row at a time.
template <int OUTPUTS>
__device__ __forceinline__ void convolve(const ConvolveStridedPatches& p) {
    constexpr int GROUPS = OUTPUTS / 8;
    __shared__ unsigned rows[DEEP * HIGH * PITCH];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int depth = p.target_extents[0], height = p.target_extents[1], width = p.target_extents[2];
    const int first_w = blockIdx.x % p.strips * COLUMNS, first_h = blockIdx.x / p.strips * ROWS;
    const int first_d = blockIdx.y * PLANES, patch = blockIdx.z;
    load_rows(
        p, p.patches + (Index)patch * p.extents[0] * p.extents[1] * p.extents[2], rows,
        2 * first_d + p.origin[0], 2 * first_h + p.origin[1], 2 * first_w + p.origin[2]
    );
    __syncthreads();
    const uint2* operands = reinterpret_cast<const uint2*>(p.weights);
    for (int run = 0; run < p.outputs / OUTPUTS; ++run) {
        uint2 weights[KERNEL][GROUPS];
#pragma unroll
        for (int plane = 0; plane < KERNEL; ++plane)
#pragma unroll
            for (int group = 0; group < GROUPS; ++group) {
                const int place = plane * (p.outputs / 8) + run * GROUPS + group;
                weights[plane][group] = operands[place * 32 + lane];
            }
        for (int task = warp; task < PLANES * ROWS; task += WARPS) {
            const int d = first_d + task / ROWS, h = first_h + task % ROWS;
            if (d >= depth || h >= height) continue;
            const unsigned* seen =
                rows + (task / ROWS * 2 * HIGH + task % ROWS * 2 + t / 2) * PITCH + g + (t & 1);
            Element* line = p.target + run * OUTPUTS +
                            (((Index)patch * depth + d) * height + h) * width * p.outputs;
            for (int column = 0; column < COLUMNS && first_w + column < width; column += 16) {
                float sums[GROUPS][4];
#pragma unroll
                for (int group = 0; group < GROUPS; ++group)
#pragma unroll
                    for (int i = 0; i < 4; ++i) sums[group][i] = 0.0f;
#pragma unroll
                for (int plane = 0; plane < KERNEL; ++plane) {
                    const unsigned* even = seen + plane * HIGH * PITCH + column;
                    const unsigned* odd = even + 2 * PITCH;
                    const uint4 a = {even[0], even[8], odd[0], odd[8]};
#pragma unroll
                    for (int group = 0; group < GROUPS; ++group) {
                        const uint2& b = weights[plane][group];
                        multiply_add(sums[group], a, b.x, b.y);
                    }
                }
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int w = first_w + column + half * 8 + g;
                    write_voxel(sums, half, line, (Index)w * p.outputs, w < width, t);
                }
            }
        }
    }
}

template <int OUTPUTS>
__global__ void __launch_bounds__(WARPS * 32, 2)
    convolve_strided_patches(ConvolveStridedPatches p) {
    convolve<OUTPUTS>(p);
}

#endif
