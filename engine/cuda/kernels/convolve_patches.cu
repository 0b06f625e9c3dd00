// The first layer: a convolution of few input channels, straight from the patches, on Tensor Cores.
//
// patches float [N, C, D, H, W] -> target [N, D', H', W', K], stride 1, kernel at most 8 wide.
// Reads 4 bytes and writes 2 K bytes a voxel. The matrix product has the target's voxels along a
// row as M, 16 or 32 of the K outputs as N, and lines x 8 taps as its depth, a line being a
// (c, i, j) of channel and kernel plane and row. Consecutive voxels read shifted windows of one
// input row, so an operand is read from the row itself: stored twice, once shifted by one voxel, so
// that each pair of numbers is one aligned word. A block loops along the depth with a ring of
// planes, and computes statistics of its output if a normalisation follows.
//
// 7^3, 1 to 32 channels, 128^3 voxels, fp16, H200: 0.180 ms, with statistics 0.202 ms (in a pass of
// their own 0.228 ms). With the taps packed as channels and cuDNN's best plan it took 0.44 ms.
//
// Measured 2026-11-26 (H200, fp16; bounds as in docs/gpu-engine.md): 7^3, 1 to 32 channels, 128^3, with
// statistics 0.199 ms, bound by 46 GFLOP, 30 % of it.

#include "convolve_patches.cuh"
#include "epilogue.cuh"

constexpr int THREADS = 256;
constexpr int RING = 8;        // planes in shared memory; the kernel has at most 7
constexpr int COLUMNS = 128;   // of the target, a block
constexpr int PITCH = 144;     // stored columns of a row; keeps both copies in different banks

#ifndef ELEMENT_FLOAT

// One plane of one input channel, with its border, twice.
__device__ __forceinline__ void load_plane(
    const ConvolvePatches& p, const float* patch, const Start& start, Element* ring, int d, int h,
    int w, int lines
) {
    for (int c = 0; c < p.patch_channels; ++c) {
        const int slot = (d - p.origin[0]) % RING;
        Element* plane = ring + (c * RING + slot) * lines * 2 * PITCH;
        const int z = d < p.limit[0] ? continued(d + start.at[0], p.extents[0], p.border) : -1;
        for (int place = threadIdx.x; place < lines * PITCH; place += blockDim.x) {
            const int line = place / PITCH, column = place - line * PITCH;
            const int row = h + line, voxel = w + column;
            int y = -1, x = -1;
            if (row < p.limit[1]) y = continued(row + start.at[1], p.extents[1], p.border);
            if (voxel < p.limit[2]) x = continued(voxel + start.at[2], p.extents[2], p.border);
            float value = 0.0f;
            if (z >= 0 && y >= 0 && x >= 0) {
                value = patch[(((Index)c * p.extents[0] + z) * p.extents[1] + y) * p.extents[2] + x];
            }
            Element* copies = plane + line * 2 * PITCH;
            copies[column] = to_element(value);
            if (column) copies[PITCH + column - 1] = to_element(value);
        }
    }
}

// Of COUNT numbers in each of the lanes 4 g + t of a warp, the sum over g of the one that this lane
// is left with: number g / (8 / COUNT).
template <int COUNT>
__device__ __forceinline__ float sum_of_own(const float (&numbers)[COUNT], int lane) {
    float left[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) left[i] = numbers[i];
    int distance = 16;
#pragma unroll
    for (int half = COUNT / 2; half; half /= 2, distance /= 2) {
        const bool upper = lane & distance;
#pragma unroll
        for (int i = 0; i < half; ++i) {
            const float given = upper ? left[i] : left[half + i];
            left[i] = (upper ? left[half + i] : left[i]) + __shfl_xor_sync(~0u, given, distance);
        }
    }
#pragma unroll
    for (; distance >= 4; distance /= 2) left[0] += __shfl_xor_sync(~0u, left[0], distance);
    return left[0];
}

// Moments of one channel, that which sum_of_own leaves, of a warp's voxels of a row, of which only
// the first may lie inside.
template <int TILES, int GROUPS>
__device__ __forceinline__ Moments measured(
    const float (&sums)[TILES][GROUPS][4], int inside, int lane
) {
    constexpr int OWN = 2 * GROUPS;  // channels of a lane
    float shift[OWN], sum[OWN], squares[OWN];
#pragma unroll
    for (int channel = 0; channel < OWN; ++channel) {
        // The first voxel's, which lanes 0 to 3 hold.
        shift[channel] = __shfl_sync(~0u, sums[0][channel / 2][channel % 2], lane % 4);
        sum[channel] = squares[channel] = 0.0f;
    }
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (tile * 16 + half * 8 + lane / 4 >= inside) continue;
#pragma unroll
            for (int channel = 0; channel < OWN; ++channel) {
                const float value = sums[tile][channel / 2][2 * half + channel % 2];
                const float deviation = value - shift[channel];
                sum[channel] += deviation;
                squares[channel] = fmaf(deviation, deviation, squares[channel]);
            }
        }
    }
    // The eight lanes of a channel have the same shift, which the sum is eight times, exactly.
    const float middle = sum_of_own(shift, lane) * 0.125f, total = sum_of_own(sum, lane);
    const float offset = total / inside;
    return {(float)inside, middle + offset, sum_of_own(squares, lane) - offset * total};
}

// A warp takes 64 voxels of a row at a time; block of 8 warps.
template <int OUTPUTS>
__device__ __forceinline__ void convolve(const ConvolvePatches& p) {
    constexpr int TILES = 4, GROUPS = OUTPUTS / 8;
    extern __shared__ char shared[];
    uint2* weights = reinterpret_cast<uint2*>(shared);          // [steps][GROUPS][32]
    int2* places = reinterpret_cast<int2*>(weights + p.steps * GROUPS * 32);  // of the lines of each step, in words: [2][steps + 1]
    Element* ring = reinterpret_cast<Element*>(places + 2 * (p.steps + 1));

    const int blocks_w = (p.target_extents[2] + COLUMNS - 1) / COLUMNS;
    const int first_w = blockIdx.x % blocks_w * COLUMNS, first_h = blockIdx.x / blocks_w * p.rows;
    const int first_d = blockIdx.y * p.planes;
    const int last_d = min(first_d + p.planes, p.target_extents[0]);
    const int lines = p.rows + p.kernel[1] - 1;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int runs = p.outputs / OUTPUTS, run = blockIdx.z % runs, number = blockIdx.z / runs;
    const Start start = start_of(p, number);
    const Inside real = inside_of(p, p.target_extents, number);
    const float* patch = p.patches + (Index)(ARE_BLOCKS ? 0 : number) * p.patch_channels * p.extents[0] *
                                         p.extents[1] * p.extents[2];
    Element* target = p.target + run * OUTPUTS +
                      (Index)number * p.target_extents[0] * p.target_extents[1] *
                          p.target_extents[2] * p.outputs;

    // [steps][K / 8][32 lanes][4].
    const uint2* from = reinterpret_cast<const uint2*>(p.weights);
    for (int i = threadIdx.x; i < p.steps * GROUPS * 32; i += blockDim.x) {
        const int step = i / (GROUPS * 32), within = i - step * GROUPS * 32;
        weights[i] = from[(step * runs + run) * GROUPS * 32 + within];
    }
    const int h = first_h + p.origin[1], w = first_w + p.origin[2];
    // The ring's slots follow the planes from the first that any block sees.
    for (int d = first_d; d < first_d + p.kernel[0] - 1; ++d) {
        load_plane(p, patch, start, ring, d + p.origin[0], h, w, lines);
    }

    Moments moments{0.0f, 0.0f, 0.0f};
    const int used = p.patch_channels * p.kernel[0] * p.kernel[1];
    const unsigned* words = reinterpret_cast<const unsigned*>(ring) +
                            (g & 1 ? PITCH / 2 : 0) + g / 2 + t;
    for (int d = first_d; d < last_d; ++d) {
        int2* place = places + (d & 1) * (p.steps + 1);
        for (int line = threadIdx.x; line < 2 * (p.steps + 1); line += blockDim.x) {
            const int known = min(line, used - 1);  // the lines that fill up have no weight
            const int j = known % p.kernel[1], plane = known / p.kernel[1];
            const int i = plane % p.kernel[0], c = plane / p.kernel[0];
            reinterpret_cast<int*>(place)[line] = ((c * RING + (d + i) % RING) * lines + j) * PITCH;
        }
        load_plane(p, patch, start, ring, d + p.kernel[0] - 1 + p.origin[0], h, w, lines);
        __syncthreads();
        for (int task = warp; task < 2 * p.rows; task += blockDim.x / 32) {
            const int row = task / 2, column = task % 2 * 64;
            if (first_h + row >= p.target_extents[1] || first_w + column >= p.target_extents[2]) {
                continue;
            }
            float sums[TILES][GROUPS][4];
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
                for (int group = 0; group < GROUPS; ++group)
#pragma unroll
                    for (int i = 0; i < 4; ++i) sums[tile][group][i] = 0.0f;
            const unsigned* own = words + row * PITCH + column / 2;
            int2 next = place[0];
#pragma unroll 2
            for (int step = 0; step < p.steps; ++step) {
                const unsigned *even = own + next.x, *odd = own + next.y;
                next = place[step + 1];
                uint2 b[GROUPS];
#pragma unroll
                for (int group = 0; group < GROUPS; ++group) {
                    b[group] = weights[(step * GROUPS + group) * 32 + lane];
                }
#pragma unroll
                for (int tile = 0; tile < TILES; ++tile) {
                    const uint4 a = {even[tile * 8], even[tile * 8 + 4], odd[tile * 8],
                                     odd[tile * 8 + 4]};
#pragma unroll
                    for (int group = 0; group < GROUPS; ++group) {
                        multiply_add(sums[tile][group], a, b[group].x, b[group].y);
                    }
                }
            }
            if (p.partials) {
                const int inside = min(16 * TILES, real.extents[2] - first_w - column);
                if (!ARE_BLOCKS || (d < real.extents[0] && first_h + row < real.extents[1] &&
                                    inside > 0)) {
                    moments.merge(measured(sums, inside, lane));
                }
            }
            Element* line = target + (((Index)d * p.target_extents[1] + first_h + row) *
                                          p.target_extents[2] + first_w + column) * p.outputs;
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int voxel = tile * 16 + half * 8 + g;
                    const bool inside = first_w + column + voxel < p.target_extents[2];
                    write_voxel(sums[tile], half, line, voxel * p.outputs, inside, t);
                }
            }
        }
    }
    if (!p.partials) return;
    __syncthreads();
    Moments* joined = reinterpret_cast<Moments*>(ring);  // [warps][OUTPUTS]; the planes are done with
    constexpr int ALIKE = 4 / GROUPS;                    // lanes that are left with a channel
    const int left = g / ALIKE;
    if (g % ALIKE == 0) joined[warp * OUTPUTS + left / 2 * 8 + 2 * t + left % 2] = moments;
    __syncthreads();
    if (threadIdx.x >= OUTPUTS) return;
    for (int other = 1; other < blockDim.x / 32; ++other) {
        joined[threadIdx.x].merge(joined[other * OUTPUTS + threadIdx.x]);
    }
    store_partial(
        p.partials, number, p.outputs, run * OUTPUTS + threadIdx.x, joined[threadIdx.x]
    );
}

template <int OUTPUTS>
__global__ void __launch_bounds__(THREADS, 2) convolve_patches(ConvolvePatches p) {
    convolve<OUTPUTS>(p);
}

#endif
