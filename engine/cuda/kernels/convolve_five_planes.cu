// Convolution of kernel 5^3, stride 1 and padding 2, by wgmma. It normalises and activates its input as it
// reads it.
//
// source [N, D, H, W, C], C a multiple of 32 -> target [N, D, H, W, K], K a multiple of 32. The input of the
// convolution is activation(source * factor + summand), with zeros around it. If there are two sources,
// their channels follow each other. No slope is above 1.
//
// As in convolve_by_planes.cu, M is 64 voxels, of which each of four warps has two rows of 8; N is 32 channels
// of each of the five planes that a plane of the source contributes to; the depth is 16 channels of the voxels
// that these 64 see through one of the 25 taps along H and W. Nothing is multiplied with zeros: where fewer
// planes of the target see a plane, N has only those. Both operands are read from shared memory, 7 KB for a
// product of 80 clocks, as the sums leave no registers for rows.
//
// A block loops over planes of 8 x 32 voxels. Its two consumer warpgroups have half of the columns each, with
// the sums of five planes, 160 numbers a lane; the plane that is complete is written, and the next one takes
// its place. Of the producers, three warps activate boxes of the source on their way to shared memory. The
// weights of 32 channels, 256 KB, do not fit there: the fourth warp copies those of 5 taps and 16 channels at a
// time, for each plane again. All blocks read the same ones, which come from the L2 cache at 11 bytes a clock
// and multiprocessor if the products go at 70 % of their pace.
//
// Measured 2026-11-30 (H200, fp16; bounds as in docs/gpu-engine.md): 32 to 32 channels, 64^3, 111 us, bound by
// 67 GFLOP, 79 % of it; 64 to 64 channels, 32^3, 82 us, 54 %.
// Alternative (2026-11-29): by cuDNN a V-Net (MedicalZooPytorch, 64^3) takes 2.05 ms, with this kernel 1.32.

#include "part.cuh"
#include "matrix.cuh"
#include "pipeline.cuh"
#include "view.cuh"
#include "wgmma.cuh"

struct ConvolveFivePlanes {
    Part parts[2];           // the second of 0 channels where there is one
    const Element* weights;  // [K / 32][C / 32][5][2][5][2][160][8]
    Element* target;
    Strides target_strides;
    int extents[3];
    int outputs;             // K
    int channels;            // C
    int planes;              // of the target, a block
};

#if !defined(ELEMENT_FLOAT) && defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int EDGE = 5, REACH = EDGE / 2;               // of the kernel
constexpr int HEIGHT = 8, WIDTH = 32;                   // of a block
constexpr int SEEN_ROWS = HEIGHT + EDGE - 1, SEEN_COLUMNS = WIDTH + EDGE - 1;
constexpr int VOXELS = SEEN_ROWS * SEEN_COLUMNS;
constexpr int DEPTH = 32, PIECES = DEPTH / 8;           // channels of a box
constexpr int PIECE = (VOXELS + 2) * 16, BOX = PIECES * PIECE;  // bytes
static_assert(PIECE / 16 % 8 == 2);                     // so that what 8 lanes store lies in different banks
constexpr int OUTPUTS = 32, N = EDGE * OUTPUTS;         // of a block
constexpr int STEPS = DEPTH / 16;                       // products along the depth of a box
constexpr int OPERAND = 2 * N * 16, STAGE = EDGE * OPERAND;  // bytes of weights
constexpr int COPIES = EDGE * 2;                        // pieces of a stage
constexpr int BOX_STAGES = EDGE * STEPS;                // stages of weights for a box
constexpr int BOXES = 2, STAGES = 6;                    // in shared memory
constexpr int TILES = 2;                                // of a group's 8 x 16 voxels
constexpr int GROUP = 128, WARPS = GROUP / 32;          // threads and warps
constexpr int LOADERS = GROUP - 32, THREADS = 3 * GROUP;
constexpr int PRODUCER_REGISTERS = 72, CONSUMER_REGISTERS = 216;
static_assert(PRODUCER_REGISTERS + 2 * CONSUMER_REGISTERS <= 3 * 168);  // what a launch of three groups has

// What a block computes, and of the source the planes that it sees.
struct Task {
    int number, run, first_d, first_h, first_w, end_d, first_seen, end_seen, chunks;

    __device__ __forceinline__ Task(const ConvolveFivePlanes& p) {
        const int across = (p.extents[2] + WIDTH - 1) / WIDTH, runs = p.outputs / OUTPUTS;
        first_h = blockIdx.x / across * HEIGHT, first_w = blockIdx.x % across * WIDTH;
        first_d = blockIdx.y * p.planes, end_d = min(first_d + p.planes, p.extents[0]);
        number = blockIdx.z / runs, run = blockIdx.z % runs;
        first_seen = max(first_d - REACH, 0), end_seen = min(end_d + REACH, p.extents[0]);
        chunks = p.channels / DEPTH;
    }

    __device__ __forceinline__ int boxes() const { return (end_seen - first_seen) * chunks; }
};

// Of the planes z - 2 to z + 2 of the target, which a plane z of the source contributes to: those that a
// block computes.
struct Reached {
    int first, count;

    __device__ __forceinline__ Reached(const Task& task, int z) {
        first = max(task.first_d - (z - REACH), 0);
        count = min(task.end_d - (z - REACH), EDGE) - first;
    }
};

// Box i holds chunk i % chunks of the source's plane i / chunks; it takes BOX_STAGES stages of weights.
struct Shared {
    char weights[STAGES][STAGE];  // [5][2][N][8]
    char boxes[BOXES][BOX];       // [PIECES][voxels, 2][8]
    Ring<BOXES> box_ring;
    Ring<STAGES> stage_ring;

    __device__ __forceinline__ void begin() {
        box_ring.init(LOADERS / 32, 2 * WARPS);
        stage_ring.init(COPIES, 2 * WARPS);
        fence_async_proxy();
        __syncthreads();
    }
};

__device__ __forceinline__ void load_boxes(const ConvolveFivePlanes& p, const Task& task, Shared& shared) {
    constexpr int AT_ONCE = LOADERS / PIECES, EACH = VOXELS / AT_ONCE, BATCH = 6;
    static_assert(AT_ONCE * EACH == VOXELS && EACH % BATCH == 0);
    const int piece = threadIdx.x % PIECES, first = threadIdx.x / PIECES;
    RingSlot<BOXES> slot;
#pragma unroll 1
    for (int i = 0; i < task.boxes(); ++i, slot.advance()) {
        const int z = task.first_seen + i / task.chunks, from = i % task.chunks * DEPTH;
        const bool is_second = from >= p.parts[0].channels;
        const Part& part = p.parts[is_second];
        const int channel = from - is_second * p.parts[0].channels + piece * LANES;
        const Element* const plane = part.source + task.number * part.strides.patch +
                                     offset_along<0>(part, {z}) + channel;
        const Prologue activated(part, task.number, channel);
        char* const box = shared.boxes[slot.index] + piece * PIECE;
        shared.box_ring.acquire(slot);
#pragma unroll 1
        for (int k = 0; k < EACH; k += BATCH) {
            uint4 words[BATCH];
            unsigned inside = 0;
#pragma unroll
            for (int j = 0; j < BATCH; ++j) {
                const int voxel = first + (k + j) * AT_ONCE;
                const int h = task.first_h - REACH + voxel / SEEN_COLUMNS;
                const int w = task.first_w - REACH + voxel % SEEN_COLUMNS;
                const bool is_inside = (unsigned)h < (unsigned)p.extents[1] &&
                                       (unsigned)w < (unsigned)p.extents[2];
                inside |= (unsigned)is_inside << j;
                const Index place = is_inside ? offset_along<1>(part, {h, w}) : 0;
                words[j] = *reinterpret_cast<const uint4*>(plane + place);
            }
#pragma unroll
            for (int j = 0; j < BATCH; ++j) {
                const uint4 zeros = {0, 0, 0, 0};
                const uint4 word = inside >> j & 1 ? activated(words[j]) : zeros;
                *reinterpret_cast<uint4*>(box + (first + (k + j) * AT_ONCE) * 16) = word;
            }
        }
        fence_async_proxy();
        shared.box_ring.full[slot.index].arrive_warp();
    }
}

// Lane i of a warp copies piece i of each stage, of the planes of the target that take it.
__device__ __forceinline__ void load_weights(const ConvolveFivePlanes& p, const Task& task, Shared& shared) {
    const int lane = threadIdx.x % 32;
    if (lane >= COPIES) return;
    const char* const first = reinterpret_cast<const char*>(p.weights) + lane * (N * 16);
    RingSlot<STAGES> slot;
#pragma unroll 1
    for (int i = 0; i < task.boxes(); ++i) {
        const Reached reached(task, task.first_seen + i / task.chunks);
        const Index chunk = task.run * task.chunks + i % task.chunks;
        const int skipped = reached.first * (OUTPUTS * 16);
#pragma unroll 1
        for (int stage = 0; stage < BOX_STAGES; ++stage, slot.advance()) {
            shared.stage_ring.acquire(slot);
            shared.stage_ring.full[slot.index].arrive_with_bytes(
                shared.weights[slot.index] + lane * (N * 16) + skipped,
                first + (chunk * BOX_STAGES + stage) * STAGE + skipped,
                reached.count * (OUTPUTS * 16)
            );
        }
    }
}

// The products of a lane's group, and their sums: of each tile, 32 columns of five planes.
struct Products {
    Shared& shared;
    float sums[TILES][N / 2] = {};
    RingSlot<BOXES> box;
    RingSlot<STAGES> stage;
    unsigned long long first_voxels, first_weights;

    // The group has the block's columns from `column` on.
    __device__ __forceinline__ Products(Shared& held_by_all, int column) : shared(held_by_all) {
        first_voxels = descriptor_of(shared.boxes[0] + column * 16, PIECE, SEEN_COLUMNS * 16);
        first_weights = descriptor_of(shared.weights[0], N * 16, 128);
    }

    // Those of a box, for PLANES planes of the target, from `first` on. A stage of weights is free when the
    // products of the next have begun and no others are left.
    template <int PLANES>
    __device__ __forceinline__ void add_box(int first) {
        constexpr int COUNT = PLANES * OUTPUTS / 2;
        shared.box_ring.wait(box);
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) fence_operand(sums[tile]);
        int before = 0;
#pragma unroll 1
        for (int i = 0; i < BOX_STAGES; ++i) {
            shared.stage_ring.wait(stage);
            const unsigned long long a =
                first_voxels + box.index * (BOX / 16) + i / STEPS + i % STEPS * (2 * PIECE / 16);
            const unsigned long long b =
                first_weights + stage.index * (STAGE / 16) + first * OUTPUTS;
            begin_visible_products();
#pragma unroll
            for (int below = 0; below < EDGE; ++below) {
#pragma unroll
                for (int tile = 0; tile < TILES; ++tile) {
                    multiply_add(
                        reinterpret_cast<float(&)[COUNT]>(sums[tile][0]),
                        a + below * SEEN_COLUMNS + tile * 8, b + below * (OPERAND / 16)
                    );
                }
            }
            end_batch();
            if (i) {
                wait_for_products<1>();
                shared.stage_ring.empty[before].arrive_warp();
            }
            before = stage.index;
            stage.advance();
        }
        wait_for_products<0>();
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) fence_operand(sums[tile]);
        shared.stage_ring.empty[before].arrive_warp();
        shared.box_ring.empty[box.index].arrive_warp();
        box.advance();
    }

    // The sums of a plane that is done give way to those of the next.
    __device__ __forceinline__ void advance() {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
            for (int i = 0; i < N / 2 - OUTPUTS / 2; ++i) sums[tile][i] = sums[tile][i + OUTPUTS / 2];
#pragma unroll
            for (int i = N / 2 - OUTPUTS / 2; i < N / 2; ++i) sums[tile][i] = 0.0f;
        }
    }
};

__device__ __forceinline__ void multiply(const ConvolveFivePlanes& p, const Task& task, Shared& shared) {
    const int group = threadIdx.x / GROUP - 1, warp = threadIdx.x % GROUP / 32;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    // Of tile i, this lane writes 8 channels of the voxels (2 warp, 8 i + g) and (2 warp + 1, 8 i + g).
    const int own_column = group * (WIDTH / 2);
    const int own_h = task.first_h + 2 * warp, own_w = task.first_w + own_column + g;
    Element* const first_voxel = p.target + task.number * p.target_strides.patch +
                                 own_h * p.target_strides.row + (Index)own_w * p.target_strides.voxel +
                                 task.run * OUTPUTS + t * LANES;
    Products products(shared, own_column);
    auto finish = [&](int d) {
        Element* const plane = first_voxel + d * p.target_strides.plane;
#pragma unroll
        for (int i = 0; i < 2 * TILES; ++i) {
            const int below = i % 2, right = i / 2 * 8;
            const float* const made = &products.sums[i / 2][i % 2 * 2];
            const uint4 word = {pair(made[0], made[1]), pair(made[4], made[5]),
                                pair(made[8], made[9]), pair(made[12], made[13])};
            if (own_h + below >= p.extents[1] || own_w + right >= p.extents[2]) continue;
            store(plane + below * p.target_strides.row + right * p.target_strides.voxel,
                  reinterpret_cast<const Vector&>(word));
        }
        products.advance();
    };
    int done = task.first_d;
#pragma unroll 1
    for (int i = 0; i < task.boxes(); ++i) {
        const int z = task.first_seen + i / task.chunks;
        const Reached reached(task, z);
        switch (reached.count) {
            case 1: products.add_box<1>(reached.first); break;
            case 2: products.add_box<2>(reached.first); break;
            case 3: products.add_box<3>(reached.first); break;
            case 4: products.add_box<4>(reached.first); break;
            default: products.add_box<5>(reached.first);
        }
        const bool is_complete = z - REACH == done && i % task.chunks == task.chunks - 1;
        if (is_complete) finish(done++);
    }
#pragma unroll 1
    for (; done < task.end_d; ++done) finish(done);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) convolve_five_planes(ConvolveFivePlanes p) {
    extern __shared__ char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const Task task(p);
    shared.begin();
    if (threadIdx.x < GROUP) {
        give_registers<PRODUCER_REGISTERS>();
        if (threadIdx.x < LOADERS) load_boxes(p, task, shared);
        else load_weights(p, task, shared);
    } else {
        take_registers<CONSUMER_REGISTERS>();
        multiply(p, task, shared);
    }
}

#endif
