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
constexpr int LOADER_REGISTERS = 80, OTHER_REGISTERS = 176;
constexpr int BOX_LOADERS = 7 * 32;  // the last warp of the fourth group loads weights
constexpr int BOXES = 3, STAGES = 6;
constexpr int STRIDE = BOX_LOADERS / PIECES;  // voxels from one of a loader to its next
constexpr int LOADS = 3;                      // of a loader at once
constexpr int ROUNDS = 4;                     // of them, that make a box
static_assert(ROUNDS * LOADS * STRIDE >= SEEN * SEEN && ROUNDS % 2 == 0);

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

// A loader's walk through the voxels of a box.
struct SeenVoxel {
    int row, column;

    __device__ __forceinline__ explicit SeenVoxel(int number)
        : row(number / SEEN), column(number % SEEN) {}

    __device__ __forceinline__ void step_on() {
        row += STRIDE / SEEN;
        column += STRIDE % SEEN;
        if (column >= SEEN) column -= SEEN, ++row;
    }

    // Among the places of a piece.
    __device__ __forceinline__ int place() const {
        return (column & 1 ? EVEN : 0) + row * HALF_ROW + column / 2;
    }
};

// Where a loader's voxels come from.
struct SeenPlanes {
    const Element* source;  // of the patch, at the loader's first channel
    int extents[3], channels;
    int first_d, first_h, first_w;

    // LOADS voxels of a plane and of the channels from `chunk` on; bit i of the result says whether
    // number i lies in the patch.
    __device__ __forceinline__ unsigned load(
        int plane, int chunk, SeenVoxel& voxel, Vector (&loaded)[LOADS]
    ) const {
        const int d = first_d + plane;
        const bool is_there = d >= 0 && d < extents[0];
        const Element* from =
            source + (Index)d * extents[1] * extents[2] * channels + chunk * DEPTH;
        unsigned inside = 0;
#pragma unroll
        for (int i = 0; i < LOADS; ++i, voxel.step_on()) {
            const int h = first_h + voxel.row, w = first_w + voxel.column;
            if (is_there && voxel.row < SEEN && h >= 0 && h < extents[1] && w >= 0 &&
                w < extents[2]) {
                inside |= 1u << i;
                loaded[i] = ::load(from + (h * extents[2] + w) * channels);
            }
        }
        return inside;
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
            const SeenPlanes from = {
                p.source + piece * 8 + (Index)number * p.source_extents[0] * p.source_extents[1] *
                                           p.source_extents[2] * CHANNELS,
                {p.source_extents[0], p.source_extents[1], p.source_extents[2]},
                CHANNELS,
                2 * first_d - 1,
                2 * first_h - 1,
                2 * first_w - 1
            };
            const SeenVoxel first(loader / PIECES);
            char* const to = boxes + piece * PIECE * 16;
            RingSlot<BOXES> box;
            float factor[8], summand[8];
            auto express = [&](SeenVoxel& voxel, unsigned inside, const Vector (&values)[LOADS]) {
#pragma unroll
                for (int i = 0; i < LOADS; ++i, voxel.step_on()) {
                    if (voxel.row >= SEEN) break;
                    uint4 words = make_uint4(0, 0, 0, 0);
                    if (inside >> i & 1) {
                        float value[8];
#pragma unroll
                        for (int k = 0; k < 8; ++k) {
                            value[k] = fmaf(to_float(values[i].lanes[k]), factor[k], summand[k]);
                            value[k] = fmaxf(value[k], p.slope * value[k]);
                        }
                        words = make_uint4(pair(value[0], value[1]), pair(value[2], value[3]),
                                           pair(value[4], value[5]), pair(value[6], value[7]));
                    }
                    *reinterpret_cast<uint4*>(to + box.number * BOX + voxel.place() * 16) = words;
                }
            };
            // While some are normalised, the next ones are under way.
            Vector values[2][LOADS];
            unsigned inside[2];
            const int count = (2 * planes + 1) * CHUNKS;
            SeenVoxel next = first;
            inside[0] = from.load(0, 0, next, values[0]);
#pragma unroll 1
            for (int i = 0; i < count; ++i, box.step_on()) {
                const int plane = i / CHUNKS, chunk = i % CHUNKS;
#pragma unroll
                for (int k = 0; k < 8; ++k) {
                    factor[k] = scales[chunk * DEPTH + piece * 8 + k];
                    summand[k] = scales[CHANNELS + chunk * DEPTH + piece * 8 + k];
                }
                SeenVoxel voxel = first;
#pragma unroll
                for (int round = 0; round < ROUNDS; ++round) {
                    Vector(&following)[LOADS] = values[(round + 1) % 2];
                    if (round + 1 < ROUNDS) {
                        inside[(round + 1) % 2] = from.load(plane, chunk, next, following);
                    } else if (i + 1 < count) {
                        next = first;
                        inside[(round + 1) % 2] =
                            from.load((i + 1) / CHUNKS, (i + 1) % CHUNKS, next, following);
                    }
                    if (round == 0 && box.round) left[box.number].wait(box.round - 1);
                    express(voxel, inside[round % 2], values[round % 2]);
                }
                publish();
                loaded[box.number].tell();
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
        const bool is_full = rows == SIDE && first_column + COLUMNS <= p.extents[2];
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
        // What this lane has of those voxels that lie in the target; is_full: whether all do.
        auto measure = [&](const float(&own_sums)[N / 2], bool is_full) {
#pragma unroll
            for (int i = 0; i < SIDE; ++i) {
                if (!is_full && i >= rows) break;
#pragma unroll
                for (int odd = 0; odd < 2; ++odd) {
                    if (!is_full && odd >= columns) break;
                    low.add(own_sums[4 * i + odd]);
                    high.add(own_sums[4 * i + 2 + odd]);
                }
            }
        };
        // Through shared memory, so that a warp writes whole lines; some rows after others.
        auto write = [&](const float(&own_sums)[N / 2], Element* plane) {
#pragma unroll
            for (int first = 0; first < SIDE; first += AT_ONCE) {
                wait_for_group(group);
#pragma unroll
                for (int i = 0; i < AT_ONCE; i += 2) {
                    const float* own = &own_sums[4 * (first + i)];
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
        // The products of all boxes of a plane of the source that leads to one of the target.
        auto add_plane = [&](float(&own_sums)[N / 2], int of_kernel) {
#pragma unroll 1
            for (int chunk = 0; chunk < CHUNKS; ++chunk, box.step_on()) {
                add(own_sums, chunk * 3 + of_kernel, true);
            }
        };
        auto finish = [&](int plane, float(&own_sums)[N / 2]) {
            if (p.partials) {
                if (plane == 0) low.shift = own_sums[0], high.shift = own_sums[2];
                is_full ? measure(own_sums, true) : measure(own_sums, false);
            }
            write(own_sums, own + plane * p.extents[1] * row_numbers);
        };
        // The rest of a plane of the target, and the beginning of the next one.
        auto make = [&](int plane, float(&own_sums)[N / 2], float(&next_sums)[N / 2]) {
            add_plane(own_sums, 1);
            const bool is_last = plane == planes - 1;
            if (is_last) {
                add_plane(own_sums, 2);
            } else {
                wait_for_products<0>();
                hold(own_sums);
                leave();
                clear(next_sums);
                hold(next_sums);
#pragma unroll 1
                for (int chunk = 0; chunk < CHUNKS; ++chunk, box.step_on()) {
                    add(own_sums, chunk * 3 + 2, false);
                    add(next_sums, chunk * 3, true);
                }
                wait_for_products<0>();
                hold(next_sums);
            }
            wait_for_products<0>();
            hold(own_sums);
            leave();
            finish(plane, own_sums);
            return is_last;
        };
        clear(sums[0]);
        hold(sums[0]);
        add_plane(sums[0], 0);
#pragma unroll 1
        for (int plane = 0;; plane += 2) {
            if (make(plane, sums[0], sums[1])) break;
            if (make(plane + 1, sums[1], sums[0])) break;
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
