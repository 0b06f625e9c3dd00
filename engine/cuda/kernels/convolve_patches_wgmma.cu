// The first layer of one input channel and a 7^3 or 3^3 kernel, straight from the patches, by wgmma.
//
// patches float [N, 1, D, H, W] -> target [N, D', H', W', K], stride 1, K a multiple of 32.
// Reads 4 bytes and writes 2 K bytes a voxel. The matrix product has outputs as M, 64 channels of one
// row of the target or 32 of two rows; voxels of a row as N; and as its depth the 8 input rows that
// those read, 8 taps each, of the 7 planes: 448 for 343. Of 3^3, whose outputs are 32 of two rows, it is
// 4 rows of 4 taps of 3 planes: 48 for 27. The weights stay in registers while a block loops along the
// depth. Shared memory has each input row, of 3^3 each two, as the windows of its voxels, 8 numbers a
// voxel, so that it is an operand as it is, for each kernel plane and row.
//
// Two consumer warpgroups take turns: one has the Tensor Cores while the other writes. The producer
// warpgroup loads the planes.
//
// Why so: by mma.sync each product of 2048 pairs reads 192 bytes of shared memory, which takes as long
// as the product and leaves 30 % of the units' peak; here a product of 131072 reads 4096, half of its
// time. A Winograd form F(2, 7) along W has 8 products for 14, but its operands change with each tap and
// it would round twice.
//
// 7^3, 1 to 32 / 64 channels, with statistics, fp16, H200: 128^3 0.097 / 0.186 ms (by mma.sync 0.195 / 0.364),
// 96^3 0.053 / 0.101 (0.125 / 0.205), 256x256x180 0.59 / 1.27 (1.38 / 2.77). 3^3, 1 to 32: 128^3 0.057
// (by mma.sync 0.106); there is little to multiply, and two blocks of 64 columns hide the waits of one.
//
// Measured 2026-11-22 (H200, fp16; bounds as in docs/gpu-engine.md): 7^3, 1 to 32 channels, 128^3, with
// statistics 0.097 ms, bound by 46 GFLOP, 62 % of it; to 64 0.186 ms, 65 %.

#include "convolve_patches.cuh"
#include "epilogue.cuh"
#include "pipeline.cuh"
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
    static constexpr int SPANS = COLUMNS / 32, COUNT = (ROWS + 3) / 4;
    static constexpr int WORDS = Depth<KERNEL>::SEEN / 2, BESIDE = Depth<KERNEL>::ROWS;
    const ConvolvePatches& p;
    const float* patch;
    int first_z, first_row, first_y;  // of the block, in the patch and in the volume
    int places[SPANS + 1];            // of this lane's voxels in a row; -1 where it is 0
    float voxels[COUNT][SPANS + 1];

public:
    __device__ __forceinline__ Loader(
        const ConvolvePatches& p, const float* patch, const Start& start, int row, int column
    ) : p(p), patch(patch), first_z(start.at[0]), first_row(row + threadIdx.x % GROUP / 32),
        first_y(start.at[1]) {
#pragma unroll
        for (int span = 0; span <= SPANS; ++span) {
            const int own = column + span * 32 + threadIdx.x % 32;
            places[span] = -1;
            if (own < p.limit[2]) {
                places[span] = continued(own + start.at[2], p.extents[2], p.border);
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
            for (int span = 0; span <= SPANS; ++span) {
                voxels[i][span] = 0.0f;
                if (z >= 0 && y >= 0 && places[span] >= 0) voxels[i][span] = line[places[span]];
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
            unsigned pairs[SPANS + 1];  // of each voxel and the one right of it
#pragma unroll
            for (int span = 0; span <= SPANS; ++span) {
                float right = __shfl_sync(~0u, voxels[i][span], (lane + 1) % 32);
                if (span < SPANS) {
                    const float beyond = __shfl_sync(~0u, voxels[i][span + 1], 0);
                    if (lane == 31) right = beyond;
                }
                pairs[span] = pair(voxels[i][span], right);
            }
#pragma unroll
            for (int span = 0; span < SPANS; ++span) {
                struct alignas(4 * WORDS) Seen {
                    unsigned words[WORDS];
                } seen = {{pairs[span]}};
#pragma unroll
                for (int k = 1; k < WORDS; ++k) {
                    const unsigned given = lane < 2 * k ? pairs[span + 1] : pairs[span];
                    seen.words[k] = __shfl_sync(~0u, given, (lane + 2 * k) % 32);
                }
                *reinterpret_cast<Seen*>(line + span * 32 * PIECE) = seen;
            }
        }
    }
};

// Measures a lane's sums of a row of the target; left: columns from its first one on that are measured.
template <bool IS_WHOLE, int COUNT>
__device__ __forceinline__ void measure(
    MeasuredRows& measured, const float (&sums)[COUNT], int left
) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) {
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
            if (!IS_WHOLE && i * 2 + odd >= left) continue;
            measured.add(&sums[i], odd);
        }
    }
}

// What a block computes: OUTPUTS channels of some planes of a patch.
struct Task {
    int number, run, first_d, first_h, first_w, planes;
    Start start;
    Inside real;  // voxels of the patch that are of the volume

    __device__ __forceinline__ Task(const ConvolvePatches& p, int outputs, int rows, int columns) {
        const int across = (p.target_extents[2] + columns - 1) / columns, runs = p.outputs / outputs;
        first_w = blockIdx.x % across * columns, first_h = blockIdx.x / across * rows;
        first_d = blockIdx.y * p.planes, planes = min(p.planes, p.target_extents[0] - first_d);
        run = blockIdx.z % runs, number = blockIdx.z / runs;
        start = start_of(p, number), real = inside_of(p, p.target_extents, number);
    }
};

// BLOCKS: that share a multiprocessor, and its registers.
template <int KERNEL_, int OUTPUTS_, int COLUMNS_, int BLOCKS_>
struct Shared {
    static constexpr int KERNEL = KERNEL_, OUTPUTS = OUTPUTS_, COLUMNS = COLUMNS_, BLOCKS = BLOCKS_;
    static constexpr int TILE_ROWS = 64 / OUTPUTS, ROWS = TILES * TILE_ROWS;
    static constexpr int PRODUCTS = Depth<KERNEL>::PRODUCTS, LINE_ROWS = Depth<KERNEL>::ROWS;
    static constexpr int SEEN = ROWS + Depth<KERNEL>::SEEN - TILE_ROWS, LINES = SEEN / LINE_ROWS;
    static constexpr int LINE = COLUMNS * PIECE, PLANE = LINES * LINE;
    static constexpr int TILE = TILE_ROWS / LINE_ROWS * LINE;
    static_assert(TILE_ROWS % LINE_ROWS == 0, "a tile begins with a line");

    Element planes[RING][PLANE];  // [LINES][COLUMNS][PIECE]
    Ring<RING> ring;
    OrderedBarrier order;  // of the groups' products
    Moments joined[8][16];

    __device__ __forceinline__ void init() {
        ring.init(4, 8);
        order.init();
    }
};

// Consumer: every second tile of the target's planes.
template <class Held>
__device__ __forceinline__ void multiply(const ConvolvePatches& p, const Task& task, Held& shared) {
    constexpr int KERNEL = Held::KERNEL, OUTPUTS = Held::OUTPUTS, COLUMNS = Held::COLUMNS;
    constexpr int PRODUCTS = Held::PRODUCTS, LINE = Held::LINE;
    const int group = threadIdx.x / GROUP, warp = threadIdx.x % GROUP / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint4 weights[KERNEL * PRODUCTS];
    const uint4* from = reinterpret_cast<const uint4*>(p.weights) +
                        task.run * KERNEL * PRODUCTS * GROUP + threadIdx.x % GROUP;
#pragma unroll
    for (int i = 0; i < KERNEL * PRODUCTS; ++i) weights[i] = from[i * GROUP];
    if (group == 1) shared.order.pass(group);

    const int own_row = 16 * warp / OUTPUTS, channel = 16 * warp % OUTPUTS;
    const Inside& real = task.real;
    const int inside = p.target_extents[2] - task.first_w;
    const int real_inside = real.extents[2] - task.first_w;
    const bool is_whole = real_inside >= COLUMNS;
    const int measured_columns = is_whole ? COLUMNS : max(real_inside, 0);  // of a row
    const unsigned long long first = descriptor_of(shared.planes[0], LINE * 2, 128);
    MeasuredRows measured;
    int count = 0;  // of voxels that this lane has measured
    for (int o = 0, turn = 0; o < task.planes; ++o) {
        if (o) shared.ring.full[(o + KERNEL - 1) % RING].wait((o - 1) / RING);
#pragma unroll 1
        for (int tile = group; tile < TILES; tile += 2, ++turn) {
            float sums[COLUMNS / 2];
#pragma unroll
            for (int i = 0; i < COLUMNS / 2; ++i) sums[i] = 0.0f;
            shared.order.wait(group, turn);
            fence_operand(sums);
            begin_products();
#pragma unroll
            for (int i = 0; i < KERNEL; ++i) {
                const int place = (o + i) % RING * Held::PLANE + tile * Held::TILE;
#pragma unroll
                for (int j = 0; j < PRODUCTS; ++j) {
                    multiply_add(
                        sums, weights[i * PRODUCTS + j], first + (place + j * 2 * LINE) / 8
                    );
                }
            }
            end_batch();
            shared.order.pass(group);
            fence_operand(sums);
            wait_for_products<0>();
            fence_operand(sums);
            if (tile + 2 >= TILES) shared.ring.empty[o % RING].arrive_warp();

            const int row = task.first_h + tile * Held::TILE_ROWS + own_row;
            if (row >= p.target_extents[1]) continue;
            if (p.partials && (!ARE_BLOCKS || (task.first_d + o < real.extents[0] &&
                                               row < real.extents[1]))) {
                if (!count) measured.begin(sums);
                count += measured_columns / 8 * 2 + min(max(measured_columns % 8 - 2 * t, 0), 2);
                if (is_whole) {
                    measure<true>(measured, sums, COLUMNS);
                } else {
                    measure<false>(measured, sums, measured_columns - 2 * t);
                }
            }
            Element* line = p.target + task.run * OUTPUTS + channel + t % 2 * 8 +
                            ((((Index)task.number * p.target_extents[0] + task.first_d + o) *
                                  p.target_extents[1] + row) * p.target_extents[2] + task.first_w) *
                                p.outputs;
#pragma unroll
            for (int i = 0; i < COLUMNS / 2; i += 8) {
                unsigned words[4];
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    words[k] = transposed_matrix(pair(sums[i + 2 * k], sums[i + 2 * k + 1]));
                }
                const uint4 own = transposed(words[0], words[1], words[2], words[3], t);
                const int voxel = i * 2 + t / 2 * 8 + g;
                if (voxel < inside) {
                    *reinterpret_cast<uint4*>(line + (Index)voxel * p.outputs) = own;
                }
            }
        }
    }
    if (p.partials) measured.keep(shared.joined[group * 4 + warp], count);
}

template <class Held>
__device__ __forceinline__ void convolve(const ConvolvePatches& p) {
    constexpr int KERNEL = Held::KERNEL;
    extern __shared__ char memory[];
    Held& shared = *reinterpret_cast<Held*>(memory);
    const Task task(p, Held::OUTPUTS, Held::ROWS, Held::COLUMNS);
    const float* patch = p.patches + (Index)(ARE_BLOCKS ? 0 : task.number) * p.extents[0] *
                                         p.extents[1] * p.extents[2];
    const int d = task.first_d + p.origin[0];

    shared.init();
    Loader<KERNEL, Held::COLUMNS, Held::SEEN> loader(
        p, patch, task.start, task.first_h + p.origin[1], task.first_w + p.origin[2]
    );
    const int group = threadIdx.x / GROUP;
    for (int i = group; i < KERNEL; i += 3) {
        loader.fetch(d + i);
        loader.store(shared.planes[i]);
    }
    fence_async_proxy();
    __syncthreads();

    if (group == 2) {
        give_registers<LOADER_REGISTERS>();
        for (int i = KERNEL; i < task.planes + KERNEL - 1; ++i) {
            loader.fetch(d + i);
            if (i >= RING) shared.ring.empty[i % RING].wait(i / RING - 1);
            loader.store(shared.planes[i % RING]);
            fence_async_proxy();
            shared.ring.full[i % RING].arrive_warp();
        }
    } else {
        take_registers<Held::BLOCKS == 1 ? 224 : 88>();
        multiply(p, task, shared);
    }
    store_partials<Held::OUTPUTS>(
        p.partials, task.number, p.outputs, task.run * Held::OUTPUTS, shared.joined[0]
    );
}

template <int KERNEL, int OUTPUTS, int COLUMNS, int BLOCKS>
__global__ void __launch_bounds__(THREADS, BLOCKS) convolve_patches_wgmma(ConvolvePatches p) {
    convolve<Shared<KERNEL, OUTPUTS, COLUMNS, BLOCKS>>(p);
}

#endif
