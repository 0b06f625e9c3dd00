// A convolution, 3^3 of stride 2 and padding 1, by wgmma, which normalises what it reads and measures
// what it makes.
//
// activation(source * factor + summand), [N, D, H, W, C], C a multiple of 32 -> target
// [N, (D + 1) / 2, ..., K], K a multiple of 64. The padding lies around the activated values: it is 0.
//
// The matrix product has as M 64 channels of the target, as N 128 of its voxels, and as its depth 16
// channels of the source. A block walks through planes of 16 x 16 voxels; two groups of four warps have
// half of their columns each. The plane of the source between two planes of the target leads to both, so
// a group sums up two of them at once, and each plane of the source is loaded once. Of its rows the
// voxels at odd places come first and then those at even ones, so that those that 8 neighbours of the
// target see through one tap lie one after another.
//
// Two other groups load boxes of 16 channels through registers, where they are normalised. The weights
// of 32 channels stay in shared memory; more of them pass through it once for each plane.

#include "blocks.cuh"
#include "matrix.cuh"
#include "moments.cuh"
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
};

#if !defined(ELEMENT_FLOAT) && defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int SIDE = 16, SEEN = 2 * SIDE + 1;  // of a block's voxels, and of those that they see
constexpr int COLUMNS = 8;                     // of the target, of a group
constexpr int N = SIDE * COLUMNS;
constexpr int OUTPUTS = 64, TAPS = 9;          // of a plane
constexpr int DEPTH = 16, PIECES = DEPTH / 8;  // channels of a box
constexpr int HALF_ROW = SIDE + 1;             // places for one half of a row
// Of a box: places from its odd voxels to the even ones, and from one piece to the next. So those that
// lanes write at once lie in different banks.
constexpr int EVEN = SEEN * HALF_ROW + 3, PIECE = 2 * EVEN + 2;
constexpr int BOX = PIECES * PIECE * 16;
constexpr int OPERAND = OUTPUTS * DEPTH * 2, STAGE = TAPS * OPERAND;  // bytes of weights
constexpr int AT_ONCE = 4;  // rows that a group brings into order to write them
constexpr int ROW_UNITS = COLUMNS * OUTPUTS / 8, STAGED = AT_ONCE * ROW_UNITS * 16;
constexpr int GROUP = 128, THREADS = 4 * GROUP;
constexpr int LOADER_REGISTERS = 72, OTHER_REGISTERS = 184;
constexpr int BOX_LOADERS = 7 * 32;  // the last warp of the fourth group loads weights
constexpr int BOXES = 3, STAGES = 6;
constexpr int STRIDE = BOX_LOADERS / PIECES;  // voxels from one of a loader to its next
constexpr int LOADS = 5, ROUNDS = 2;          // vectors of a loader at once, and how often in a box
static_assert(ROUNDS * LOADS * STRIDE >= SEEN * SEEN && ROUNDS * LOADS <= 32);

// A slot of a ring; `round` times all of its slots were passed.
template <int COUNT>
struct RingSlot {
    int number = 0, round = 0;

    __device__ __forceinline__ void step_on() {
        if (++number == COUNT) number = 0, ++round;
    }
};

// Four 8 x 8 matrices of which each lane has two numbers of a row, column by column. Lane 8 m + c
// says where column c of matrix m goes.
__device__ __forceinline__ void store_transposed(unsigned column, const uint4& words) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     column
                 ),
                 "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
                 : "memory");
}

__device__ __forceinline__ void wait_for_group(int group) {
    asm volatile("barrier.sync.aligned %0, %1;" ::"r"(group + 1), "n"(GROUP) : "memory");
}

// Without waiting for it; zeros where it is not inside.
__device__ __forceinline__ void copy_vector(unsigned target, const void* source, bool is_inside) {
    const int size = is_inside ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source),
                 "r"(size)
                 : "memory");
}

__device__ __forceinline__ void end_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// All but the last batches.
template <int BATCHES>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(BATCHES) : "memory");
}

// A loader's walk through the voxels of a box.
struct SeenVoxel {
    int row, column;

    __device__ __forceinline__ SeenVoxel(int number) : row(number / SEEN), column(number % SEEN) {}

    __device__ __forceinline__ bool is_one() const { return row < SEEN; }

    __device__ __forceinline__ void step_on() {
        row += STRIDE / SEEN;
        column += STRIDE % SEEN;
        if (column >= SEEN) column -= SEEN, ++row;
    }

    // Its bytes from the first of a piece.
    __device__ __forceinline__ int place() const {
        return ((column & 1 ? EVEN : 0) + row * HALF_ROW + column / 2) * 16;
    }
};

// What one of the loading lanes has of each box: 8 channels of some voxels.
struct Loader {
    const Element* source;  // at the first of those channels, of the patch
    int extents[3], channels;
    int d, h, w;            // where the first plane begins
    int first;              // of the voxels

    // Begins to copy a plane of the channels from `chunk` on; bit i of the result says whether voxel
    // number i lies in the patch.
    __device__ __forceinline__ unsigned copy(int plane, int chunk, unsigned box) const {
        const bool is_there = (unsigned)(d + plane) < (unsigned)extents[0];
        const Element* from = source + (Index)(d + plane) * extents[1] * extents[2] * channels +
                              chunk * DEPTH;
        unsigned inside = 0;
        SeenVoxel voxel(first);
#pragma unroll 2
        for (int i = 0; i < ROUNDS * LOADS; ++i, voxel.step_on()) {
            if (!voxel.is_one()) break;
            const int row = h + voxel.row, column = w + voxel.column;
            const bool is_inside = is_there && (unsigned)row < (unsigned)extents[1] &&
                                   (unsigned)column < (unsigned)extents[2];
            const int place = (row * extents[2] + column) * channels;
            copy_vector(box + voxel.place(), is_inside ? from + place : source, is_inside);
            inside |= (unsigned)is_inside << i;
        }
        return inside;
    }

    // Expresses what it has copied, in place; what is not inside stays 0.
    __device__ __forceinline__ void express(
        unsigned inside, const float* factors, const float* summands, float slope, char* box
    ) const {
        float factor[8], summand[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) factor[i] = factors[i], summand[i] = summands[i];
        SeenVoxel voxel(first);
#pragma unroll 1
        for (int round = 0; round < ROUNDS; ++round, inside >>= LOADS) {
            uint4* places[LOADS];
            Vector vectors[LOADS];
#pragma unroll
            for (int i = 0; i < LOADS; ++i, voxel.step_on()) {
                places[i] = reinterpret_cast<uint4*>(box + voxel.place());
                if (inside >> i & 1) vectors[i] = reinterpret_cast<const Vector&>(*places[i]);
            }
#pragma unroll
            for (int i = 0; i < LOADS; ++i) {
                float value[8];
#pragma unroll
                for (int k = 0; k < 8; ++k) {
                    value[k] = fmaf(to_float(vectors[i].lanes[k]), factor[k], summand[k]);
                    value[k] = fmaxf(value[k], slope * value[k]);
                }
                const uint4 words =
                    make_uint4(pair(value[0], value[1]), pair(value[2], value[3]),
                               pair(value[4], value[5]), pair(value[6], value[7]));
                if (inside >> i & 1) *places[i] = words;
            }
        }
    }
};

// CHANNELS: of the source.
template <int CHANNELS>
__device__ __forceinline__ void convolve(const ConvolveStrided& p) {
    constexpr int CHUNKS = CHANNELS / DEPTH;
    constexpr bool ARE_KEPT = 3 * CHUNKS <= STAGES;  // whether all weights stay
    extern __shared__ char shared[];
    char* boxes = shared;                  // [BOXES][PIECES][PIECE][8]
    char* stages = boxes + BOXES * BOX;    // [STAGES][TAPS][PIECES][OUTPUTS][8]
    char* staged = stages + STAGES * STAGE;  // [2][AT_ONCE][COLUMNS][OUTPUTS], swizzled
    float* scales = reinterpret_cast<float*>(staged + 2 * STAGED);  // [2][CHANNELS]
    Moments* joined = reinterpret_cast<Moments*>(scales + 2 * CHANNELS);  // [8 warps][16]
    Signal* loaded = reinterpret_cast<Signal*>(joined + 8 * 16);          // of each box
    Signal* left = loaded + BOXES;
    Signal* stage_loaded = left + BOXES;
    Signal* stage_left = stage_loaded + STAGES;

    const int blocks_w = (p.extents[2] + SIDE - 1) / SIDE;
    const int first_w = blockIdx.x % blocks_w * SIDE, first_h = blockIdx.x / blocks_w * SIDE;
    const int first_d = blockIdx.y * p.planes, planes = min(p.planes, p.extents[0] - first_d);
    const int parts = p.outputs / OUTPUTS, part = blockIdx.z % parts, number = blockIdx.z / parts;
    const int group = threadIdx.x / GROUP, warp = threadIdx.x % GROUP / 32;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;

    if (threadIdx.x < BOXES) {
        loaded[threadIdx.x].expect(BOX_LOADERS);
        left[threadIdx.x].expect(8);
    }
    if (threadIdx.x < STAGES) {
        stage_loaded[threadIdx.x].expect(1);
        stage_left[threadIdx.x].expect(8);
    }
    if (threadIdx.x < CHANNELS) {
        const int place = number * p.table_stride + threadIdx.x;
        scales[threadIdx.x] = p.factor ? p.factor[place] : 1.0f;
        scales[CHANNELS + threadIdx.x] = p.factor ? p.summand[place] : 0.0f;
    }
    publish();
    __syncthreads();

    if (group >= 2) {
        give_registers<LOADER_REGISTERS>();
        const int loader = threadIdx.x - 2 * GROUP;
        if (loader < BOX_LOADERS) {
            const int piece = loader % PIECES;
            const Loader own = {
                p.source + piece * 8 + (Index)number * p.source_extents[0] * p.source_extents[1] *
                                           p.source_extents[2] * CHANNELS,
                {p.source_extents[0], p.source_extents[1], p.source_extents[2]},
                CHANNELS,
                2 * first_d - 1,
                2 * first_h - 1,
                2 * first_w - 1,
                loader / PIECES
            };
            const bool is_bare = !p.factor && p.slope == 1.0f;
            char* const first_piece = boxes + piece * PIECE * 16;
            const unsigned to = __cvta_generic_to_shared(first_piece);
            RingSlot<BOXES> coming, come;
            unsigned inside = 0;
            const int count = (2 * planes + 1) * CHUNKS;
            // One box is expressed while the next one comes.
#pragma unroll 1
            for (int i = 0; i <= count; ++i) {
                unsigned next_inside = 0;
                if (i < count) {
                    if (coming.round) left[coming.number].wait(coming.round - 1);
                    next_inside = own.copy(i / CHUNKS, i % CHUNKS, to + coming.number * BOX);
                    coming.step_on();
                }
                end_copies();
                if (i > 0) {
                    wait_for_copies<1>();
                    if (!is_bare) {
                        const float* own_scales = scales + (i - 1) % CHUNKS * DEPTH + piece * 8;
                        own.express(inside, own_scales, own_scales + CHANNELS, p.slope,
                                    first_piece + come.number * BOX);
                    }
                    publish();
                    loaded[come.number].tell();
                    come.step_on();
                }
                inside = next_inside;
            }
        } else if (lane == 0) {
            const char* weights =
                reinterpret_cast<const char*>(p.weights) + (Index)part * 3 * CHUNKS * STAGE;
            RingSlot<STAGES> stage;
            auto load = [&](int number) {
                if (stage.round) stage_left[stage.number].wait(stage.round - 1);
                stage_loaded[stage.number].tell_when_read(
                    stages + stage.number * STAGE, weights + number * STAGE, STAGE
                );
                stage.step_on();
            };
            for (int number = 0; ARE_KEPT && number < 3 * CHUNKS; ++number) load(number);
            for (int plane = 0; !ARE_KEPT && plane <= 2 * planes; ++plane) {
                const bool is_between = plane % 2 == 0;
                for (int first = 0; first < 3 * CHUNKS; first += 3) {
                    if (!is_between) load(first + 1);
                    if (is_between && plane > 0) load(first + 2);
                    if (is_between && plane < 2 * planes) load(first);
                }
            }
        }
        __syncwarp();
    } else {
        take_registers<OTHER_REGISTERS>();
        const unsigned long long first_voxels =
            described(boxes + group * COLUMNS * 16, PIECE * 16, 2 * HALF_ROW * 16);
        const unsigned long long first_weights = described(stages, OUTPUTS * 16, 128);
        const int first_column = first_w + group * COLUMNS;
        // Of the sums: rows, and columns of this lane, that lie in the target.
        const int rows = min(SIDE, p.extents[1] - first_h);
        const int columns = p.extents[2] - first_column - 2 * t;
        // Of what this lane writes: a unit of 16 bytes in every second row.
        const int unit = threadIdx.x % GROUP, voxel = unit / 8 % COLUMNS, below = unit / ROW_UNITS;
        const bool is_inside = first_column + voxel < p.extents[2];
        char* const own_staged = staged + group * STAGED;
        const char* const read_from = own_staged + (unit ^ voxel & 7) * 16;
        const unsigned stored =
            __cvta_generic_to_shared(own_staged) +
            (lane / 16 * ROW_UNITS + lane % 8 * 8 + ((2 * warp + lane / 8 % 2) ^ lane % 8)) * 16;
        const Index row_numbers = (Index)p.extents[2] * p.outputs;
        Element* const own =
            p.target +
            (((Index)number * p.extents[0] + first_d) * p.extents[1] + first_h + below) *
                row_numbers +
            (Index)(first_column + voxel) * p.outputs + part * OUTPUTS + unit % 8 * 8;
        Sums low{0.0f, 0.0f, 0.0f}, high{0.0f, 0.0f, 0.0f};
        float sums[2][N / 2];  // of this plane of the target, and of the next
        RingSlot<BOXES> box;
        RingSlot<STAGES> stage;
        int read_box = -1, read_stage = -1;

        auto leave = [&] {
            __syncwarp();
            if (lane == 0) {
                if (read_box >= 0) left[read_box].tell();
                if (!ARE_KEPT && read_stage >= 0) stage_left[read_stage].tell();
            }
            read_box = read_stage = -1;
        };
        // The products of the box with the taps of a plane of the kernel.
        auto add = [&](float(&own_sums)[N / 2], int kept, bool is_last_use) {
            loaded[box.number].wait(box.round);
            const int slot = ARE_KEPT ? kept : stage.number;
            stage_loaded[slot].wait(ARE_KEPT ? 0 : stage.round);
            const unsigned long long b = first_voxels + box.number * (BOX / 16);
            const unsigned long long a = first_weights + slot * (STAGE / 16);
            begin_products();
#pragma unroll
            for (int tap = 0; tap < TAPS; ++tap) {
                const int kh = tap / 3, kw = tap % 3;
                multiply_add(own_sums, a + tap * (OPERAND / 16),
                             b + kh * HALF_ROW + (kw == 1 ? EVEN : kw / 2));
            }
            end_batch();
            if (read_stage >= 0) {
                wait_for_products<1>();
                leave();
            }
            read_box = is_last_use ? box.number : -1;
            read_stage = slot;
            if (!ARE_KEPT) stage.step_on();
        };
        // What this lane has of those voxels that lie in the target.
        auto measure = [&] {
#pragma unroll
            for (int i = 0; i < SIDE; ++i) {
#pragma unroll
                for (int odd = 0; odd < 2; ++odd) {
                    if (i < rows && odd < columns) {
                        low.add(sums[0][4 * i + odd]);
                        high.add(sums[0][4 * i + 2 + odd]);
                    }
                }
            }
        };
        // Through shared memory, so that a warp writes whole lines; some rows after others.
        auto write = [&](Element* plane) {
#pragma unroll
            for (int first = 0; first < SIDE; first += AT_ONCE) {
                wait_for_group(group);
#pragma unroll
                for (int i = 0; i < AT_ONCE; i += 2) {
                    const float* own = &sums[0][4 * (first + i)];
                    store_transposed(
                        stored + i * (ROW_UNITS * 16),
                        make_uint4(pair(own[0], own[1]), pair(own[2], own[3]),
                                   pair(own[4], own[5]), pair(own[6], own[7]))
                    );
                }
                wait_for_group(group);
#pragma unroll
                for (int i = 0; i < AT_ONCE; i += 2) {
                    if (first + i + below >= rows || !is_inside) break;
                    *reinterpret_cast<uint4*>(plane + (first + i) * row_numbers) =
                        *reinterpret_cast<const uint4*>(read_from + i * (ROW_UNITS * 16));
                }
            }
        };
        auto clear = [&](float(&own_sums)[N / 2]) {
#pragma unroll
            for (int i = 0; i < N / 2; ++i) own_sums[i] = 0.0f;
        };
        auto finish_products = [&] {
            wait_for_products<0>();
            hold(sums[0]);
            hold(sums[1]);
            leave();
        };
        clear(sums[0]);
        hold(sums[0]);
#pragma unroll 1
        for (int plane = 0; plane < planes; ++plane) {
            // The kernel's planes 0, 1 and 2 lead to this one; of those before and behind it, the
            // neighbouring planes of the target see the same boxes.
            const int first_tap = plane == 0 ? 0 : 1, last_tap = plane == planes - 1 ? 2 : 1;
#pragma unroll 1
            for (int i = first_tap * CHUNKS; i < (last_tap + 1) * CHUNKS; ++i, box.step_on()) {
                add(sums[0], i % CHUNKS * 3 + i / CHUNKS, true);
            }
            finish_products();
            clear(sums[1]);
            hold(sums[1]);
#pragma unroll 1
            for (int chunk = 0; plane < planes - 1 && chunk < CHUNKS; ++chunk, box.step_on()) {
                add(sums[0], chunk * 3 + 2, false);
                add(sums[1], chunk * 3, true);
            }
            finish_products();
            if (p.partials) {
                if (plane == 0) low.shift = sums[0][0], high.shift = sums[0][2];
                measure();
            }
            write(own + plane * p.extents[1] * row_numbers);
#pragma unroll
            for (int i = 0; i < N / 2; ++i) sums[0][i] = sums[1][i];
            hold(sums[0]);
        }
        if (p.partials) {
            const int count = planes * rows * max(0, min(2, columns));
            const Moments lower = of_four_lanes(low.moments(count));
            const Moments upper = of_four_lanes(high.moments(count));
            Moments* own = joined + (group * 4 + warp) * 16;
            if (t == 0) own[g] = lower, own[8 + g] = upper;
        }
    }
    if (!p.partials) return;
    __syncthreads();
    if (threadIdx.x >= OUTPUTS) return;
    Moments moments{0.0f, 0.0f, 0.0f};
    for (int other = threadIdx.x / 16; other < 8; other += OUTPUTS / 16) {
        moments.join(joined[other * 16 + threadIdx.x % 16]);
    }
    const Index block = ((Index)number * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    p.partials[block * p.outputs + part * OUTPUTS + threadIdx.x] = moments;
}

#define CONVOLVE_STRIDED(channels)                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                             \
        convolve_strided_##channels(ConvolveStrided p) {                                 \
        convolve<channels>(p);                                                           \
    }

CONVOLVE_STRIDED(32)
CONVOLVE_STRIDED(64)
CONVOLVE_STRIDED(128)

#endif
