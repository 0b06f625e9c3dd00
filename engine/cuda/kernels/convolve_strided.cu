// A convolution, 3^3 of stride 2 and padding 1, by wgmma, which normalises what it reads and measures
// what it makes.
//
// activation(source * factor + summand), [N, D, H, W, C], C a multiple of 32 -> target
// [N, (D + 1) / 2, ..., K], K a multiple of 64. The padding lies around the activated values: it is 0.
//
// The matrix product has as M 64 channels of the target, as N 128 of its voxels, and as its depth 16
// channels of the source. A block walks through planes of 32 x 8 voxels, which two groups of four warps
// make in turns: while one measures and writes, the other has the matrix units. The plane of the source
// between two planes of the target leads to both, and is loaded once. Of its rows the voxels at odd
// places come first and then those at even ones, so that those that 8 neighbours of the target see
// through one tap lie one after another.
//
// Two other groups copy boxes of 16 channels, one while they express the one before in place. The weights
// of 32 channels stay in shared memory; more of them pass through it once for each plane.
//
// 32 to 64 channels at 128^3 on an H200 in fp16, in a network: 0.118 ms when each lane still told of its
// part of a box by itself; cuDNN's plan and the pass before it take 0.073 and 0.072.

#include "blocks.cuh"
#include "copies.cuh"
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

constexpr int HEIGHT = 32, WIDTH = 8;  // of a block's voxels
constexpr int N = 128, PARTS = HEIGHT * WIDTH / N, PART_ROWS = HEIGHT / PARTS;
constexpr int SEEN_ROWS = 2 * HEIGHT + 1, SEEN_COLUMNS = 2 * WIDTH + 1;
constexpr int OUTPUTS = 64, TAPS = 9;          // of a plane
constexpr int DEPTH = 16, PIECES = DEPTH / 8;  // channels of a box
constexpr int HALF_ROW = WIDTH + 1;            // places for one half of a row
// Of a box: places from its odd voxels to the even ones, and from one piece to the next. So those that
// lanes write at once lie in different banks.
constexpr int EVEN = SEEN_ROWS * HALF_ROW + 3, PIECE = EVEN + SEEN_ROWS * HALF_ROW + 5;
static_assert(EVEN % 8 == 4 && PIECE % 8 == 2);
constexpr int BOX = PIECES * PIECE * 16;
constexpr int OPERAND = OUTPUTS * DEPTH * 2, STAGE = TAPS * OPERAND;  // bytes of weights
constexpr int AT_ONCE = 2;  // rows that a group brings into order to write them
constexpr int ROW_UNITS = WIDTH * OUTPUTS / 8, STAGED = AT_ONCE * ROW_UNITS * 16;
constexpr int GROUP = 128, THREADS = 4 * GROUP;
constexpr int LOADER_REGISTERS = 72, OTHER_REGISTERS = 184;
constexpr int LOADER_WARPS = (THREADS - 2 * GROUP) / 32 - 1;  // and one for the weights
constexpr int BOXES = 3, STAGES = 6, RING = STAGES / 2;  // slots; of weights of a group
// Of the lanes that load boxes, each has 8 channels of a column, and of its rows every ROW_STEP-th.
constexpr int ROW_STEP = LOADER_WARPS * 32 / (SEEN_COLUMNS * PIECES);
constexpr int LOADERS = ROW_STEP * SEEN_COLUMNS * PIECES;
constexpr int EACH = (SEEN_ROWS + ROW_STEP - 1) / ROW_STEP, AT_ONCE_EXPRESSED = 4;

__device__ __forceinline__ void wait_for_group(int group) {
    asm volatile("barrier.sync.aligned %0, %1;" ::"r"(group + 1), "n"(GROUP) : "memory");
}

// What one of the loading lanes has of each box.
struct Loader {
    const Element* source;  // of the patch, at the first of the 8 channels
    int extents[3], channels;
    int d, h, w;            // where the first plane begins, and the column
    int first_row, place;   // and its bytes in a box

    __device__ __forceinline__ bool is_seen(int i) const {
        return first_row + i * ROW_STEP < SEEN_ROWS;
    }

    __device__ __forceinline__ bool is_inside(int plane, int i) const {
        return (unsigned)(d + plane) < (unsigned)extents[0] &&
               (unsigned)(h + first_row + i * ROW_STEP) < (unsigned)extents[1] &&
               (unsigned)w < (unsigned)extents[2];
    }

    // Begins to copy a plane of the channels from `chunk` on.
    __device__ __forceinline__ void copy(int plane, int chunk, unsigned box) const {
        const int row_numbers = extents[2] * channels;
        const Element* from = source + chunk * DEPTH +
                              ((Index)(d + plane) * extents[1] + h + first_row) * row_numbers +
                              w * channels;
#pragma unroll
        for (int i = 0; i < EACH; ++i, from += ROW_STEP * row_numbers) {
            if (!is_seen(i)) break;
            const bool is_copied = is_inside(plane, i);
            begin_copy(box + place + i * (ROW_STEP * HALF_ROW * 16), is_copied ? from : source,
                        is_copied);
        }
    }

    // Expresses what it has copied, in place; what is not inside stays 0.
    __device__ __forceinline__ void express(
        int plane, const float* factors, const float* summands, float slope, char* box
    ) const {
        float factor[8], summand[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) factor[i] = factors[i], summand[i] = summands[i];
        uint4* const vectors = reinterpret_cast<uint4*>(box + place);
#pragma unroll
        for (int first = 0; first < EACH; first += AT_ONCE_EXPRESSED) {
            uint4 words[AT_ONCE_EXPRESSED];
#pragma unroll
            for (int i = 0; i < AT_ONCE_EXPRESSED; ++i) {
                if (first + i < EACH && is_seen(first + i)) {
                    words[i] = vectors[(first + i) * (ROW_STEP * HALF_ROW)];
                }
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE_EXPRESSED; ++i) {
                if (first + i >= EACH || !is_seen(first + i) || !is_inside(plane, first + i)) continue;
                const Vector vector = reinterpret_cast<const Vector&>(words[i]);
                float value[8];
#pragma unroll
                for (int k = 0; k < 8; ++k) {
                    value[k] = fmaf(to_float(vector.lanes[k]), factor[k], summand[k]);
                    value[k] = fmaxf(value[k], slope * value[k]);
                }
                vectors[(first + i) * (ROW_STEP * HALF_ROW)] =
                    make_uint4(pair(value[0], value[1]), pair(value[2], value[3]),
                               pair(value[4], value[5]), pair(value[6], value[7]));
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
    char* staged = stages + STAGES * STAGE;  // [2][AT_ONCE][WIDTH][OUTPUTS], swizzled
    float* scales = reinterpret_cast<float*>(staged + 2 * STAGED);  // [2][CHANNELS]
    Moments* joined = reinterpret_cast<Moments*>(scales + 2 * CHANNELS);  // [8 warps][16]
    Signal* loaded = reinterpret_cast<Signal*>(joined + 8 * 16);  // [2][BOXES], for each group
    Signal* left = loaded + 2 * BOXES;
    Signal* stage_loaded = left + BOXES;
    Signal* stage_left = stage_loaded + STAGES;

    const int blocks_w = (p.extents[2] + WIDTH - 1) / WIDTH;
    const int first_w = blockIdx.x % blocks_w * WIDTH, first_h = blockIdx.x / blocks_w * HEIGHT;
    const int first_d = blockIdx.y * p.planes, planes = min(p.planes, p.extents[0] - first_d);
    const int parts = p.outputs / OUTPUTS, part = blockIdx.z % parts, number = blockIdx.z / parts;
    // Whether a plane of the source leads to one of the target through a plane of the kernel, and the
    // group that makes that one.
    auto has_tap = [&](int plane, int tap) {
        return (plane + tap) % 2 == 0 && plane >= tap && plane - tap < 2 * planes;
    };
    auto user = [](int plane, int tap) { return (plane - tap) / 2 % 2; };
    const int group = threadIdx.x / GROUP, warp = threadIdx.x % GROUP / 32;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;

    if (threadIdx.x < BOXES) {
        loaded[threadIdx.x].expect(LOADER_WARPS);
        loaded[BOXES + threadIdx.x].expect(LOADER_WARPS);
        left[threadIdx.x].expect(8);
    }
    if (threadIdx.x < STAGES) {
        stage_loaded[threadIdx.x].expect(1);
        stage_left[threadIdx.x].expect(4);
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
        if (loader < LOADER_WARPS * 32) {
            const int piece = loader % PIECES, column = loader / PIECES % SEEN_COLUMNS;
            const int first_row = loader < LOADERS ? loader / (PIECES * SEEN_COLUMNS) : SEEN_ROWS;
            const Loader own = {
                p.source + piece * 8 + (Index)number * p.source_extents[0] * p.source_extents[1] *
                                           p.source_extents[2] * CHANNELS,
                {p.source_extents[0], p.source_extents[1], p.source_extents[2]},
                CHANNELS,
                2 * first_d - 1,
                2 * first_h - 1,
                2 * first_w - 1 + column,
                first_row,
                (piece * PIECE + column % 2 * EVEN + first_row * HALF_ROW + column / 2) * 16
            };
            const bool is_bare = !p.factor && p.slope == 1.0f;
            const unsigned to = __cvta_generic_to_shared(boxes);
            RingSlot<BOXES> coming, come;
            const int count = (2 * planes + 1) * CHUNKS;
            // One box is expressed while the next one comes.
#pragma unroll 1
            for (int i = 0; i <= count; ++i) {
                if (i < count) {
                    if (coming.round) left[coming.number].wait(coming.round - 1);
                    own.copy(i / CHUNKS, i % CHUNKS, to + coming.number * BOX);
                    coming.step_on();
                }
                end_group();
                if (i > 0) {
                    wait_for_all_groups_but<1>();
                    if (!is_bare) {
                        const float* own_scales = scales + (i - 1) % CHUNKS * DEPTH + piece * 8;
                        own.express((i - 1) / CHUNKS, own_scales, own_scales + CHANNELS, p.slope,
                                    boxes + come.number * BOX);
                    }
                    publish();
                    __syncwarp();
                    if (lane == 0) {
                        const int plane = (i - 1) / CHUNKS;
                        for (int tap = 0; tap < 3; ++tap) {
                            if (!has_tap(plane, tap)) continue;
                            loaded[user(plane, tap) * BOXES + come.number].tell();
                        }
                    }
                    come.step_on();
                }
            }
        } else if (lane == 0) {
            const char* weights =
                reinterpret_cast<const char*>(p.weights) + (Index)part * 3 * CHUNKS * STAGE;
            auto load = [&](int slot, int number) {
                stage_loaded[slot].tell_when_read(
                    stages + slot * STAGE, weights + number * STAGE, STAGE
                );
            };
            for (int number = 0; ARE_KEPT && number < 3 * CHUNKS; ++number) load(number, number);
            RingSlot<RING> stage[2];
            for (int i = 0; !ARE_KEPT && i < (2 * planes + 1) * CHUNKS; ++i) {
                const int plane = i / CHUNKS;
                for (int tap = 2; tap >= 0; --tap) {
                    if (!has_tap(plane, tap)) continue;
                    const int reader = user(plane, tap);
                    RingSlot<RING> own = reader ? stage[1] : stage[0];
                    const int slot = reader * RING + own.number;
                    if (own.round) stage_left[slot].wait(own.round - 1);
                    load(slot, i % CHUNKS * 3 + tap);
                    own.step_on();
                    (reader ? stage[1] : stage[0]) = own;
                }
            }
        }
        __syncwarp();
    } else {
        take_registers<OTHER_REGISTERS>();
        const unsigned long long first_voxels =
            described(boxes, PIECE * 16, 2 * HALF_ROW * 16);
        const unsigned long long first_weights = described(stages, OUTPUTS * 16, 128);
        // Of the sums: rows, and columns of this lane, that lie in the target.
        const int rows = min(HEIGHT, p.extents[1] - first_h);
        const int columns = p.extents[2] - first_w - 2 * t;
        // Of what this lane writes: 16 bytes of a voxel.
        const int unit = threadIdx.x % GROUP, voxel = unit / 8 % WIDTH, below = unit / ROW_UNITS;
        const bool is_inside = first_w + voxel < p.extents[2];
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
            (Index)(first_w + voxel) * p.outputs + part * OUTPUTS + unit % 8 * 8;
        Sums low{0.0f, 0.0f, 0.0f}, high{0.0f, 0.0f, 0.0f};
        float sums[PARTS][N / 2];
        RingSlot<RING> stage;
        unsigned rounds = 0;  // of each box, whether this group has seen an odd number of them
        int read_box = -1, read_times = 0, read_stage = -1;

        // What one group alone has read, it leaves for both.
        auto leave = [&] {
            __syncwarp();
            if (lane == 0 && read_box >= 0) {
                for (int i = 0; i < read_times; ++i) left[read_box].tell();
                if (!ARE_KEPT) stage_left[read_stage].tell();
            }
            read_box = -1;
        };
        // The products of a box with a plane of the kernel.
        auto add = [&](int plane, int chunk, int of_kernel) {
            const int box = (plane * CHUNKS + chunk) % BOXES;
            const int slot = ARE_KEPT ? chunk * 3 + of_kernel : group * RING + stage.number;
            loaded[group * BOXES + box].wait(rounds >> box);
            rounds ^= 1u << box;
            stage_loaded[slot].wait(ARE_KEPT ? 0 : stage.round);
            const unsigned long long b = first_voxels + box * (BOX / 16);
            const unsigned long long a = first_weights + slot * (STAGE / 16);
            begin_products();
#pragma unroll
            for (int tap = 0; tap < TAPS; ++tap) {
                const int kh = tap / 3, kw = tap % 3;
#pragma unroll
                for (int of_rows = 0; of_rows < PARTS; ++of_rows) {
                    multiply_add(sums[of_rows], a + tap * (OPERAND / 16),
                                 b + (2 * PART_ROWS * of_rows + kh) * HALF_ROW +
                                     (kw == 1 ? EVEN : kw / 2));
                }
            }
            end_batch();
            if (read_box >= 0) {
                wait_for_products<1>();
                leave();
            }
            read_box = box;
            read_times = has_tap(plane, of_kernel ^ 2) && of_kernel != 1 ? 1 : 2;
            read_stage = slot;
            if (!ARE_KEPT) stage.step_on();
        };
        // What this lane has of those voxels that lie in the target.
        auto measure = [&] {
#pragma unroll
            for (int i = 0; i < HEIGHT; ++i) {
#pragma unroll
                for (int odd = 0; odd < 2; ++odd) {
                    if (i < rows && odd < columns) {
                        const float* made = &sums[i / PART_ROWS][i % PART_ROWS * 4];
                        low.add(made[odd]);
                        high.add(made[2 + odd]);
                    }
                }
            }
        };
        // Through shared memory, so that a warp writes whole lines; some rows after others.
        auto write = [&](Element* plane) {
#pragma unroll
            for (int first = 0; first < HEIGHT; first += AT_ONCE) {
                const float* made = &sums[first / PART_ROWS][first % PART_ROWS * 4];
                wait_for_group(group);
                store_transposed(stored, make_uint4(pair(made[0], made[1]), pair(made[2], made[3]),
                                                    pair(made[4], made[5]), pair(made[6], made[7])));
                wait_for_group(group);
                if (first + below < rows && is_inside) {
                    *reinterpret_cast<uint4*>(plane + first * row_numbers) =
                        *reinterpret_cast<const uint4*>(read_from);
                }
            }
        };
#pragma unroll 1
        for (int plane = group; plane < planes; plane += 2) {
#pragma unroll
            for (int part = 0; part < PARTS; ++part) {
#pragma unroll
                for (int i = 0; i < N / 2; ++i) sums[part][i] = 0.0f;
                hold(sums[part]);
            }
#pragma unroll 1
            for (int i = 0; i < 3 * CHUNKS; ++i) {
                add(2 * plane + i / CHUNKS, i % CHUNKS, i / CHUNKS);
            }
            wait_for_products<0>();
#pragma unroll
            for (int part = 0; part < PARTS; ++part) hold(sums[part]);
            leave();
            if (p.partials) {
                if (plane == group) low.shift = sums[0][0], high.shift = sums[0][2];
                measure();
            }
            write(own + plane * p.extents[1] * row_numbers);
        }
        if (p.partials) {
            const int own_planes = (planes + 1 - group) / 2;
            const int count = own_planes * rows * max(0, min(2, columns));
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
