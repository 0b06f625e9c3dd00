// A transposed convolution, 3^3 of stride 2, padding 1 and output padding 1, by wgmma, which
// measures its result.
//
// source [N, D', H', W', C], C 64 or 128, 0 beyond -> target [N, D, H, W, 2, 2, 2, K], cells of 2^3
// voxels; K a multiple of 32. Blocks of a volume have a source of one voxel more along each axis. Along
// each axis, the first voxel of a cell takes the middle tap of the source voxel at its place; the second
// one the last tap of the same and the first of the next. So a cell takes 27 products for each pair of
// channels, where a 2^3 convolution to 8 K channels takes 64, with 37 zeros.
//
// The matrix product has as M 64 channels of one voxel of a cell, or 32 of two along H; as N 128
// cells; and as its depth 32 channels of a voxel that they see. Each group of four warps sums up the
// first and the second voxels along W of its cells at once: of the source voxel at their place both
// take a share, of the next one the second voxels alone. With 32 channels some operands are half
// zeros: then it is 36 products in place of 27.
//
// A block walks through the planes of 16 x 16 cells. Two groups have half of their columns each; a
// third one loads boxes of the source, which stay for all that see them, and the weights, again for
// each plane. One group is ahead, so that one has the matrix units while the other writes.
//
// Products of other columns than before, of the same sums, would leave no zeros; but the assembler lets
// each of them wait for the one before. 32 / 64 channels on an H200 in fp16, 64^3 cells of 64 / 128:
// 0.107 / 0.257 ms with statistics, of which the products alone take 0.060 / 0.171 (cuDNN's plan and a
// pass of statistics 0.135 / 0.386).

#include "blocks.cuh"
#include "copies.cuh"
#include "matrix.cuh"
#include "moments.cuh"
#include "order.cuh"
#include "wgmma.cuh"

struct ConvTransposeToCells {
    const Element* source;
    const Element* weights;  // operands in the order of use
    Element* target;
    Moments* partials;       // [N][blocks of a patch][K], or null
    Strides target_strides;
    int source_extents[3];   // beyond which the source is 0
    int cells[3];            // of a patch
    int outputs;             // K
    int planes;              // of cells, a block
#ifdef IN_BLOCKS
    Blocks blocks;           // as `cells` count
#endif
};

#if !defined(ELEMENT_FLOAT) && defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int SIDE = 16, SEEN = SIDE + 1;  // of a block's cells, and of the voxels that they see
constexpr int COLUMNS = 8;                 // of cells, of a group
constexpr int N = SIDE * COLUMNS;
constexpr int DEPTH = 32, PIECES = DEPTH / 8;                        // channels of a box
constexpr int PIECE = (SEEN * SEEN + 1) * 16, BOX = PIECES * PIECE;  // bytes; in different banks
constexpr int OPERAND = 64 * DEPTH * 2, STAGE = 3 * OPERAND;         // bytes of weights
constexpr int AT_ONCE = 4;  // rows of cells that a group brings into order to write them
constexpr int ROW_UNITS = 128, ROW_BYTES = ROW_UNITS * 16, STAGED = AT_ONCE * ROW_BYTES;
constexpr int GROUP = 128, THREADS = 3 * GROUP;
constexpr int LOADER_REGISTERS = 40, OTHER_REGISTERS = 232;
constexpr int BOX_LOADERS = 96;  // the last warp of the third group loads weights

// What a block sees of one plane, of the channels from `source` on.
__device__ __forceinline__ void load_box(
    const ConvTransposeToCells& p, const Element* source, int channels, int d, int first_h,
    int first_w, char* box
) {
    const int thread = threadIdx.x % GROUP, piece = thread % PIECES;
    const unsigned to = __cvta_generic_to_shared(box + piece * PIECE);
    const bool is_there = d < p.source_extents[0];
    const Element* plane =
        source + piece * 8 + (Index)d * p.source_extents[1] * p.source_extents[2] * channels;
#pragma unroll 4
    for (int voxel = thread / PIECES; voxel < SEEN * SEEN; voxel += BOX_LOADERS / PIECES) {
        const int h = first_h + voxel / SEEN, w = first_w + voxel % SEEN;
        const bool is_inside = is_there && h < p.source_extents[1] && w < p.source_extents[2];
        const int place = (h * p.source_extents[2] + w) * channels;
        begin_copy(to + voxel * 16, is_inside ? plane + place : source, is_inside);
    }
}

// Place of 16 bytes of a row of cells: those of every second voxel lie in different banks.
template <int OUTPUTS>
__device__ __forceinline__ int swizzled_unit(int unit) {
    return unit ^ (unit / (OUTPUTS / 4) & 7);
}

__device__ __forceinline__ void wait_for_group(int group) {
    asm volatile("barrier.sync.aligned %0, %1;" ::"r"(group + 1), "n"(GROUP) : "memory");
}

// OUTPUTS: channels of the target that a block makes. Each plane of cells is made in passes, of its
// first and its second voxels along D, and, if OUTPUTS is 64, of those the first and the second along H.
template <int CHANNELS, int OUTPUTS, int BOXES, int STAGES>
__device__ __forceinline__ void convolve(const ConvTransposeToCells& p) {
    constexpr int CHUNKS = CHANNELS / DEPTH;
    constexpr int PASSES = OUTPUTS == 64 ? 4 : 2;
    constexpr int OF_FIRST = (OUTPUTS == 64 ? 1 : 2) * CHUNKS;  // stages of the first pass
    constexpr int LAG = OF_FIRST < 3 ? OF_FIRST : 3;            // of one group behind the other
    constexpr int VOXEL_UNITS = OUTPUTS / 8;                    // of 16 bytes
    constexpr int OF_PLANE = (OUTPUTS == 64 ? 9 : 6) * CHUNKS;  // stages
    extern __shared__ char shared[];
    char* boxes = shared;                    // [BOXES][PIECES][voxels, 1][8]
    char* stages = boxes + BOXES * BOX;      // [STAGES][3][PIECES][64][8]
    char* staged = stages + STAGES * STAGE;  // [2][AT_ONCE][voxels][OUTPUTS], swizzled
    Moments* joined = reinterpret_cast<Moments*>(staged + 2 * STAGED);  // [8 warps][16]
    Barrier* loaded = reinterpret_cast<Barrier*>(joined + 8 * 16);            // of each box
    Barrier* left = loaded + BOXES;
    Barrier* stage_loaded = left + BOXES;
    Barrier* stage_left = stage_loaded + STAGES;
    Barrier* begun = stage_left + STAGES;

    const int blocks_w = (p.cells[2] + SIDE - 1) / SIDE;
    const int first_w = blockIdx.x % blocks_w * SIDE, first_h = blockIdx.x / blocks_w * SIDE;
    const int first_d = blockIdx.y * p.planes, planes = min(p.planes, p.cells[0] - first_d);
    const int parts = p.outputs / OUTPUTS, part = blockIdx.z % parts, number = blockIdx.z / parts;
    const int group = threadIdx.x / GROUP, warp = threadIdx.x % GROUP / 32;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;

    if (threadIdx.x < BOXES) {
        loaded[threadIdx.x].init(BOX_LOADERS);
        left[threadIdx.x].init(8);
    }
    if (threadIdx.x < STAGES) {
        stage_loaded[threadIdx.x].init(1);
        stage_left[threadIdx.x].init(8);
    }
    if (threadIdx.x == 0) begun->init(4);
    fence_async_proxy();
    __syncthreads();

    if (group == 2) {
        give_registers<LOADER_REGISTERS>();
        if (threadIdx.x % GROUP < BOX_LOADERS) {
            const Element* patch = p.source + (Index)number * p.source_extents[0] *
                                                  p.source_extents[1] * p.source_extents[2] *
                                                  CHANNELS;
            RingSlot<BOXES> box;
            for (int i = 0; i < (planes + 1) * CHUNKS; ++i, box.advance()) {
                if (box.round) left[box.number].wait(box.round - 1);
                load_box(p, patch + i % CHUNKS * DEPTH, CHANNELS, first_d + i / CHUNKS, first_h,
                         first_w, boxes + box.number * BOX);
                loaded[box.number].arrive_when_copied();
            }
        } else if (lane == 0) {
            const char* weights =
                reinterpret_cast<const char*>(p.weights) + (Index)part * OF_PLANE * STAGE;
            RingSlot<STAGES> stage;
            for (int i = 0; i < planes * OF_PLANE; ++i, stage.advance()) {
                if (stage.round) stage_left[stage.number].wait(stage.round - 1);
                stage_loaded[stage.number].arrive_with_bytes(
                    stages + stage.number * STAGE, weights + i % OF_PLANE * STAGE, STAGE
                );
            }
        }
        __syncwarp();
    } else {
        take_registers<OTHER_REGISTERS>();
        const unsigned long long first_voxels =
            descriptor_of(boxes + group * COLUMNS * 16, PIECE, SEEN * 16);
        const unsigned long long first_weights = descriptor_of(stages, 64 * 16, 128);
        const int first_column = first_w + group * COLUMNS;
        const int rows = min(SIDE, p.cells[1] - first_h);  // of cells, in the patch
        // Of the sums: planes and rows of cells, and columns of this lane, that are measured.
        const Inside real = inside_of(p, p.cells, number);
        const int measured_planes = max(0, min(planes, real.extents[0] - first_d));
        const int measured_rows = max(0, min(SIDE, real.extents[1] - first_h));
        const int columns = max(0, min(2, real.extents[2] - first_column - 2 * t));
        // Not from `measured_rows == SIDE`, which ptxas of CUDA 12.9 and 13.0 gets wrong for sm_90: it
        // takes the predicate of VIMNMX.RELU for it.
        const bool is_full =
            first_h + SIDE <= real.extents[1] && first_column + COLUMNS <= real.extents[2];
        // Of what this lane writes: its place in a row of cells.
        const int unit = threadIdx.x % GROUP, voxel = unit / VOXEL_UNITS % (2 * COLUMNS);
        const int below_row = unit / VOXEL_UNITS / (2 * COLUMNS);
        const bool is_inside = first_column + voxel / 2 < p.cells[2];
        char* const own_stored = staged + group * STAGED;
        const char* const read_from = own_stored + swizzled_unit<OUTPUTS>(unit) * 16;
        const unsigned stored = __cvta_generic_to_shared(own_stored);
        const int stored_unit = lane / 16 * ROW_UNITS +
                                (16 * warp / OUTPUTS * COLUMNS + lane % 8) * 2 * VOXEL_UNITS +
                                16 * warp % OUTPUTS / 8 + lane / 8 % 2;
        const unsigned own_unit = swizzled_unit<OUTPUTS>(stored_unit) * 16;
        Element* const own = p.target + (Index)number * p.target_strides.patch +
                             (Index)first_h * p.target_strides.row +
                             (Index)(first_column + voxel / 2) * p.target_strides.voxel +
                             (below_row * 2 + voxel % 2) * p.outputs +
                             part * OUTPUTS + unit % VOXEL_UNITS * 8;
        Sums low{0.0f, 0.0f, 0.0f}, high{0.0f, 0.0f, 0.0f};
        float sums[2][N / 2];  // of the left voxels, and of the right ones
        RingSlot<BOXES> here;  // first box of the plane
        RingSlot<STAGES> stage;
        int read_box = -1, read_stage = -1;
        if (group == 1) begun->wait(0);

        auto leave = [&] {
            __syncwarp();
            if (lane == 0) {
                if (read_box >= 0) left[read_box].arrive();
                if (read_stage >= 0) stage_left[read_stage].arrive();
            }
            read_box = read_stage = -1;
        };
        // The products of a stage with a box from its first row on, or from the next.
        auto add = [&](const RingSlot<BOXES>& box, int below, bool is_last_use) {
            loaded[box.number].wait(box.round);
            stage_loaded[stage.number].wait(stage.round);
            const unsigned long long b = first_voxels + box.number * (BOX / 16) + below * SEEN;
            const unsigned long long a = first_weights + stage.number * (STAGE / 16);
            begin_products();
#pragma unroll
            for (int step = 0; step < DEPTH / 16; ++step) {
                const unsigned long long own_a = a + step * (2 * 64);
                const unsigned long long own_b = b + step * (PIECE / 8);
                multiply_add(sums[0], own_a, own_b);
                multiply_add(sums[1], own_a + OPERAND / 16, own_b);
                multiply_add(sums[1], own_a + 2 * OPERAND / 16, own_b + 1);
            }
            end_batch();
            if (read_stage >= 0) {
                wait_for_products<1>();
                leave();
            }
            read_box = is_last_use ? box.number : -1;
            read_stage = stage.number;
            stage.advance();
        };
        // What this lane has of those voxels; is_full: whether all of them are measured.
        auto measure = [&](bool is_full) {
#pragma unroll
            for (int right = 0; right < 2; ++right)
#pragma unroll
                for (int i = 0; i < SIDE; ++i) {
                    if (!is_full && i >= measured_rows) break;
#pragma unroll
                    for (int odd = 0; odd < 2; ++odd) {
                        if (!is_full && odd >= columns) break;
                        low.add(sums[right][4 * i + odd]);
                        high.add(sums[right][4 * i + 2 + odd]);
                    }
                }
        };
        // Through shared memory, so that a warp writes whole lines; some rows of cells after others.
        auto write = [&](Element* pass_cells) {
#pragma unroll
            for (int first = 0; first < SIDE; first += AT_ONCE) {
                wait_for_group(group);
#pragma unroll
                for (int right = 0; right < 2; ++right)
#pragma unroll
                    for (int i = 0; i < AT_ONCE; i += 2) {
                        const float* own = &sums[right][4 * (first + i)];
                        store_transposed(
                            stored + (right * VOXEL_UNITS * 16 ^ own_unit) + i * ROW_BYTES,
                            make_uint4(pair(own[0], own[1]), pair(own[2], own[3]),
                                       pair(own[4], own[5]), pair(own[6], own[7]))
                        );
                    }
                wait_for_group(group);
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i) {
                    if (first + i >= rows || !is_inside) break;
                    *reinterpret_cast<uint4*>(
                        pass_cells + (Index)(first + i) * p.target_strides.row
                    ) = *reinterpret_cast<const uint4*>(read_from + i * ROW_BYTES);
                }
            }
        };
#pragma unroll 1
        for (int pass = 0; pass < PASSES * planes; ++pass) {
            const int upper = pass % PASSES / (PASSES / 2), below = OUTPUTS == 64 ? pass % 2 : 0;
            const int source_rows = OUTPUTS == 64 ? 1 + below : 2;
            const bool is_last = pass % PASSES == PASSES - 1;
#pragma unroll
            for (int right = 0; right < 2; ++right) {
#pragma unroll
                for (int i = 0; i < N / 2; ++i) sums[right][i] = 0.0f;
                fence_operand(sums[right]);
            }
            RingSlot<BOXES> box = here;
#pragma unroll 1
            for (int i = 0; i < (CHUNKS << upper) * source_rows; ++i) {
                const int row = i % source_rows;
                const bool is_last_row = row == source_rows - 1;
                add(box, row, is_last && is_last_row && i < CHUNKS * source_rows);
                if (is_last_row) box.advance();
                if (group == 0 && pass == 0 && i == LAG - 1) {
                    wait_for_products<0>();
                    if (lane == 0) begun->arrive();
                }
            }
            wait_for_products<0>();
            fence_operand(sums[0]);
            fence_operand(sums[1]);
            leave();
            if (is_last) {
                for (int i = 0; i < CHUNKS; ++i) here.advance();
            }
            if (p.partials && (!ARE_BLOCKS || pass < PASSES * measured_planes)) {
                if (pass == 0) low.shift = sums[0][0], high.shift = sums[0][2];
                is_full ? measure(true) : measure(false);
            }
            write(own + (first_d + pass / PASSES) * p.target_strides.plane +
                  (upper * 4 + below * 2) * p.outputs);
        }
        if (p.partials) {
            const int count = PASSES * measured_planes * 2 * measured_rows * columns;
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

template <int CHANNELS, int OUTPUTS, int BOXES, int STAGES>
__global__ void __launch_bounds__(THREADS, 1) conv_transpose_to_cells(ConvTransposeToCells p) {
    follow();
    convolve<CHANNELS, OUTPUTS, BOXES, STAGES>(p);
}

#endif
