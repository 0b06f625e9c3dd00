// A convolution, 3^3 of stride 1 and padding 1, by wgmma, which expresses what it reads and measures
// what it makes.
//
// source [N, D, H, W, C], C 32, 64 or 128 -> target [N, D, H, W, K], K a multiple of 32. What is convolved is
// activation(source * factor + summand), with zeros around it; of two sources, the channels of one
// after those of the other.
//
// Each plane of the source has a share in three planes of the target. The matrix product has as M 64
// voxels, of each of four warps two rows of 8; as N 32 channels of the three planes, one after the
// other; and as its depth 16 channels of the voxels that they see through one of 9 taps. Nothing is
// multiplied with zeros. The rows are read into registers, where each serves the three taps below each
// other: from shared memory, which gives the weights besides, a product takes half as long again.
//
// A block walks through the planes of 16 x 32 voxels. Two groups of four warps have half of their
// columns each, with the sums of three planes, of which one is written and its place taken by the next.
// A third group loads boxes of the source and expresses them. The weights of up to 64 channels stay in
// shared memory; those of 128 come anew for each plane.
//
// On an H200 in fp16, expressed and measured: at 128^3 32 to 32 channels 0.25 ms and 64 to 32, half of
// them from cells, 0.40; at 64^3 128 to 64 0.21 ms. cuDNN's plans take 0.47, 0.79 and 0.23, and the
// passes besides them 0.11, 0.22 and 0.06.

#include "copies.cuh"
#include "matrix.cuh"
#include "moments.cuh"
#include "order.cuh"
#include "part.cuh"
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

constexpr int HEIGHT = 16, WIDTH = 32;                  // of a block
constexpr int SEEN_ROWS = HEIGHT + 2, SEEN_COLUMNS = WIDTH + 2;
constexpr int VOXELS = SEEN_ROWS * SEEN_COLUMNS;
constexpr int DEPTH = 32, PIECES = DEPTH / 8;           // channels of a box
constexpr int PIECE = (VOXELS + 6) * 16, BOX = PIECES * PIECE;  // bytes
static_assert(PIECE / 16 % 8 == 2);                     // so that what 8 lanes store lies in different banks
constexpr int OUTPUTS = 32, N = 3 * OUTPUTS;            // of a block
constexpr int STEPS = DEPTH / 16;                       // products along the depth of a box
constexpr int OPERAND = 16 * N * 2, TAP = STEPS * OPERAND, CHUNK = 9 * TAP;  // bytes of weights
constexpr int TILES = 4;                                // of a warp's 8 x 8 voxels: rows i and i + 4
constexpr int PAIRS = TILES + 2;                        // of rows that those see, i and i + 4 as well
constexpr int GROUP = 128, THREADS = 3 * GROUP;
constexpr int LOADER_REGISTERS = 40, OTHER_REGISTERS = 232;
static_assert(LOADER_REGISTERS + 2 * OTHER_REGISTERS <= 3 * 168);  // what a launch of three groups has

// Eight channels of a part, as a lane expresses them.
struct Expression {
    float factor[8], summand[8], slope;

    __device__ __forceinline__ Expression(const Part& part, int number, int channel) {
        slope = part.slope;
        const Index first = (Index)number * part.table_stride + channel;
#pragma unroll
        for (int lane = 0; lane < 8; ++lane) {
            factor[lane] = part.factor ? part.factor[first + lane] : 1.0f;
            summand[lane] = part.factor ? part.summand[first + lane] : 0.0f;
        }
    }

    __device__ __forceinline__ uint4 operator()(const uint4& voxel) const {
        Vector vector = reinterpret_cast<const Vector&>(voxel);
#pragma unroll
        for (int lane = 0; lane < 8; ++lane) {
            const float value = fmaf(to_float(vector.lanes[lane]), factor[lane], summand[lane]);
            vector.lanes[lane] = to_element(value < 0.0f ? slope * value : value);
        }
        return reinterpret_cast<const uint4&>(vector);
    }
};

// The voxels that a loading lane has of each plane that a block sees; w goes on in steps that are a
// little shorter than a row.
struct Walk {
    static constexpr int STEP = GROUP / PIECES, BACK = SEEN_COLUMNS - STEP, SOME = 2;
    using Places = const int (&)[SOME];
    using Flags = const bool (&)[SOME];

    int first_h, first_w, height, width;

    // Calls use(places in a box, h, w, whether those lie in the patch) for some voxels at a time. Of
    // those that there are not, none lies in the patch; they share a place behind a piece.
    template <class Use>
    __device__ __forceinline__ void some(Use use) const {
        const int thread = threadIdx.x % GROUP;
        int voxel = thread / PIECES, row = first_h, column = first_w + voxel;
#pragma unroll 1
        for (int first = 0; first < VOXELS; first += SOME * STEP) {
            int places[SOME], h[SOME], w[SOME];
            bool inside[SOME];
#pragma unroll
            for (int i = 0; i < SOME; ++i) {
                places[i] = thread % PIECES * PIECE + min(voxel, VOXELS) * 16;
                h[i] = row, w[i] = column;
                inside[i] = voxel < VOXELS && (unsigned)row < (unsigned)height &&
                            (unsigned)column < (unsigned)width;
                const bool is_next_row = column - first_w >= BACK;
                column += is_next_row ? -BACK : STEP;
                row += is_next_row;
                voxel += STEP;
            }
            use(places, h, w, inside);
        }
    }
};

// A plane of 32 channels of a part.
struct Box {
    const Part& part;
    int number, channel, d;

    __device__ __forceinline__ void copy(const Walk& walk, char* box) const {
        part.shuffled ? copy_cells(walk, box) : copy_voxels(walk, box);
    }

    __device__ __forceinline__ const Element* first(int plane) const {
        return part.source + number * part.strides.patch + plane * part.strides.plane + channel +
               threadIdx.x % PIECES * 8;
    }

    __device__ __forceinline__ void copy_voxels(const Walk& walk, char* box) const {
        const Element* const plane = first(d);
        const unsigned to = __cvta_generic_to_shared(box);
        const int row = part.strides.row, voxel = part.strides.voxel;
        walk.some([&](Walk::Places places, Walk::Places h, Walk::Places w, Walk::Flags inside) {
#pragma unroll
            for (int i = 0; i < Walk::SOME; ++i) {
                const Element* const from = plane + (Index)h[i] * row + w[i] * voxel;
                begin_copy(to + places[i], inside[i] ? from : part.source, inside[i]);
            }
        });
    }

    __device__ __forceinline__ void copy_cells(const Walk& walk, char* box) const {
        const int own_d = d + part.origin[0];
        const Element* const plane = first(own_d >> 1) + (own_d & 1) * 4 * part.channels;
        const unsigned to = __cvta_generic_to_shared(box);
        const int row = part.strides.row, voxel = part.strides.voxel;
        walk.some([&](Walk::Places places, Walk::Places h, Walk::Places w, Walk::Flags inside) {
#pragma unroll
            for (int i = 0; i < Walk::SOME; ++i) {
                const int own_h = h[i] + part.origin[1], own_w = w[i] + part.origin[2];
                const int cell = ((own_h & 1) * 2 + (own_w & 1)) * part.channels;
                const Element* const from =
                    plane + (Index)(own_h >> 1) * row + (own_w >> 1) * voxel + cell;
                begin_copy(to + places[i], inside[i] ? from : part.source, inside[i]);
            }
        });
    }

    // In place; each lane what it has copied.
    __device__ __forceinline__ void express(const Walk& walk, char* box) const {
        if (!part.factor && part.slope == 1.0f) return;
        const Expression expressed(part, number, channel + threadIdx.x % PIECES * 8);
        walk.some([&](Walk::Places places, Walk::Places, Walk::Places, Walk::Flags inside) {
            uint4 words[Walk::SOME];
#pragma unroll
            for (int i = 0; i < Walk::SOME; ++i) {
                words[i] = *reinterpret_cast<const uint4*>(box + places[i]);
            }
#pragma unroll
            for (int i = 0; i < Walk::SOME; ++i) words[i] = expressed(words[i]);
#pragma unroll
            for (int i = 0; i < Walk::SOME; ++i) {
                if (inside[i]) *reinterpret_cast<uint4*>(box + places[i]) = words[i];
            }
        });
    }
};

__device__ __forceinline__ float half_of(const unsigned& word, int odd) {
    return to_float(reinterpret_cast<const Element*>(&word)[odd]);
}

// CHUNKS: of 32 channels. Of as many boxes and as many chunks of the weights, shared memory holds some.
template <int CHUNKS, int BOXES, int HELD>
__device__ __forceinline__ void convolve(const ConvolveByPlanes& p) {
    constexpr bool ALL_HELD = HELD == CHUNKS;
    static_assert(ALL_HELD || HELD == BOXES - 1);
    extern __shared__ char shared[];
    char* boxes = shared;                 // [BOXES][PIECES][voxels, 6][8]
    char* weights = boxes + BOXES * BOX;  // [HELD][9][PIECES][N][8]
    Moments* joined = reinterpret_cast<Moments*>(weights + HELD * CHUNK);  // [8 warps][OUTPUTS]
    Signal* loaded = reinterpret_cast<Signal*>(joined + 8 * OUTPUTS);     // of each box
    Signal* left = loaded + BOXES;
    Signal* weights_loaded = left + BOXES;                                // of each held chunk

    const int blocks_w = (p.extents[2] + WIDTH - 1) / WIDTH;
    const int first_w = blockIdx.x % blocks_w * WIDTH, first_h = blockIdx.x / blocks_w * HEIGHT;
    const int first_d = blockIdx.y * p.planes, planes = min(p.planes, p.extents[0] - first_d);
    const int runs = p.outputs / OUTPUTS, run = blockIdx.z % runs, number = blockIdx.z / runs;
    const int group = threadIdx.x / GROUP, warp = threadIdx.x % GROUP / 32;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int first_seen = max(first_d - 1, 0), end_seen = min(first_d + planes + 1, p.extents[0]);

    auto box_of = [&](int i) -> Box {
        const int channel = i % CHUNKS * DEPTH, second = channel - p.parts[0].channels;
        const bool is_second = second >= 0;
        return {p.parts[is_second], number, is_second ? second : channel, first_seen + i / CHUNKS};
    };

    if (threadIdx.x < BOXES) {
        loaded[threadIdx.x].expect(GROUP);
        left[threadIdx.x].expect(8);
    }
    if (threadIdx.x < HELD) weights_loaded[threadIdx.x].expect(1);
    publish();
    __syncthreads();

    if (group == 2) {
        give_registers<LOADER_REGISTERS>();
        auto load_weights = [&](int chunk) {
            if (threadIdx.x % GROUP) return;
            const char* const from = reinterpret_cast<const char*>(p.weights) +
                                     ((Index)run * CHUNKS + chunk % CHUNKS) * CHUNK;
            const int held = chunk % HELD;
            weights_loaded[held].tell_when_read(weights + held * CHUNK, from, CHUNK);
        };
        if (ALL_HELD) {
            for (int chunk = 0; chunk < CHUNKS; ++chunk) load_weights(chunk);
        }
        const Walk walk{first_h - 1, first_w - 1, p.extents[1], p.extents[2]};
        // One box is expressed while the next one comes.
        RingSlot<BOXES> coming, come;
        const int count = (end_seen - first_seen) * CHUNKS;
#pragma unroll 1
        for (int i = 0; i <= count; ++i) {
            if (coming.round) left[coming.number].wait(coming.round - 1);
            if (i < count) box_of(i).copy(walk, boxes + coming.number * BOX);
            coming.step_on();
            end_group();
            if (i == 0) continue;
            // The box before that one has been left, and with it the weights whose place these take.
            if (!ALL_HELD) load_weights(i - 1);
            wait_for_all_groups_but<1>();
            box_of(i - 1).express(walk, boxes + come.number * BOX);
            loaded[come.number].tell();
            come.step_on();
        }
    } else {
        take_registers<OTHER_REGISTERS>();
        const int own_row = warp / 2 * 8, own_column = group * (WIDTH / 2) + warp % 2 * 8;
        const int own_h = first_h + own_row, own_w = first_w + own_column;
        // Lane 8 i + r reads voxel r of matrix i: of rows 0 and 4, then 8 channels further on.
        const unsigned first_voxels = __cvta_generic_to_shared(
            boxes + lane / 16 * PIECE +
            ((own_row + lane / 8 % 2 * TILES) * SEEN_COLUMNS + own_column + lane % 8) * 16
        );
        const unsigned long long first_weights = described(weights, N * 16, 128);
        // Of tile i, this lane writes 8 channels of the voxels (i, g) and (i + 4, g).
        Element* const first_voxel = p.target + (Index)number * p.target_strides.patch +
                             (Index)own_h * p.target_strides.row +
                             (Index)(own_w + g) * p.target_strides.voxel + run * OUTPUTS + 8 * t;
        Sums own{0.0f, 0.0f, 0.0f};
        float sums[TILES][N / 2];
        unsigned made_words[2 * TILES][4];  // of the plane that is done, the voxels of this lane
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
            for (int i = 0; i < N / 2; ++i) sums[tile][i] = 0.0f;
        }
        RingSlot<BOXES> box;
        RingSlot<HELD> held;

        // Of the voxels of this lane, those that lie in the patch, a bit each.
        unsigned inside = 0;
#pragma unroll
        for (int i = 0; i < 2 * TILES; ++i) {
            const int h = own_h + i / 2 + i % 2 * TILES;
            if (h < p.extents[1] && own_w + g < p.extents[2]) inside |= 1u << i;
        }
        // The products of all rows that are seen through three taps, one below the other. Some pairs of
        // rows are read while those before them are multiplied.
        auto add_column = [&](unsigned voxels, unsigned long long b) {
            constexpr int AHEAD = 3;
            uint4 rows[AHEAD];
#pragma unroll
            for (int i = 0; i < STEPS * PAIRS; ++i) {
                const int step = i / PAIRS, pair = i % PAIRS;
                uint4& own = rows[i % AHEAD];
                if (i >= AHEAD) wait_for_products<AHEAD - 1>();
                own = load_matrices(voxels + step * (2 * PIECE) + pair * (SEEN_COLUMNS * 16));
                begin_products_of_registers();
#pragma unroll
                for (int below = 0; below < 3; ++below) {
                    const int tile = pair - below;
                    if (tile < 0 || tile >= TILES) continue;
                    multiply_add(
                        sums[tile], own, b + below * (3 * TAP / 16) + step * (OPERAND / 16)
                    );
                }
                end_batch();
            }
        };
        auto add_plane = [&] {
#pragma unroll 1
            for (int chunk = 0; chunk < CHUNKS; ++chunk, box.step_on(), held.step_on()) {
                weights_loaded[held.number].wait(ALL_HELD ? 0 : held.round);
                loaded[box.number].wait(box.round);
                const unsigned a = first_voxels + box.number * BOX;
                const unsigned long long b = first_weights + held.number * (CHUNK / 16);
#pragma unroll 1
                for (int right = 0; right < 3; ++right) {
#pragma unroll
                    for (int tile = 0; tile < TILES; ++tile) hold(sums[tile]);
                    add_column(a + right * 16, b + right * (TAP / 16));
                    wait_for_products<0>();
#pragma unroll
                    for (int tile = 0; tile < TILES; ++tile) hold(sums[tile]);
                }
                __syncwarp();
                if (lane == 0) left[box.number].tell();
            }
        };
        // Sums of one of this lane's 8 channels, about the shift that the lane (channel, t) has.
        auto sums_of = [&](int channel) -> Sums {
            Sums made{__shfl_sync(~0u, own.shift, channel * 4 + t), 0.0f, 0.0f};
#pragma unroll
            for (int i = 0; i < 2 * TILES; ++i) {
                if (!(inside >> i & 1)) continue;
                made.add(half_of(made_words[i][channel / 2], channel % 2));
            }
            return made;
        };
        // Of two channels, this lane's one summed up over two lanes.
        auto joint = [&](const Sums& low, const Sums& high, int bit) -> Sums {
            const bool keeps_high = g & bit;
            auto over_both = [&](float of_low, float of_high) {
                const float given = keeps_high ? of_low : of_high;
                return (keeps_high ? of_high : of_low) + __shfl_xor_sync(~0u, given, bit * 4);
            };
            return {0.0f, over_both(low.sum, high.sum), over_both(low.squares, high.squares)};
        };
        // Lane (g, t) sums up, over the warp's voxels, channel g of the 8 that the lanes (., t) have.
        auto measure = [&](bool is_first) {
            if (is_first) {
#pragma unroll
                for (int channel = 0; channel < 8; ++channel) {
                    const float value = half_of(made_words[0][channel / 2], channel % 2);
                    const float shift = __shfl_sync(~0u, value, t);
                    if (g == channel) own.shift = shift;
                }
            }
            Sums found[2];
#pragma unroll
            for (int odd = 0; odd < 2; ++odd) {
                const Sums low = joint(sums_of(odd), sums_of(odd + 4), 4);
                found[odd] = joint(low, joint(sums_of(odd + 2), sums_of(odd + 6), 4), 2);
            }
            const Sums plane = joint(found[0], found[1], 1);
            own.sum += plane.sum;
            own.squares += plane.squares;
        };
        auto write = [&](int d) {
            Element* const plane = first_voxel + (Index)d * p.target_strides.plane;
#pragma unroll
            for (int i = 0; i < 2 * TILES; ++i) {
                const unsigned(&words)[4] = made_words[i];
                const uint4 voxel = transposed(words[0], words[1], words[2], words[3], t);
                if (!(inside >> i & 1)) continue;
                *reinterpret_cast<uint4*>(
                    plane + (i / 2 + i % 2 * TILES) * p.target_strides.row
                ) = voxel;
            }
        };
#pragma unroll 1
        for (int d = first_d - 1; d <= first_d + planes; ++d) {
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
                for (int i = N / 3; i < N / 2; ++i) sums[tile][i] = 0.0f;
            }
            if (d >= first_seen && d < end_seen) add_plane();
#pragma unroll
            for (int i = 0; i < 2 * TILES; ++i) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const float* from = &sums[i / 2][4 * j + i % 2 * 2];
                    made_words[i][j] = pair(from[0], from[1]);
                    asm volatile("" : "+r"(made_words[i][j]));
                }
            }
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
                for (int i = 0; i < N / 3; ++i) sums[tile][i] = sums[tile][i + N / 6];
            }
            if (d > first_d) {
                if (p.partials) measure(d == first_d + 1);
                write(d - 1);
            }
        }
        const int columns = min(max(p.extents[2] - own_w, 0), 8);
        const int lines = min(max(p.extents[1] - own_h, 0), 8);
        // Of 8 channels (., t), number g is channel 8 (g / 2) + 2 t + g % 2 of the block's.
        joined[(group * 4 + warp) * OUTPUTS + g / 2 * 8 + 2 * t + g % 2] =
            own.moments(planes * lines * columns);
    }
    if (!p.partials) return;
    __syncthreads();
    if (threadIdx.x >= OUTPUTS) return;
    Moments moments = joined[threadIdx.x];
    for (int other = 1; other < 8; ++other) moments.join(joined[other * OUTPUTS + threadIdx.x]);
    const Index block = ((Index)number * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    p.partials[block * p.outputs + run * OUTPUTS + threadIdx.x] = moments;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    convolve_by_planes_32(ConvolveByPlanes p) {
    follow();
    convolve<1, 4, 1>(p);
}
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    convolve_by_planes_64(ConvolveByPlanes p) {
    follow();
    convolve<2, 3, 2>(p);
}
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    convolve_by_planes_128(ConvolveByPlanes p) {
    follow();
    convolve<4, 3, 2>(p);
}

#endif
