// A transposed convolution, 3^3 of stride 2, padding 1 and output padding 1, by wgmma. It computes
// statistics of its output.
//
// source [N, D', H', W', C], C 64 or 128, zeros around it -> target [N, D, H, W, 2, 2, 2, K], space-to-depth:
// 2^3 voxels for each voxel of the source; K a multiple of 32. Blocks of a volume have a source of one voxel
// more along each axis. Along each axis, the first of two voxels takes the middle tap of the source voxel at
// its place; the second one takes the last tap of the same and the first of the next. So 2^3 voxels take 27
// products for each pair of channels, where a 2^3 convolution to 8 K channels takes 64, with 37 zeros.
//
// The matrix product has as M 64 channels of one of the 2^3 voxels, or 32 of two along H; as N 128 places of
// the source; and as its depth 32 channels of a voxel that they read. Each consumer warpgroup sums the first
// and the second voxels along W together: the source voxel at their place contributes to both, the next one
// to the second voxels alone. With 32 channels some operands are half zeros: then it is 36 products, not 27.
//
// A block loops over planes of 16 x 16 source voxels. Two consumer warpgroups have half of their columns each;
// the producer warpgroup loads boxes of the source, which stay for all that read them, and the weights, again
// for each plane. One consumer is ahead, so that it has the Tensor Cores while the other writes.
//
// Products of other columns than before, of the same sums, would leave no zeros; but the assembler lets
// each of them wait for the one before. 32 / 64 channels on an H200 in fp16, from 64^3 voxels of 64 / 128:
// 0.107 / 0.257 ms with statistics, of which the products alone take 0.060 / 0.171 (cuDNN's plan and a
// pass of statistics 0.135 / 0.386).
//
// Measured 2026-11-26 (H200, fp16; bounds as in docs/gpu-engine.md): 64 to 32 channels, 64^3 to 128^3, with
// statistics 94.5 us, bound by 168 MB, 42 % of it; 128 to 64 229.9 us, bound by 116 GFLOP, 66 %.
// Alternative (2026-11-29): by cuDNN the network of 64 to 32 channels takes 300 us, with this kernel 259.

#include "blocks.cuh"
#include "copies.cuh"
#include "epilogue.cuh"
#include "pipeline.cuh"
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
constexpr int AT_ONCE = 4;  // rows of cells that a group stages to write them
constexpr int ROW_UNITS = 128, ROW_BYTES = ROW_UNITS * 16, STAGED = AT_ONCE * ROW_BYTES;
constexpr int GROUP = 128, WARPS = GROUP / 32, THREADS = 3 * GROUP;
constexpr int LOADER_REGISTERS = 40, OTHER_REGISTERS = 232;
constexpr int BOX_LOADERS = 96;  // the last warp of the third group loads weights

// What a block computes: some planes of cells, and of their voxels some channels.
struct Task {
    int number, run, first_d, first_h, first_w, planes;

    __device__ __forceinline__ Task(const ConvTransposeToCells& p, int outputs) {
        const int across = (p.cells[2] + SIDE - 1) / SIDE, runs = p.outputs / outputs;
        first_w = blockIdx.x % across * SIDE, first_h = blockIdx.x / across * SIDE;
        first_d = blockIdx.y * p.planes, planes = min(p.planes, p.cells[0] - first_d);
        run = blockIdx.z % runs, number = blockIdx.z / runs;
    }
};

// OUTPUTS: channels of the target that a block computes. Each plane of cells is computed in passes, of its
// first and its second voxels along D, and, if OUTPUTS is 64, of those the first and the second along H.
template <int CHANNELS_, int OUTPUTS_, int BOXES_, int STAGES_>
struct Shared {
    static constexpr int CHANNELS = CHANNELS_, OUTPUTS = OUTPUTS_, BOXES = BOXES_, STAGES = STAGES_;
    static constexpr int CHUNKS = CHANNELS / DEPTH;
    static constexpr int PASSES = OUTPUTS == 64 ? 4 : 2;
    static constexpr int OF_FIRST = (OUTPUTS == 64 ? 1 : 2) * CHUNKS;  // stages of the first pass
    static constexpr int LAG = OF_FIRST < 3 ? OF_FIRST : 3;            // of one group behind the other
    static constexpr int VOXEL_UNITS = OUTPUTS / 8;                    // of 16 bytes
    static constexpr int OF_PLANE = (OUTPUTS == 64 ? 9 : 6) * CHUNKS;  // stages

    char boxes[BOXES][BOX];       // [PIECES][voxels, 1][8]
    char weights[STAGES][STAGE];  // [3][PIECES][64][8]
    char staged[2][STAGED];       // [AT_ONCE][voxels][OUTPUTS], swizzled
    Moments joined[2 * WARPS][16];
    Ring<BOXES> box_ring;
    Ring<STAGES> weight_ring;
    Barrier begun;  // when group 0 is LAG stages ahead

    __device__ __forceinline__ void begin() {
        box_ring.init(BOX_LOADERS, 2 * WARPS);
        weight_ring.init(1, 2 * WARPS);
        if (threadIdx.x == 0) begun.init(WARPS);
        fence_async_proxy();
        __syncthreads();
    }
};

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

// Producer warps of boxes: all that the block sees, and each once.
template <class Held>
__device__ __forceinline__ void load_boxes(
    const ConvTransposeToCells& p, const Task& task, Held& shared
) {
    constexpr int CHUNKS = Held::CHUNKS;
    const Element* patch = p.source + (Index)task.number * p.source_extents[0] *
                                          p.source_extents[1] * p.source_extents[2] *
                                          Held::CHANNELS;
    RingSlot<Held::BOXES> box;
    for (int i = 0; i < (task.planes + 1) * CHUNKS; ++i, box.advance()) {
        shared.box_ring.acquire(box);
        load_box(p, patch + i % CHUNKS * DEPTH, Held::CHANNELS, task.first_d + i / CHUNKS,
                 task.first_h, task.first_w, shared.boxes[box.index]);
        shared.box_ring.full[box.index].arrive_when_copied();
    }
}

// Producer lane of weights: all stages in the order of use, again for each plane.
template <class Held>
__device__ __forceinline__ void load_weights(
    const ConvTransposeToCells& p, const Task& task, Held& shared
) {
    constexpr int OF_PLANE = Held::OF_PLANE;
    const char* weights =
        reinterpret_cast<const char*>(p.weights) + (Index)task.run * OF_PLANE * STAGE;
    RingSlot<Held::STAGES> stage;
    for (int i = 0; i < task.planes * OF_PLANE; ++i, stage.advance()) {
        shared.weight_ring.acquire(stage);
        shared.weight_ring.full[stage.index].arrive_with_bytes(
            shared.weights[stage.index], weights + i % OF_PLANE * STAGE, STAGE
        );
    }
}

// Sums of a pass, of a group's columns of cells: of their left voxels along W, and of the right ones.
template <class Held>
struct Products {
    Held& shared;
    float sums[2][N / 2];
    RingSlot<Held::BOXES> here;  // first box of the plane
    RingSlot<Held::STAGES> stage;
    int group, read_box = -1, read_stage = -1;
    unsigned long long first_voxels, first_weights;

    __device__ __forceinline__ Products(Held& held_by_all, int group) : shared(held_by_all), group(group) {
        first_voxels = descriptor_of(shared.boxes[0] + group * COLUMNS * 16, PIECE, SEEN * 16);
        first_weights = descriptor_of(shared.weights[0], 64 * 16, 128);
    }

    __device__ __forceinline__ void release() {
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            if (read_box >= 0) shared.box_ring.empty[read_box].arrive();
            if (read_stage >= 0) shared.weight_ring.empty[read_stage].arrive();
        }
        read_box = read_stage = -1;
    }

    // Adds the products of a stage with a box from its first row on, or from the next.
    __device__ __forceinline__ void add_stage(
        const RingSlot<Held::BOXES>& box, int below, bool is_last_use
    ) {
        shared.box_ring.wait(box);
        shared.weight_ring.wait(stage);
        const unsigned long long b = first_voxels + box.index * (BOX / 16) + below * SEEN;
        const unsigned long long a = first_weights + stage.index * (STAGE / 16);
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
            release();
        }
        read_box = is_last_use ? box.index : -1;
        read_stage = stage.index;
        stage.advance();
    }

    // Computes a pass. upper, below: whether it is of the second voxels along D, and along H.
    __device__ __forceinline__ void compute(int pass, int upper, int below) {
        constexpr int CHUNKS = Held::CHUNKS;
        const int source_rows = Held::OUTPUTS == 64 ? 1 + below : 2;
        const bool is_last = pass % Held::PASSES == Held::PASSES - 1;
#pragma unroll
        for (int right = 0; right < 2; ++right) {
#pragma unroll
            for (int i = 0; i < N / 2; ++i) sums[right][i] = 0.0f;
            fence_operand(sums[right]);
        }
        RingSlot<Held::BOXES> box = here;
#pragma unroll 1
        for (int i = 0; i < (CHUNKS << upper) * source_rows; ++i) {
            const int row = i % source_rows;
            const bool is_last_row = row == source_rows - 1;
            add_stage(box, row, is_last && is_last_row && i < CHUNKS * source_rows);
            if (is_last_row) box.advance();
            if (group == 0 && pass == 0 && i == Held::LAG - 1) {
                wait_for_products<0>();
                if (threadIdx.x % 32 == 0) shared.begun.arrive();
            }
        }
        wait_for_products<0>();
        fence_operand(sums[0]);
        fence_operand(sums[1]);
        release();
        if (is_last) {
            for (int i = 0; i < CHUNKS; ++i) here.advance();
        }
    }
};

// Place of 16 bytes of a row of cells: those of every second voxel lie in different banks.
template <int OUTPUTS>
__device__ __forceinline__ int swizzled_unit(int unit) {
    return unit ^ (unit / (OUTPUTS / 4) & 7);
}

// What a lane writes of a pass: 16 bytes of each row of cells, through shared memory.
template <class Held>
struct Written {
    static constexpr int VOXEL_UNITS = Held::VOXEL_UNITS;

    int group, rows;    // rows: of cells, in the patch
    bool is_inside;
    const char* read_from;
    unsigned stored, own_unit;
    Index row_step;
    Element* own;

    __device__ __forceinline__ Written(
        const ConvTransposeToCells& p, const Task& task, Held& shared, int group, int first_column
    ) : group(group), rows(min(SIDE, p.cells[1] - task.first_h)), row_step(p.target_strides.row) {
        constexpr int OUTPUTS = Held::OUTPUTS;
        const int warp = threadIdx.x % GROUP / 32, lane = threadIdx.x % 32;
        const int unit = threadIdx.x % GROUP, voxel = unit / VOXEL_UNITS % (2 * COLUMNS);
        const int below_row = unit / VOXEL_UNITS / (2 * COLUMNS);
        is_inside = first_column + voxel / 2 < p.cells[2];
        char* const staged = shared.staged[group];
        read_from = staged + swizzled_unit<OUTPUTS>(unit) * 16;
        stored = __cvta_generic_to_shared(staged);
        const int stored_unit = lane / 16 * ROW_UNITS +
                                (16 * warp / OUTPUTS * COLUMNS + lane % 8) * 2 * VOXEL_UNITS +
                                16 * warp % OUTPUTS / 8 + lane / 8 % 2;
        own_unit = swizzled_unit<OUTPUTS>(stored_unit) * 16;
        own = p.target + (Index)task.number * p.target_strides.patch +
              (Index)task.first_h * p.target_strides.row +
              (Index)(first_column + voxel / 2) * p.target_strides.voxel +
              (below_row * 2 + voxel % 2) * p.outputs + task.run * OUTPUTS + unit % VOXEL_UNITS * 8;
    }

    // offset: of the pass's plane of cells and its voxels.
    __device__ __forceinline__ void write(const float (&sums)[2][N / 2], Index offset) const {
        Element* const pass_cells = own + offset;
        write_staged<GROUP, SIDE, AT_ONCE>(
            group,
            [&](int first) {
#pragma unroll
                for (int right = 0; right < 2; ++right)
#pragma unroll
                    for (int i = 0; i < AT_ONCE; i += 2) {
                        stage_sums(stored + (right * VOXEL_UNITS * 16 ^ own_unit) + i * ROW_BYTES,
                                   &sums[right][4 * (first + i)]);
                    }
            },
            [&](int first) {
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i) {
                    if (first + i >= rows || !is_inside) break;
                    *reinterpret_cast<uint4*>(pass_cells + (Index)(first + i) * row_step) =
                        *reinterpret_cast<const uint4*>(read_from + i * ROW_BYTES);
                }
            }
        );
    }
};

// Measures a lane's sums of a pass; IS_FULL: all of them, otherwise those of some rows and columns.
template <bool IS_FULL>
__device__ __forceinline__ void measure(
    MeasuredRows& measured, const float (&sums)[2][N / 2], int rows, int columns
) {
#pragma unroll
    for (int right = 0; right < 2; ++right)
#pragma unroll
        for (int i = 0; i < SIDE; ++i) {
            if (!IS_FULL && i >= rows) break;
#pragma unroll
            for (int odd = 0; odd < 2; ++odd) {
                if (!IS_FULL && odd >= columns) break;
                measured.add(&sums[right][4 * i], odd);
            }
        }
}

// Consumer: half of the columns of the block's cells.
template <class Held>
__device__ __forceinline__ void multiply(
    const ConvTransposeToCells& p, const Task& task, Held& shared
) {
    constexpr int PASSES = Held::PASSES;
    const int group = threadIdx.x / GROUP, warp = threadIdx.x % GROUP / 32, t = threadIdx.x % 4;
    const int first_column = task.first_w + group * COLUMNS;
    // Of the sums: planes and rows of cells, and columns of this lane, that are measured.
    const Inside real = inside_of(p, p.cells, task.number);
    const int measured_planes = max(0, min(task.planes, real.extents[0] - task.first_d));
    const int measured_rows = max(0, min(SIDE, real.extents[1] - task.first_h));
    const int columns = max(0, min(2, real.extents[2] - first_column - 2 * t));
    // Not from `measured_rows == SIDE`, which ptxas of CUDA 12.9 and 13.0 gets wrong for sm_90: it
    // takes the predicate of VIMNMX.RELU for it.
    const bool is_full =
        task.first_h + SIDE <= real.extents[1] && first_column + COLUMNS <= real.extents[2];
    const Written<Held> written(p, task, shared, group, first_column);
    MeasuredRows measured;
    Products<Held> products(shared, group);
    if (group == 1) shared.begun.wait(0);
#pragma unroll 1
    for (int pass = 0; pass < PASSES * task.planes; ++pass) {
        const int upper = pass % PASSES / (PASSES / 2), below = PASSES == 4 ? pass % 2 : 0;
        products.compute(pass, upper, below);
        if (p.partials && (!ARE_BLOCKS || pass < PASSES * measured_planes)) {
            if (pass == 0) measured.begin(products.sums[0]);
            if (is_full) {
                measure<true>(measured, products.sums, measured_rows, columns);
            } else {
                measure<false>(measured, products.sums, measured_rows, columns);
            }
        }
        written.write(products.sums, (task.first_d + pass / PASSES) * p.target_strides.plane +
                                         (upper * 4 + below * 2) * p.outputs);
    }
    if (!p.partials) return;
    const int count = PASSES * measured_planes * 2 * measured_rows * columns;
    measured.keep(shared.joined[group * WARPS + warp], count);
}

template <class Held>
__device__ __forceinline__ void convolve(const ConvTransposeToCells& p) {
    extern __shared__ char memory[];
    Held& shared = *reinterpret_cast<Held*>(memory);
    const Task task(p, Held::OUTPUTS);
    shared.begin();
    if (threadIdx.x >= 2 * GROUP) {
        give_registers<LOADER_REGISTERS>();
        if (threadIdx.x % GROUP < BOX_LOADERS) {
            load_boxes(p, task, shared);
        } else if (threadIdx.x % 32 == 0) {
            load_weights(p, task, shared);
        }
        __syncwarp();
    } else {
        take_registers<OTHER_REGISTERS>();
        multiply(p, task, shared);
    }
    store_partials<Held::OUTPUTS>(
        p.partials, task.number, p.outputs, task.run * Held::OUTPUTS, shared.joined[0]
    );
}

template <int CHANNELS, int OUTPUTS, int BOXES, int STAGES>
__global__ void __launch_bounds__(THREADS, 1) conv_transpose_to_cells(ConvTransposeToCells p) {
    convolve<Shared<CHANNELS, OUTPUTS, BOXES, STAGES>>(p);
}

#endif
