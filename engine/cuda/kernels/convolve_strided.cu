// A convolution, 3^3 of stride 2 and padding 1, by wgmma. It normalises its input as it reads it, and
// computes statistics of its output.
//
// activation(source * factor + summand), [N, D, H, W, 32] -> target [N, (D + 1) / 2, ..., K], K a multiple
// of 64. The padding lies around the activated values: it is 0.
//
// The matrix product has as M 64 channels of the target, as N 128 of its voxels, and as its depth 16
// channels of the source. A block loops over planes of 16 x 8 voxels, which two consumer warpgroups
// compute in turns: while one reduces and writes, the other has the Tensor Cores. The plane of the source
// between two planes of the target contributes to both, and is loaded once. Of its rows the voxels at odd
// places come first and then those at even ones, so that those that 8 neighbours of the target read
// through one tap follow each other.
//
// Three producer warpgroups read boxes of 16 channels into registers, some boxes before their use, and
// store them activated in shared memory, where the weights stay. They read without a branch, past a border
// its last voxels: the compiler lets a read that may not happen wait for the one before.
//
// 32 to 64 channels on an H200 in fp16, 128^3: 0.076 ms, 256x256x180: 0.457 with statistics; cuDNN's plan
// and the pass before it take 0.073 and 0.076, 0.347 and 0.401. Copying a box and activating it in place,
// through shared memory twice, took 0.085 and 0.549.
//
// Measured 2026-11-26 (H200, fp16; bounds as in docs/gpu-engine.md): 32 to 64 channels, 128^3 to 64^3,
// 75.0 us, bound by 168 MB, 53 % of it.
// Alternative (2026-11-29): by cuDNN with its passes the layer's network takes 253 us, with this kernel 173.

#include "blocks.cuh"
#include "epilogue.cuh"
#include "part.cuh"
#include "pipeline.cuh"
#include "wgmma.cuh"

struct ConvolveStrided {
    const Element* source;
    const Element* weights;  // operands in the order of use
    Element* target;
    Moments* partials;       // [N][blocks of a patch][K], or null
    const float* factor;     // [N or 1][C], or null
    const float* summand;
    int table_stride;        // 0 where one table serves all patches
    float slope;             // of values below 0, from 0 to 1
    int source_extents[3];
    int extents[3];          // of the target
    int outputs;             // K
    int planes;              // of the target, a block
#ifdef IN_BLOCKS
    Blocks blocks;           // of the target
    Blocks source_blocks;    // of the source, whose blocks follow from the voxel
    Around source_around;
#endif
};

#if !defined(ELEMENT_FLOAT) && defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int HEIGHT = 16, WIDTH = 8, N = HEIGHT * WIDTH;  // of a block's voxels
constexpr int SEEN_ROWS = 2 * HEIGHT + 1, SEEN_COLUMNS = 2 * WIDTH + 1;
constexpr int CHANNELS = 32, OUTPUTS = 64, TAPS = 9;                      // of a plane
constexpr int DEPTH = 16, PIECES = DEPTH / 8, CHUNKS = CHANNELS / DEPTH;  // channels of a box
constexpr int HALF_ROW = WIDTH + 1;            // places for one half of a row
// Of a box: places from its odd voxels to the even ones, and from one piece to the next. So those that
// lanes write at once lie in different banks.
constexpr int EVEN = SEEN_ROWS * HALF_ROW + 3, PIECE = EVEN + SEEN_ROWS * HALF_ROW + 5;
static_assert(EVEN % 8 == 4 && PIECE % 8 == 2);
constexpr int BOX = PIECES * PIECE * 16;
constexpr int OPERAND = OUTPUTS * DEPTH * 2, STAGE = TAPS * OPERAND;  // bytes of weights
constexpr int AT_ONCE = 2;  // rows that a group stages to write them
constexpr int ROW_UNITS = WIDTH * OUTPUTS / 8, STAGED = AT_ONCE * ROW_UNITS * 16;
constexpr int GROUP = 128, WARPS = GROUP / 32, THREADS = 5 * GROUP;
constexpr int LOADER_REGISTERS = 80, OTHER_REGISTERS = 120;
constexpr int BOXES = 6, STAGES = 3 * CHUNKS;  // slots, and pieces of the weights
// Of the lanes that load boxes, each has 8 channels of a column, and of its rows every ROW_STEP-th.
constexpr int LANES_OF_ROW = SEEN_COLUMNS * PIECES, ROW_STEP = (THREADS - 2 * GROUP) / LANES_OF_ROW;
constexpr int LOADERS = ROW_STEP * LANES_OF_ROW, LOADER_WARPS = THREADS / 32 - 2 * WARPS;
constexpr int EACH = SEEN_ROWS / ROW_STEP, AHEAD = 2;  // boxes in registers
static_assert(SEEN_ROWS % ROW_STEP == 0 && CHUNKS % AHEAD == 0);

// What a block computes: OUTPUTS channels of some planes of a patch.
struct Task {
    int number, first_output, run, first_d, first_h, first_w, planes;

    __device__ __forceinline__ Task(const ConvolveStrided& p) {
        const int across = (p.extents[2] + WIDTH - 1) / WIDTH, runs = p.outputs / OUTPUTS;
        first_w = blockIdx.x % across * WIDTH, first_h = blockIdx.x / across * HEIGHT;
        first_d = blockIdx.y * p.planes, planes = min(p.planes, p.extents[0] - first_d);
        run = blockIdx.z % runs, first_output = run * OUTPUTS, number = blockIdx.z / runs;
    }

    // Whether a plane of the source leads to one of the target through a plane of the kernel, and the
    // group that computes that one.
    __device__ __forceinline__ bool has_tap(int plane, int tap) const {
        return (plane + tap) % 2 == 0 && plane >= tap && plane - tap < 2 * planes;
    }
    __device__ __forceinline__ static int user(int plane, int tap) { return (plane - tap) / 2 % 2; }
};

// Of the 8 channels of a loading lane.
struct alignas(16) Scales {
    float lanes[8];
};

struct Shared {
    char boxes[BOXES][BOX];       // [PIECES][PIECE][8]
    char weights[STAGES][STAGE];  // [TAPS][PIECES][OUTPUTS][8]
    char staged[2][STAGED];       // [AT_ONCE][WIDTH][OUTPUTS], swizzled
    float factors[CHANNELS], summands[CHANNELS];
    Moments joined[2 * WARPS][16];
    Barrier full[2][BOXES], empty[BOXES], weights_full[STAGES];  // full: for each group

    __device__ __forceinline__ void begin(const ConvolveStrided& p, int number) {
        if (threadIdx.x < BOXES) {
            full[0][threadIdx.x].init(LOADER_WARPS);
            full[1][threadIdx.x].init(LOADER_WARPS);
            empty[threadIdx.x].init(2 * WARPS);
        }
        if (threadIdx.x < STAGES) weights_full[threadIdx.x].init(1);
        if (threadIdx.x < CHANNELS) {
            const int place = number * p.table_stride + threadIdx.x;
            factors[threadIdx.x] = p.factor ? p.factor[place] : 1.0f;
            summands[threadIdx.x] = p.factor ? p.summand[place] : 0.0f;
        }
        fence_async_proxy();
        __syncthreads();
    }
};

#ifdef IN_BLOCKS
using Offset = Index;
#else
using Offset = int;
#endif

// The patch of the source with which a patch's addresses begin.
__device__ __forceinline__ Index source_patch(const ConvolveStrided& p, int number) {
#ifdef IN_BLOCKS
    if (!p.source_around.extents[0]) return -p.source_blocks.first;
#endif
    return number;
}

// The end of what a patch sees along an axis, beyond which the source is 0 or of no use: nothing is read
// of later blocks.
__device__ __forceinline__ int end_of(const ConvolveStrided& p, const Start& start, int axis) {
#ifdef IN_BLOCKS
    const int end = p.source_blocks.volume[axis];
#else
    const int end = p.source_extents[axis];
#endif
    return min(end, 2 * (start.at[axis] + p.extents[axis]));
}

// The source as a patch sees it, along one axis.
struct Axis {
#ifdef IN_BLOCKS
    Index step, block_step;  // numbers from a position to the next, and from a block to the next
    int start;               // first voxel of the patch's block

    __device__ __forceinline__ Axis(const ConvolveStrided& p, int axis, int number) {
        const int (&extents)[3] = p.source_extents;
        step = CHANNELS, block_step = (Index)extents[0] * extents[1] * extents[2] * CHANNELS;
        for (int inner = 2; inner > axis; --inner) {
            step *= extents[inner], block_step *= p.source_blocks.counts[inner - 1];
        }
        start = 2 * p.blocks.start(number).at[axis];
    }

    // Numbers before a position.
    __device__ __forceinline__ Index before(
        const ConvolveStrided& p, int axis, int position
    ) const {
        if (p.source_around.extents[0]) return p.source_around.within(position, start, axis) * step;
        const int block = p.source_blocks.block_at(position, axis);
        return block * block_step + (position - block * p.source_extents[axis]) * step;
    }
#else
    int step;

    __device__ __forceinline__ Axis(const ConvolveStrided& p, int axis, int) : step(CHANNELS) {
        for (int inner = 2; inner > axis; --inner) step *= p.source_extents[inner];
    }

    __device__ __forceinline__ Index before(const ConvolveStrided&, int, int position) const {
        return (Index)position * step;
    }
#endif
};

// What one of the loading lanes has of each box.
struct Loader {
    const ConvolveStrided& p;
    const Axis depth;
    const Element* source;  // of the patch, at its 8 channels
    int first_d, end_d;     // first plane, and end of the planes
    Offset places[EACH];    // of its voxels in a plane
    bool is_inside[EACH];
    int stored;             // bytes of the first one in a box

    __device__ __forceinline__ Loader(const ConvolveStrided& p, const Task& task, int lane)
        : p(p), depth(p, 0, task.number) {
        const int (&extents)[3] = p.source_extents;
        const int piece = lane % PIECES, column = lane / PIECES % SEEN_COLUMNS;
        const int first_row = lane / LANES_OF_ROW;
        const Start start = start_of(p, task.number);
        first_d = 2 * (task.first_d + start.at[0]) - 1;
        const int h = 2 * (task.first_h + start.at[1]) - 1;
        const int w = 2 * (task.first_w + start.at[2]) - 1;
        end_d = end_of(p, start, 0);
        const int end_h = end_of(p, start, 1), end_w = end_of(p, start, 2);
        const Index patch = (Index)extents[0] * extents[1] * extents[2] * CHANNELS;
        source = p.source + source_patch(p, task.number) * patch + piece * 8;
        stored = (piece * PIECE + column % 2 * EVEN + first_row * HALF_ROW + column / 2) * 16;
        const Axis height(p, 1, task.number), width(p, 2, task.number);
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int row = h + first_row + i * ROW_STEP;
            const int y = min(max(row, 0), end_h - 1);
            const int x = min(max(w + column, 0), end_w - 1);
            places[i] = height.before(p, 1, y) + width.before(p, 2, x);
            is_inside[i] = y == row && x == w + column;
        }
    }

    // Begins to read a plane of the channels from `chunk` on.
    __device__ __forceinline__ void fetch(int plane, int chunk, uint4 (&vectors)[EACH]) const {
        const int d = min(max(first_d + plane, 0), end_d - 1);
        const Element* from = source + depth.before(p, 0, d) + chunk * DEPTH;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            vectors[i] = __ldcg(reinterpret_cast<const uint4*>(from + places[i]));
        }
    }

    // Stores what it has read, activated; what is not inside is 0.
    __device__ __forceinline__ void store(
        int plane, const uint4 (&vectors)[EACH], const Scales& factors, const Scales& summands,
        char* box
    ) const {
        const Scales factor = factors, summand = summands;
        const bool is_there = (unsigned)(first_d + plane) < (unsigned)end_d;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const uint4 word = activated(vectors[i], factor.lanes, summand.lanes, p.slope);
            const unsigned shown = is_there && is_inside[i] ? ~0u : 0u;
            *reinterpret_cast<uint4*>(box + stored + i * (ROW_STEP * HALF_ROW * 16)) =
                make_uint4(word.x & shown, word.y & shown, word.z & shown, word.w & shown);
        }
    }
};

// Producer: all boxes of a block, for either group that uses them.
__device__ __forceinline__ void load(const ConvolveStrided& p, const Task& task, Shared& shared) {
    const int loader = threadIdx.x - 2 * GROUP;
    if (loader == 0) {
        const char* weights = reinterpret_cast<const char*>(p.weights) +
                              (Index)task.run * STAGES * STAGE;
        for (int i = 0; i < STAGES; ++i) {
            shared.weights_full[i].arrive_with_bytes(shared.weights[i], weights + i * STAGE, STAGE);
        }
    }
    const int place = min(loader, LOADERS - 1);  // the last lanes do the same
    const Loader own(p, task, place);
    const Scales* factors = reinterpret_cast<const Scales*>(shared.factors) + place % PIECES;
    const Scales* summands = reinterpret_cast<const Scales*>(shared.summands) + place % PIECES;
    RingSlot<BOXES> box;
    const int count = (2 * task.planes + 1) * CHUNKS;
    uint4 vectors[AHEAD][EACH];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) own.fetch(i / CHUNKS, i % CHUNKS, vectors[i]);
#pragma unroll 1
    for (int first = 0; first < count; first += AHEAD) {
#pragma unroll
        for (int ahead = 0; ahead < AHEAD; ++ahead) {
            const int i = first + ahead, plane = i / CHUNKS, next = i + AHEAD;
            const int own_scales = i % CHUNKS * PIECES;
            if (box.phase) shared.empty[box.index].wait(box.phase - 1);
            own.store(plane, vectors[ahead], factors[own_scales], summands[own_scales],
                      shared.boxes[box.index]);
            fence_async_proxy();
            __syncwarp();
#pragma unroll 1
            for (int tap = 0; threadIdx.x % 32 == 0 && tap < 3; ++tap) {
                if (!task.has_tap(plane, tap)) continue;
                shared.full[task.user(plane, tap)][box.index].arrive();
            }
            box.advance();
            own.fetch(next / CHUNKS, next % CHUNKS, vectors[ahead]);  // past the end, too
        }
    }
    __syncwarp();
}

// Sums of a group's plane of the target: of 64 channels and N voxels.
struct Products {
    const Task& task;
    Shared& shared;
    float sums[N / 2];
    unsigned long long first_voxels, first_weights;
    int group;
    unsigned phases = 0;  // of each box, whether this group has seen an odd number of them
    int read_box = -1, read_times = 0;

    __device__ __forceinline__ Products(const Task& task, Shared& shared, int group)
        : task(task), shared(shared), group(group) {
        first_voxels = descriptor_of(shared.boxes[0], PIECE * 16, 2 * HALF_ROW * 16);
        first_weights = descriptor_of(shared.weights[0], OUTPUTS * 16, 128);
    }

    // A box that one group alone has read, it releases for both.
    __device__ __forceinline__ void release() {
        __syncwarp();
        for (int i = 0; threadIdx.x % 32 == 0 && read_box >= 0 && i < read_times; ++i) {
            shared.empty[read_box].arrive();
        }
        read_box = -1;
    }

    // Those of a box with a plane of the kernel.
    __device__ __forceinline__ void add_box(int plane, int chunk, int of_kernel) {
        const int box = (plane * CHUNKS + chunk) % BOXES;
        const int stage = chunk * 3 + of_kernel;
        shared.full[group][box].wait(phases >> box);
        phases ^= 1u << box;
        shared.weights_full[stage].wait(0);
        const unsigned long long b = first_voxels + box * (BOX / 16);
        const unsigned long long a = first_weights + stage * (STAGE / 16);
        begin_products();
#pragma unroll
        for (int tap = 0; tap < TAPS; ++tap) {
            const int kh = tap / 3, kw = tap % 3;
            multiply_add(sums, a + tap * (OPERAND / 16),
                         b + kh * HALF_ROW + (kw == 1 ? EVEN : kw / 2));
        }
        end_batch();
        if (read_box >= 0) {
            wait_for_products<1>();
            release();
        }
        read_box = box;
        read_times = task.has_tap(plane, of_kernel ^ 2) && of_kernel != 1 ? 1 : 2;
    }

    // Those of a plane of the target.
    __device__ __forceinline__ void compute(int plane) {
#pragma unroll
        for (int i = 0; i < N / 2; ++i) sums[i] = 0.0f;
        fence_operand(sums);
#pragma unroll 1
        for (int i = 0; i < 3 * CHUNKS; ++i) add_box(2 * plane + i / CHUNKS, i % CHUNKS, i / CHUNKS);
        wait_for_products<0>();
        fence_operand(sums);
        release();
    }
};

// What a lane writes of a plane: 16 bytes of a voxel of some rows, through shared memory.
struct Written {
    int group, rows, below;       // rows: of the plane, in the target
    bool is_inside;
    const char* read_from;        // in shared memory
    unsigned stored;
    Index row_numbers, plane_numbers;
    Element* own;                 // of the first plane

    __device__ __forceinline__ Written(
        const ConvolveStrided& p, const Task& task, Shared& shared, int group
    ) : group(group), rows(min(HEIGHT, p.extents[1] - task.first_h)) {
        const int warp = threadIdx.x % GROUP / 32, lane = threadIdx.x % 32;
        const int unit = threadIdx.x % GROUP, voxel = unit / 8 % WIDTH;
        below = unit / ROW_UNITS;
        is_inside = task.first_w + voxel < p.extents[2];
        char* const staged = shared.staged[group];
        read_from = staged + (unit ^ voxel & 7) * 16;
        stored = __cvta_generic_to_shared(staged) +
                 (lane / 16 * ROW_UNITS + lane % 8 * 8 + ((2 * warp + lane / 8 % 2) ^ lane % 8)) * 16;
        row_numbers = (Index)p.extents[2] * p.outputs;
        plane_numbers = p.extents[1] * row_numbers;
        own = p.target +
              (((Index)task.number * p.extents[0] + task.first_d) * p.extents[1] + task.first_h +
               below) * row_numbers +
              (Index)(task.first_w + voxel) * p.outputs + task.first_output + unit % 8 * 8;
    }

    __device__ __forceinline__ void write(const float (&sums)[N / 2], int plane) const {
        Element* const first_row = own + plane * plane_numbers;
        write_staged<GROUP, HEIGHT, AT_ONCE>(
            group, [&](int row) { stage_sums(stored, &sums[4 * row]); },
            [&](int row) {
                if (row + below >= rows || !is_inside) return;
                *reinterpret_cast<uint4*>(first_row + row * row_numbers) =
                    *reinterpret_cast<const uint4*>(read_from);
            }
        );
    }
};

// Consumer: every second plane of the target.
__device__ __forceinline__ void multiply(const ConvolveStrided& p, const Task& task, Shared& shared) {
    const int group = threadIdx.x / GROUP, warp = threadIdx.x % GROUP / 32, t = threadIdx.x % 4;
    // Of the sums: planes, rows, and columns of this lane, that are measured.
    const Inside real = inside_of(p, p.extents, task.number);
    const int measured_planes = max(0, min(task.planes, real.extents[0] - task.first_d));
    const int measured_rows = max(0, min(HEIGHT, real.extents[1] - task.first_h));
    const int columns = max(0, min(2, real.extents[2] - task.first_w - 2 * t));
    const Written written(p, task, shared, group);
    MeasuredRows measured;
    Products products(task, shared, group);
#pragma unroll 1
    for (int plane = group; plane < task.planes; plane += 2) {
        products.compute(plane);
        if (p.partials && (!ARE_BLOCKS || plane < measured_planes)) {
            if (plane == group) measured.begin(products.sums);
#pragma unroll
            for (int i = 0; i < HEIGHT; ++i) {
#pragma unroll
                for (int odd = 0; odd < 2; ++odd) {
                    if (i < measured_rows && odd < columns) measured.add(&products.sums[4 * i], odd);
                }
            }
        }
        written.write(products.sums, plane);
    }
    if (!p.partials) return;
    const int own_planes = (measured_planes + 1 - group) / 2;
    measured.keep(shared.joined[group * WARPS + warp], own_planes * measured_rows * columns);
}

// Block (THREADS); grid (boxes across, walks along the depth, parts of the outputs x patches).
extern "C" __global__ void __launch_bounds__(THREADS, 1) convolve_strided_32(ConvolveStrided p) {
    extern __shared__ char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const Task task(p);
    shared.begin(p, task.number);
    if (threadIdx.x >= 2 * GROUP) {
        give_registers<LOADER_REGISTERS>();
        load(p, task, shared);
    } else {
        take_registers<OTHER_REGISTERS>();
        multiply(p, task, shared);
    }
    store_partials<OUTPUTS>(p.partials, task.number, p.outputs, task.first_output, shared.joined[0]);
}

#endif
