// Convolution of kernel 3^3 or 1 x 3 x 3, stride 1 and padding 1, by wgmma. It normalises and activates its
// input as it reads it, and computes statistics of its output.
//
// source [N, D, H, W, C], C 32 or 64 -> target [N, D, H, W, K], K a multiple of 32. The input of the
// convolution is activation(source * factor + summand), with zeros around it. If there are two sources,
// their channels follow each other. No slope is above 1.
//
// Each plane of the source contributes to three planes of the target. In the matrix product, M is 64
// voxels, of which each of four warps has two rows of 8; N is 32 channels of each of the three planes; the
// depth is 16 channels of the voxels that these 64 see through one of the 9 taps along H and W. Nothing is
// multiplied with zeros. The rows are operands from registers, each used for the three taps along H: with
// rows from shared memory, which also supplies the weights, a product takes 1.5 times as long.
//
// A block loops over planes of 8 x 32 voxels. Two producer warpgroups load boxes of the source and activate
// them on the way to shared memory. Two consumer warpgroups have half of the columns each, with the sums of
// three planes; the plane that is complete is written, and the next one takes its place. For the planes
// that a block reads but does not write, only a third is computed, as for all with a kernel of one plane,
// whose weights stand between zeros. All weights stay in shared memory, and the consumers take turns. 128 channels would need their weights loaded again for each plane: cuDNN with its
// passes was faster in 43 of 48 such layers (2026-11-29).
//
// An earlier version had boxes of 16 x 32 voxels and consumers that did not take turns. Times of this one
// and (of that one) on an H200 in fp16, with activation and statistics: at 128^3 32 to 32 channels 0.20 ms
// (0.28), 64 to 32, half of them space-to-depth, 0.37 (0.48); at 64^3 64 to 64 0.106 (0.141).
//
// Measured 2026-11-23 (H200, fp16; bounds as in docs/gpu-engine.md): 32 to 32 channels, 128^3, with
// statistics 0.20 ms, bound by 116 GFLOP, 76 % of it.
// Measured 2026-12-01 (H200, fp16): 1 x 3 x 3, 32 to 32 channels, 64^3, with activation, 18 us, bound by
// 34 MB, 44 % of it; by cuDNN 28 us, and its pass 10.
// Alternative (2026-11-29): by cuDNN with its passes the layer's network takes 685 us, with this kernel 275.

#include "epilogue.cuh"
#include "part.cuh"
#include "pipeline.cuh"
#include "view.cuh"
#include "wgmma.cuh"

struct ConvolveByPlanes {
    Part parts[2];           // the second of 0 channels where there is one
    const Element* weights;  // [K / 32][C / 32][3][3][4][96][8]
    Element* target;
    Moments* partials;       // [N][blocks of a patch][K], or null
    Strides target_strides;
    int extents[3];
    int outputs;             // K
    int planes;              // of the target, a block
};

#if !defined(ELEMENT_FLOAT) && defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int HEIGHT = 8, WIDTH = 32;                   // of a block
constexpr int SEEN_ROWS = HEIGHT + 2, SEEN_COLUMNS = WIDTH + 2;
constexpr int VOXELS = SEEN_ROWS * SEEN_COLUMNS;
constexpr int DEPTH = 32, PIECES = DEPTH / 8;           // channels of a box
constexpr int PIECE = (VOXELS + 6) * 16, BOX = PIECES * PIECE;  // bytes
static_assert(PIECE / 16 % 8 == 2);                     // so that what 8 lanes store lies in different banks
constexpr int OUTPUTS = 32, N = 3 * OUTPUTS;            // of a block
constexpr int STEPS = DEPTH / 16;                       // products along the depth of a box
constexpr int OPERAND = 16 * N * 2, TAP = STEPS * OPERAND, CHUNK = 9 * TAP;  // bytes of weights
constexpr int TILES = 2;                                // of a warp's 4 x 8 voxels: rows i and i + 2
constexpr int PAIRS = TILES + 2;                        // of rows that those see, i and i + 2 as well
constexpr int GROUP = 128, WARPS = GROUP / 32;          // threads and warps
constexpr int LOADERS = 2 * GROUP, THREADS = LOADERS + 2 * GROUP;
constexpr int LOADER_REGISTERS = 96, OTHER_REGISTERS = 160;
static_assert(LOADER_REGISTERS + OTHER_REGISTERS <= 2 * 128);  // what a launch of four groups has

// What a block computes, and of the source the planes that it sees.
struct Task {
    int number, run, first_d, first_h, first_w, planes, first_seen, end_seen;

    // border: planes of the kernel on either side of a voxel's own.
    __device__ __forceinline__ Task(const ConvolveByPlanes& p, int border) {
        const int across = (p.extents[2] + WIDTH - 1) / WIDTH, runs = p.outputs / OUTPUTS;
        first_h = blockIdx.x / across * HEIGHT, first_w = blockIdx.x % across * WIDTH;
        first_d = blockIdx.y * p.planes, planes = min(p.planes, p.extents[0] - first_d);
        number = blockIdx.z / runs, run = blockIdx.z % runs;
        first_seen = max(first_d - border, 0);
        end_seen = min(first_d + planes + border, p.extents[0]);
    }
};

// Of a source of CHUNKS times 32 channels, shared memory holds a ring of boxes and all weights. A box goes
// from its producers to consumer group 0, from there to group 1, and back, so that one group writes while
// the other multiplies.
template <int CHUNKS_, int BOXES_>
struct Shared {
    static constexpr int CHUNKS = CHUNKS_, BOXES = BOXES_;

    char boxes[BOXES][BOX];       // [PIECES][voxels, 6][8]
    char weights[CHUNKS][CHUNK];  // [9][PIECES][N][8]
    Moments joined[2 * WARPS][OUTPUTS];
    Barrier full[BOXES], passed[BOXES], empty[BOXES], weights_full[CHUNKS];

    __device__ __forceinline__ void begin() {
        if (threadIdx.x < BOXES) {
            full[threadIdx.x].init(LOADERS / 32);
            passed[threadIdx.x].init(WARPS);
            empty[threadIdx.x].init(WARPS);
        }
        if (threadIdx.x < CHUNKS) weights_full[threadIdx.x].init(1);
        fence_async_proxy();
        __syncthreads();
    }
};

// The voxels that a loading lane has of each plane that a block sees, and of them 8 channels of a box.
struct Seen {
    static constexpr int AT_ONCE = LOADERS / PIECES, EACH = (VOXELS + AT_ONCE - 1) / AT_ONCE;

    unsigned places[2][EACH];  // from a plane's first voxel on, of either part, in vectors
    unsigned inside = 0;       // which of them lie in the patch, a bit each
    int first, piece;          // voxel, and of it the 8 channels

    __device__ __forceinline__ Seen(const ConvolveByPlanes& p, const Task& task) {
        const int lane = threadIdx.x % LOADERS;
        first = lane / PIECES, piece = lane % PIECES;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int voxel = first + i * AT_ONCE;
            const int h = task.first_h - 1 + voxel / SEEN_COLUMNS;
            const int w = task.first_w - 1 + voxel % SEEN_COLUMNS;
            const bool is_inside = voxel < VOXELS && (unsigned)h < (unsigned)p.extents[1] &&
                                   (unsigned)w < (unsigned)p.extents[2];
            inside |= (unsigned)is_inside << i;
#pragma unroll
            for (int part = 0; part < 2; ++part) {
                places[part][i] = is_inside ? place(p.parts[part], h, w) / LANES : 0;
            }
        }
    }

    __device__ __forceinline__ static Index place(const Part& part, int h, int w) {
        return offset_along<1>(part, {h, w});
    }
};

// Box i holds chunk i % CHUNKS of the source's plane i / CHUNKS.
template <class Held>
__device__ __forceinline__ void load(const ConvolveByPlanes& p, const Task& task, Held& shared) {
    constexpr int CHUNKS = Held::CHUNKS;
    const Seen seen(p, task);
    const int count = (task.end_seen - task.first_seen) * CHUNKS;
    uint4 words[Seen::EACH];

    auto load_weights = [&](int chunk) {
        const char* const from = reinterpret_cast<const char*>(p.weights) +
                                 ((Index)task.run * CHUNKS + chunk) * CHUNK;
        shared.weights_full[chunk].arrive_with_bytes(shared.weights[chunk], from, CHUNK);
    };
    auto is_second = [&](int i) { return i % CHUNKS * DEPTH >= p.parts[0].channels; };
    auto channel = [&](int i) {
        return i % CHUNKS * DEPTH - is_second(i) * p.parts[0].channels + seen.piece * LANES;
    };
    auto load_box = [&](int i) {
        const Part& part = p.parts[is_second(i)];
        const Element* const first = part.source + task.number * part.strides.patch +
                                     offset_along<0>(part, {task.first_seen + i / CHUNKS}) + channel(i);
#pragma unroll
        for (int k = 0; k < Seen::EACH; ++k) {
            const unsigned place = seen.places[0][k], other = seen.places[1][k];
            words[k] = reinterpret_cast<const uint4*>(first)[is_second(i) ? other : place];
        }
    };
    auto store_box = [&](int i, char* box) {
        const Prologue activated(p.parts[is_second(i)], task.number, channel(i));
#pragma unroll
        for (int k = 0; k < Seen::EACH; ++k) {
            const int voxel = seen.first + k * Seen::AT_ONCE;
            const uint4 zeros = {0, 0, 0, 0};
            const uint4 word = seen.inside >> k & 1 ? activated(words[k]) : zeros;
            if (voxel < VOXELS) *reinterpret_cast<uint4*>(box + seen.piece * PIECE + voxel * 16) = word;
        }
    };
    if (threadIdx.x % LOADERS == 0) {
        for (int chunk = 0; chunk < CHUNKS; ++chunk) load_weights(chunk);
    }
    load_box(0);
    RingSlot<Held::BOXES> box;
#pragma unroll 1
    for (int i = 0; i < count; ++i, box.advance()) {
        if (box.phase) shared.empty[box.index].wait(box.phase - 1);
        store_box(i, shared.boxes[box.index]);
        shared.full[box.index].arrive_warp();
        if (i + 1 < count) load_box(i + 1);
    }
}

// Of 8 channels of the voxels that a lane has written, about the first of them.
struct Measured {
    float shift[LANES], sum[LANES] = {}, squares[LANES] = {};

    __device__ __forceinline__ void begin(const Vector& voxel) {
#pragma unroll
        for (int i = 0; i < LANES; ++i) shift[i] = to_float(voxel.lanes[i]);
    }

    __device__ __forceinline__ void add(const Vector& voxel) {
#pragma unroll
        for (int i = 0; i < LANES; ++i) {
            const float deviation = to_float(voxel.lanes[i]) - shift[i];
            sum[i] += deviation;
            squares[i] = fmaf(deviation, deviation, squares[i]);
        }
    }

    // Those of channel i, of all lanes of a warp that have it.
    __device__ __forceinline__ Moments moments(int i, int count) const {
        Moments made = Sums{shift[i], sum[i], squares[i]}.moments(count);
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) {
            made.merge({__shfl_xor_sync(~0u, made.count, distance),
                       __shfl_xor_sync(~0u, made.mean, distance),
                       __shfl_xor_sync(~0u, made.squares, distance)});
        }
        return made;
    }
};

// The products of a lane's group, and their sums: of each tile, 32 columns of three planes.
template <class Held>
struct Products {
    Held& shared;
    float sums[TILES][N / 2] = {};
    RingSlot<Held::BOXES> box;
    unsigned first_voxels;
    unsigned long long first_weights;

    // Of the group's columns, the warp has those from `column` on, and rows from `row` on.
    __device__ __forceinline__ Products(Held& held_by_all, int row, int column)
        : shared(held_by_all) {
        // Lane 8 i + r reads voxel r of matrix i: of rows 0 and TILES, then 8 channels further on.
        const int lane = threadIdx.x % 32;
        const int voxel = (row + lane / 8 % 2 * TILES) * SEEN_COLUMNS + column + lane % 8;
        first_voxels = __cvta_generic_to_shared(shared.boxes[0] + lane / 16 * PIECE + voxel * 16);
        first_weights = descriptor_of(shared.weights[0], N * 16, 128);
    }

    // Those of a box. Pairs of rows are read two batches of products before those that take them.
    template <int THIRDS>
    __device__ __forceinline__ void add_box(unsigned voxels, unsigned long long b) {
        constexpr int COUNT = THIRDS * OUTPUTS / 2, BATCHES = 3 * STEPS * PAIRS;
        constexpr int ROWS = 4, AHEAD = 2;
        uint4 rows[ROWS];
        auto read = [&](int i) {
            const int right = i / (STEPS * PAIRS), step = i / PAIRS % STEPS, pair = i % PAIRS;
            rows[i % ROWS] = load_matrices(
                voxels + right * 16 + step * (2 * PIECE) + pair * (SEEN_COLUMNS * 16)
            );
        };
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) fence_operand(sums[tile]);
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) read(i);
#pragma unroll
        for (int i = 0; i < BATCHES; ++i) {
            const int right = i / (STEPS * PAIRS), step = i / PAIRS % STEPS, pair = i % PAIRS;
            if (i + AHEAD >= ROWS) wait_for_products<ROWS - AHEAD - 1>();
            begin_visible_products();
            if (i + AHEAD < BATCHES) read(i + AHEAD);
#pragma unroll
            for (int below = 0; below < 3; ++below) {
                const int tile = pair - below, tap = below * 3 + right;
                if (tile < 0 || tile >= TILES) continue;
                multiply_add(
                    reinterpret_cast<float(&)[COUNT]>(sums[tile][0]), rows[i % ROWS],
                    b + (tap * TAP + step * OPERAND) / 16
                );
            }
            end_batch();
        }
        wait_for_products<0>();
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) fence_operand(sums[tile]);
    }

    // Those of a plane, for so many thirds of the columns, from third `first` on. Unrolled, as ptxas overlaps
    // no products around a loop within another.
    template <int THIRDS>
    __device__ __forceinline__ void add_plane(int first) {
        const bool is_second = threadIdx.x >= GROUP;
#pragma unroll
        for (int chunk = 0; chunk < Held::CHUNKS; ++chunk) {
            shared.weights_full[chunk].wait(0);
            (is_second ? shared.passed : shared.full)[box.index].wait(box.phase);
            add_box<THIRDS>(
                first_voxels + box.index * BOX,
                first_weights + (chunk * CHUNK + first * OUTPUTS * 16) / 16
            );
            (is_second ? shared.empty : shared.passed)[box.index].arrive_warp();
            box.advance();
        }
    }

    // The sums of a plane that is done give way to those of the next.
    __device__ __forceinline__ void advance() {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
            for (int i = 0; i < N / 3; ++i) sums[tile][i] = sums[tile][i + N / 6];
#pragma unroll
            for (int i = N / 3; i < N / 2; ++i) sums[tile][i] = 0.0f;
        }
    }
};

template <int BORDER, class Held>
__device__ __forceinline__ void multiply(const ConvolveByPlanes& p, const Task& task, Held& shared) {
    const int group = threadIdx.x / GROUP, warp = threadIdx.x % GROUP / 32;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int own_row = warp / 2 * (2 * TILES), own_column = group * (WIDTH / 2) + warp % 2 * 8;
    const int own_h = task.first_h + own_row, own_w = task.first_w + own_column;
    // Of tile i, this lane writes 8 channels of the voxels (i, g) and (i + TILES, g).
    Element* const first_voxel = p.target + task.number * p.target_strides.patch +
                                 own_h * p.target_strides.row +
                                 (Index)(own_w + g) * p.target_strides.voxel +
                                 task.run * OUTPUTS + t * LANES;
    unsigned inside = 0;  // of those, which lie in the patch, a bit each
#pragma unroll
    for (int i = 0; i < 2 * TILES; ++i) {
        const int h = own_h + i / 2 + i % 2 * TILES;
        if (h < p.extents[1] && own_w + g < p.extents[2]) inside |= 1u << i;
    }
    Measured measured;
    Products<Held> products(shared, own_row, own_column);
    auto finish = [&](int d) {
        Element* const plane = first_voxel + d * p.target_strides.plane;
#pragma unroll
        for (int i = 0; i < 2 * TILES; ++i) {
            const float* const made = &products.sums[i / 2][i % 2 * 2];
            const uint4 word = {pair(made[0], made[1]), pair(made[4], made[5]),
                                pair(made[8], made[9]), pair(made[12], made[13])};
            const Vector voxel = reinterpret_cast<const Vector&>(word);
            if (i == 0 && d == task.first_d) measured.begin(voxel);
            if (!(inside >> i & 1)) continue;
            store(plane + (i / 2 + i % 2 * TILES) * p.target_strides.row, voxel);
            measured.add(voxel);
        }
        products.advance();
    };
    const int last_d = task.first_d + task.planes - 1;
    if constexpr (BORDER == 0) {
#pragma unroll 1
        for (int d = task.first_d; d <= last_d; ++d) {
            products.template add_plane<1>(1);
            finish(d);
        }
    } else {
        if (task.first_seen < task.first_d) products.template add_plane<1>(2);
        products.template add_plane<2>(1);
#pragma unroll 1
        for (int d = task.first_d; d + 1 < last_d; ++d) {
            products.template add_plane<3>(0);
            finish(d);
        }
        if (task.planes > 1) {
            products.template add_plane<2>(0);
            finish(last_d - 1);
        }
        if (last_d < task.end_seen - 1) products.template add_plane<1>(0);
        finish(last_d);
    }

    if (!p.partials) return;
    const int count = task.planes * __popc(inside);
#pragma unroll
    for (int i = 0; i < LANES; ++i) {
        const Moments moments = measured.moments(i, count);
        if (g == 0) shared.joined[group * WARPS + warp][t * LANES + i] = moments;
    }
}

template <int BORDER, class Held>
__device__ __forceinline__ void convolve(const ConvolveByPlanes& p) {
    extern __shared__ char memory[];
    Held& shared = *reinterpret_cast<Held*>(memory);
    const Task task(p, BORDER);
    shared.begin();
    if (threadIdx.x >= 2 * GROUP) {
        give_registers<LOADER_REGISTERS>();
        load(p, task, shared);
    } else {
        take_registers<OTHER_REGISTERS>();
        multiply<BORDER>(p, task, shared);
    }
    if (!p.partials) return;
    __syncthreads();
    if (threadIdx.x >= OUTPUTS) return;
    Moments moments = shared.joined[0][threadIdx.x];
    for (int other = 1; other < 2 * WARPS; ++other) moments.merge(shared.joined[other][threadIdx.x]);
    store_partial(p.partials, task.number, p.outputs, task.run * OUTPUTS + threadIdx.x, moments);
}

// BORDER: 1 for a kernel of 3 planes, 0 for one.
template <int CHUNKS, int BOXES, int BORDER>
__global__ void __launch_bounds__(THREADS, 1) convolve_by_planes(ConvolveByPlanes p) {
    convolve<BORDER, Shared<CHUNKS, BOXES>>(p);
}

#endif
