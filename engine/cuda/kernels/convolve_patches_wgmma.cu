// The first layer of one input channel and a 7^3 or 3^3 kernel, straight from the patches, by wgmma.
//
// patches float [N, 1, D, H, W] -> target [N, D', H', W', K], stride 1, K a multiple of 32.
// Reads 4 bytes and writes 2 K bytes a voxel. The matrix product has outputs as M, 64 channels of one
// row of the target or 32 of two rows; voxels of a row as N; and as its depth the 8 input rows that
// those see, 8 taps each, of the 7 planes: 448 for 343. Of 3^3, whose outputs are 32 of two rows, it is
// 4 rows of 4 taps of 3 planes: 48 for 27. The weights stay in registers for all of a block's walk
// through the depth. Each input row, of 3^3 each two, lies in shared memory as what its voxels see, 8
// numbers a voxel, so that it is an operand as it is, for each kernel plane and row.
//
// Two groups of four warps take turns: one has the matrix units while the other writes what it has.
// A third one loads the planes.
//
// Why so: by mma.sync each product of 2048 pairs reads 192 bytes of shared memory, which takes as long
// as the product and leaves 30 % of the units' peak; here a product of 131072 reads 4096, half of its
// time. A Winograd form F(2, 7) along W has 8 products for 14, but its operands change with each tap and
// it would round twice.
//
// 7^3, 1 to 32 / 64 channels, with statistics, fp16, H200: 128^3 0.097 / 0.186 ms (by mma.sync 0.195 / 0.364),
// 96^3 0.053 / 0.101 (0.125 / 0.205), 256x256x180 0.59 / 1.27 (1.38 / 2.77). 3^3, 1 to 32: 128^3 0.057
// (by mma.sync 0.106); there is little to multiply, and two blocks of 64 columns hide what one waits for.

#include "convolve_patches.cuh"
#include "matrix.cuh"
#include "order.cuh"
#include "wgmma.cuh"

#if !defined(ELEMENT_FLOAT) && defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int PIECE = 8;  // numbers that a voxel sees in a line of shared memory
constexpr int RING = 8;   // planes there
constexpr int TILES = 4;  // of 64 rows of the product, of a block
constexpr int GROUP = 128, THREADS = 3 * GROUP;
constexpr int LOADER_REGISTERS = 56;

// Of a kernel of 7^3 or 3^3: the input rows that a row of the target sees, or two of them, and as many
// taps of each; the input rows of a line; and the products of each kernel plane.
template <int KERNEL>
struct Depth {
    static constexpr int SEEN = KERNEL + 1, ROWS = PIECE / SEEN, PRODUCTS = SEEN * SEEN / 16;
};

// Loads input planes; each warp of a group every fourth row of them.
template <int KERNEL, int COLUMNS, int ROWS>
class Loader {
    static constexpr int PARTS = COLUMNS / 32, COUNT = (ROWS + 3) / 4;
    static constexpr int WORDS = Depth<KERNEL>::SEEN / 2, BESIDE = Depth<KERNEL>::ROWS;
    const ConvolvePatches& p;
    const float* patch;
    int first_z, first_row, first_y;  // of the block, in the patch and in the volume
    int places[PARTS + 1];            // of this lane's voxels in a row; -1 where it is 0
    float voxels[COUNT][PARTS + 1];

public:
    __device__ __forceinline__ Loader(
        const ConvolvePatches& p, const float* patch, const Start& start, int row, int column
    ) : p(p), patch(patch), first_z(start.at[0]), first_row(row + threadIdx.x % GROUP / 32),
        first_y(start.at[1]) {
#pragma unroll
        for (int part = 0; part <= PARTS; ++part) {
            const int own = column + part * 32 + threadIdx.x % 32;
            places[part] = -1;
            if (own < p.limit[2]) {
                places[part] = continued(own + start.at[2], p.extents[2], p.border);
            }
        }
    }

    // Into registers.
    __device__ __forceinline__ void fetch(int d) {
        const int z = d < p.limit[0] ? continued(d + first_z, p.extents[0], p.border) : -1;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int row = first_row + 4 * i;
            int y = -1;
            if (row < p.limit[1]) y = continued(row + first_y, p.extents[1], p.border);
            const float* line = patch + ((Index)z * p.extents[1] + y) * p.extents[2];
#pragma unroll
            for (int part = 0; part <= PARTS; ++part) {
                voxels[i][part] = 0.0f;
                if (z >= 0 && y >= 0 && places[part] >= 0) voxels[i][part] = line[places[part]];
            }
        }
    }

    // To shared memory, of each voxel it and those right of it that it sees.
    __device__ __forceinline__ void store(Element* plane) const {
        const int warp = threadIdx.x % GROUP / 32, lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int row = warp + 4 * i;
            if (row >= ROWS) break;
            Element* line = plane + (row / BESIDE * COLUMNS + lane) * PIECE + row % BESIDE * 2 * WORDS;
            unsigned pairs[PARTS + 1];  // of each voxel and the one right of it
#pragma unroll
            for (int part = 0; part <= PARTS; ++part) {
                float right = __shfl_sync(~0u, voxels[i][part], (lane + 1) % 32);
                if (part < PARTS) {
                    const float beyond = __shfl_sync(~0u, voxels[i][part + 1], 0);
                    if (lane == 31) right = beyond;
                }
                pairs[part] = pair(voxels[i][part], right);
            }
#pragma unroll
            for (int part = 0; part < PARTS; ++part) {
                struct alignas(4 * WORDS) Seen {
                    unsigned words[WORDS];
                } seen = {{pairs[part]}};
#pragma unroll
                for (int k = 1; k < WORDS; ++k) {
                    const unsigned given = lane < 2 * k ? pairs[part + 1] : pairs[part];
                    seen.words[k] = __shfl_sync(~0u, given, (lane + 2 * k) % 32);
                }
                *reinterpret_cast<Seen*>(line + part * 32 * PIECE) = seen;
            }
        }
    }
};

// Of a row of the target, what a lane holds of two channels; left: columns from its first one on that
// are measured.
template <bool IS_WHOLE, int COUNT>
__device__ __forceinline__ void measure(
    const float (&sums)[COUNT], int left, Sums& low, Sums& high
) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) {
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
            if (!IS_WHOLE && i * 2 + odd >= left) continue;
            low.add(sums[i + odd]);
            high.add(sums[i + 2 + odd]);
        }
    }
}

// BLOCKS: that share a multiprocessor, and its registers.
template <int KERNEL, int OUTPUTS, int COLUMNS, int BLOCKS>
__device__ __forceinline__ void convolve(const ConvolvePatches& p) {
    constexpr int TILE_ROWS = 64 / OUTPUTS, ROWS = TILES * TILE_ROWS;
    constexpr int PRODUCTS = Depth<KERNEL>::PRODUCTS, LINE_ROWS = Depth<KERNEL>::ROWS;
    constexpr int SEEN = ROWS + Depth<KERNEL>::SEEN - TILE_ROWS, LINES = SEEN / LINE_ROWS;
    constexpr int LINE = COLUMNS * PIECE, PLANE = LINES * LINE, TILE = TILE_ROWS / LINE_ROWS * LINE;
    static_assert(TILE_ROWS % LINE_ROWS == 0, "a tile begins with a line");
    extern __shared__ char shared[];
    Element* ring = reinterpret_cast<Element*>(shared);             // [RING][LINES][COLUMNS][PIECE]
    Barrier* loaded = reinterpret_cast<Barrier*>(ring + RING * PLANE);  // of each slot of the ring
    Barrier* left = loaded + RING;                                   // the planes of each slot
    Barrier* turn = left + RING;                                     // of each group
    Moments* joined = reinterpret_cast<Moments*>(turn + 2);         // [8 warps][16]

    const int blocks_w = (p.target_extents[2] + COLUMNS - 1) / COLUMNS;
    const int first_w = blockIdx.x % blocks_w * COLUMNS, first_h = blockIdx.x / blocks_w * ROWS;
    const int first_d = blockIdx.y * p.planes;
    const int planes = min(p.planes, p.target_extents[0] - first_d);
    const int group = threadIdx.x / GROUP, warp = threadIdx.x % GROUP / 32;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int parts = p.outputs / OUTPUTS, part = blockIdx.z % parts, number = blockIdx.z / parts;
    const Start start = start_of(p, number);
    const Inside real = inside_of(p, p.target_extents, number);
    const float* patch =
        p.patches + (Index)(ARE_BLOCKS ? 0 : number) * p.extents[0] * p.extents[1] * p.extents[2];
    const int d = first_d + p.origin[0], h = first_h + p.origin[1], w = first_w + p.origin[2];

    if (threadIdx.x < RING) {
        loaded[threadIdx.x].init(4);
        left[threadIdx.x].init(8);
    }
    if (threadIdx.x < 2) turn[threadIdx.x].init(4);
    Loader<KERNEL, COLUMNS, SEEN> loader(p, patch, start, h, w);
    for (int i = group; i < KERNEL; i += 3) {
        loader.fetch(d + i);
        loader.store(ring + i * PLANE);
    }
    fence_async_proxy();
    __syncthreads();

    if (group == 2) {
        give_registers<LOADER_REGISTERS>();
        for (int i = KERNEL; i < planes + KERNEL - 1; ++i) {
            loader.fetch(d + i);
            if (i >= RING) left[i % RING].wait(i / RING - 1);
            loader.store(ring + i % RING * PLANE);
            fence_async_proxy();
            __syncwarp();
            if (lane == 0) loaded[i % RING].arrive();
        }
    } else {
        take_registers<BLOCKS == 1 ? 224 : 88>();
        uint4 weights[KERNEL * PRODUCTS];
        const uint4* from = reinterpret_cast<const uint4*>(p.weights) +
                            part * KERNEL * PRODUCTS * GROUP + threadIdx.x % GROUP;
#pragma unroll
        for (int i = 0; i < KERNEL * PRODUCTS; ++i) weights[i] = from[i * GROUP];
        if (group == 1 && lane == 0) turn[0].arrive();

        const int own_row = 16 * warp / OUTPUTS, channel = 16 * warp % OUTPUTS;
        const int inside = p.target_extents[2] - first_w, real_inside = real.extents[2] - first_w;
        const bool is_whole = real_inside >= COLUMNS;
        const int measured = is_whole ? COLUMNS : max(real_inside, 0);  // columns of a row
        const unsigned long long first = descriptor_of(ring, LINE * 2, 128);
        Sums low{0.0f, 0.0f, 0.0f}, high{0.0f, 0.0f, 0.0f};
        int count = 0;  // of voxels that this lane has measured
        for (int o = 0, turns = 0; o < planes; ++o) {
            if (o) loaded[(o + KERNEL - 1) % RING].wait((o - 1) / RING);
#pragma unroll 1
            for (int tile = group; tile < TILES; tile += 2, ++turns) {
                float sums[COLUMNS / 2];
#pragma unroll
                for (int i = 0; i < COLUMNS / 2; ++i) sums[i] = 0.0f;
                turn[group].wait(turns);
                fence_operand(sums);
                begin_products();
#pragma unroll
                for (int i = 0; i < KERNEL; ++i) {
                    const int place = (o + i) % RING * PLANE + tile * TILE;
#pragma unroll
                    for (int j = 0; j < PRODUCTS; ++j) {
                        multiply_add(
                            sums, weights[i * PRODUCTS + j], first + (place + j * 2 * LINE) / 8
                        );
                    }
                }
                end_batch();
                if (lane == 0) turn[1 - group].arrive();
                fence_operand(sums);
                wait_for_products<0>();
                fence_operand(sums);
                if (tile + 2 >= TILES) {
                    __syncwarp();
                    if (lane == 0) left[o % RING].arrive();
                }

                const int row = first_h + tile * TILE_ROWS + own_row;
                if (row >= p.target_extents[1]) continue;
                if (p.partials && (!ARE_BLOCKS || (first_d + o < real.extents[0] &&
                                                   row < real.extents[1]))) {
                    if (!count) low.shift = sums[0], high.shift = sums[2];
                    count += measured / 8 * 2 + min(max(measured % 8 - 2 * t, 0), 2);
                    if (is_whole) {
                        measure<true>(sums, COLUMNS, low, high);
                    } else {
                        measure<false>(sums, measured - 2 * t, low, high);
                    }
                }
                Element* line = p.target + part * OUTPUTS + channel + t % 2 * 8 +
                                ((((Index)number * p.target_extents[0] + first_d + o) *
                                      p.target_extents[1] + row) * p.target_extents[2] + first_w) *
                                    p.outputs;
#pragma unroll
                for (int i = 0; i < COLUMNS / 2; i += 8) {
                    unsigned words[4];
#pragma unroll
                    for (int k = 0; k < 4; ++k) {
                        words[k] =
                            transposed_matrix(pair(sums[i + 2 * k], sums[i + 2 * k + 1]));
                    }
                    const uint4 own = transposed(words[0], words[1], words[2], words[3], t);
                    const int voxel = i * 2 + t / 2 * 8 + g;
                    if (voxel < inside) {
                        *reinterpret_cast<uint4*>(line + (Index)voxel * p.outputs) = own;
                    }
                }
            }
        }
        if (p.partials) {
            keep(joined + (group * 4 + warp) * 16, g, t, low, high, count);
        }
    }
    if (!p.partials) return;
    __syncthreads();
    if (threadIdx.x >= OUTPUTS) return;
    const Moments moments = of_eight_warps<OUTPUTS>(joined);
    const Index block = ((Index)number * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    p.partials[block * p.outputs + part * OUTPUTS + threadIdx.x] = moments;
}

template <int KERNEL, int OUTPUTS, int COLUMNS, int BLOCKS>
__global__ void __launch_bounds__(THREADS, BLOCKS) convolve_patches_wgmma(ConvolvePatches p) {
    follow();
    convolve<KERNEL, OUTPUTS, COLUMNS, BLOCKS>(p);
}

#endif
