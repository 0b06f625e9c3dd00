// The last layer, a convolution to few output channels, by wgmma.
//
// source, padded -> convolution -> activation -> translated patches float [N, K, D, H, W];
// stride 1, kernel at most 7 wide, 32 or 64 source channels. Reads the source, most of it from the
// cache, and writes 4 K bytes a voxel; nothing lies in memory between.
//
// The matrix product has the 8 kernel columns of 8 kernel rows as M, voxels of an input row as N, and
// the channels of one kernel plane as its depth. The 64 rows of the sums are 8 rows of the target, of
// which each input row adds to those that see it: the operand of weights begins at another of its
// rows for each, so that the sums stay where they are. The target's row that is complete takes no
// more part; its 8 columns are summed, each shifted by its tap, and it begins anew.
//
// Each of four groups of four warps owns a plane of the target, or two; a fifth one loads input rows, each
// once for all of them.

#include "convolve_to_patches.cuh"
#include "copies.cuh"
#include "order.cuh"
#include "wgmma.cuh"

#if !defined(ELEMENT_FLOAT) && defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int GROUPS = 4;              // that have planes of the target
constexpr int ROWS = 8, TAPS = 8;      // of the target that are in flight, and of its columns
constexpr int KERNEL = 7, TURNED = 2 * ROWS - 1;
constexpr int PIECE = ROWS * TAPS;     // numbers of 8 rows of an operand, 8 of the depth
constexpr int GROUP = 128, THREADS = (GROUPS + 1) * GROUP;
constexpr int LOADER_REGISTERS = 64, OTHER_REGISTERS = 104;
constexpr int NOTHING = -2147483647 - 1;  // in place of an offset: a plane or row of zeros

// Row of the padded source as the convolution sees it, in one plane of it.
template <int CHANNELS, int COLUMNS>
struct Stage {
    static constexpr int COUNT = CHANNELS == 32 ? 16 : 6;  // at once
    static constexpr int WIDTH = COLUMNS + TAPS, VOXEL = CHANNELS * 2;  // bytes
    static constexpr int CHUNKS = CHANNELS / 8, BYTES = WIDTH * VOXEL;
};

// Offset of each voxel of the rows that a block sees, within its row.
template <int WIDTH>
__device__ __forceinline__ void find_voxels(const ConvolveToPatches& p, int* voxels, int first_w) {
    for (int i = threadIdx.x; i < WIDTH; i += THREADS) {
        // Columns past the last that an output sees may hold anything.
        const int column = min(first_w + i, p.target_extents[2] + p.kernel[2] - 2);
        const int w = continued(column + p.origin[2], p.extents[2], p.border);
        const int offset = p.shuffled ? (w >> 1) * p.source_strides.voxel + (w & 1) * p.channels
                                      : w * p.source_strides.voxel;
        voxels[i] = w < 0 ? NOTHING : offset;
    }
}

// Of each plane that a block sees.
__device__ __forceinline__ void find_planes(
    const ConvolveToPatches& p, int* planes, int first_d, int count
) {
    if (threadIdx.x >= count) return;
    const int z = continued(first_d + (int)threadIdx.x + p.origin[0], p.extents[0], p.border);
    const Index offset = p.shuffled ? (z >> 1) * p.source_strides.plane + (z & 1) * 4 * p.channels
                                    : z * p.source_strides.plane;
    planes[threadIdx.x] = z < 0 ? NOTHING : (int)offset;
}

__device__ __forceinline__ int row_offset(const ConvolveToPatches& p, int row) {
    const int seen = min(row, p.target_extents[1] + p.kernel[1] - 2);
    const int h = continued(seen + p.origin[1], p.extents[1], p.border);
    if (h < 0) return NOTHING;
    return (int)(p.shuffled ? (h >> 1) * p.source_strides.row + (h & 1) * 2 * p.channels
                            : h * p.source_strides.row);
}

// Loads all rows that a block sees, each in one plane after the other, with all lanes of a group.
template <int CHANNELS, int COLUMNS, bool HAS_ZEROS>
__device__ __forceinline__ void load_rows(
    const ConvolveToPatches& p, const Element* source, const int* voxels, const int* planes,
    int plane_count, char* stages, Barrier* loaded, Barrier* left, int first_h, int rows
) {
    using Row = Stage<CHANNELS, COLUMNS>;
    constexpr int STEP = GROUP / Row::CHUNKS, EACH = (Row::WIDTH + STEP - 1) / STEP;
    static_assert(STEP % 8 == 0);  // so that all pieces of a lane are swizzled alike
    const int lane = threadIdx.x % GROUP, chunk = lane % Row::CHUNKS, first = lane / Row::CHUNKS;
    auto is_one = [&](int i) {
        return (i + 1) * STEP <= Row::WIDTH || first + i * STEP < Row::WIDTH;
    };
    int places[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) places[i] = is_one(i) ? voxels[first + i * STEP] : NOTHING;
    char* const own = stages + first * Row::VOXEL + swizzled<Row::VOXEL>(first, chunk) * 16;
    int slot = 0, round = 0;
    for (int row = first_h; row < first_h + rows; ++row) {
        const int of_row = row_offset(p, row);
        for (int plane = 0; plane < plane_count; ++plane) {
            const int of_plane = planes[plane];
            const bool is_inside = !HAS_ZEROS || (of_row != NOTHING && of_plane != NOTHING);
            const Element* from = source + (is_inside ? of_row + of_plane : 0) + chunk * 8;
            const unsigned to = __cvta_generic_to_shared(own + slot * Row::BYTES);
            if (round) left[slot].wait(round - 1);
#pragma unroll
            for (int i = 0; i < EACH; ++i) {
                if (!is_one(i)) break;
                const bool is_there = !HAS_ZEROS || (is_inside && places[i] != NOTHING);
                begin_copy(to + i * STEP * Row::VOXEL, from + (is_there ? places[i] : 0), is_there);
            }
            loaded[slot].arrive_when_copied();
            if (++slot == Row::COUNT) slot = 0, ++round;
        }
    }
}

template <int CHANNELS, int COLUMNS>
__device__ __forceinline__ void convolve(const ConvolveToPatches& p) {
    using Row = Stage<CHANNELS, COLUMNS>;
    constexpr int EACH = COLUMNS == 64 ? 2 : 1, PLANES = GROUPS * EACH;  // of a group, of a block
    constexpr int STEPS = CHANNELS / 16;
    constexpr int OPERAND = 2 * TURNED * PIECE;  // of 16 channels of one kernel plane
    constexpr int SUMS = Row::WIDTH / 2, SUMS_PITCH = Row::WIDTH + 4;  // which is in different banks
    extern __shared__ char shared[];
    const int depth = p.kernel[0], plane_count = PLANES + depth - 1;
    char* stages = shared;  // [COUNT][WIDTH][CHUNKS], swizzled
    Element* weights = reinterpret_cast<Element*>(stages + Row::COUNT * Row::BYTES);
    // [GROUPS][TAPS][SUMS_PITCH], behind [depth][STEPS][2][TURNED][ROWS][8].
    float* complete = reinterpret_cast<float*>(weights + KERNEL * STEPS * OPERAND);
    Barrier* loaded = reinterpret_cast<Barrier*>(complete + GROUPS * TAPS * SUMS_PITCH);
    Barrier* left = loaded + Row::COUNT;
    int* voxels = reinterpret_cast<int*>(left + Row::COUNT);  // offsets within the source
    int* planes = voxels + Row::WIDTH;

    const int output = blockIdx.z % p.outputs, patch = blockIdx.z / p.outputs;
    const int blocks_w = (p.target_extents[2] + COLUMNS - 1) / COLUMNS;
    const int first_w = blockIdx.x % blocks_w * COLUMNS;
    const int first_h = blockIdx.x / blocks_w * p.rows, first_d = blockIdx.y * PLANES;
#ifdef IN_BLOCKS
    const Start start = p.blocks.start(patch);
    const Inside of_block = p.blocks.inside(start);
    const int (&inside)[3] = of_block.extents;
#else
    const int (&inside)[3] = p.target_extents;
#endif
    const int rows = min(p.rows, inside[1] - first_h);
    if (rows <= 0) return;
    const int group = threadIdx.x / GROUP, warp = threadIdx.x % GROUP / 32;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int seen_rows = rows + KERNEL - 1;

    const int vectors = depth * STEPS * OPERAND / 8;
    const uint4* from = reinterpret_cast<const uint4*>(p.weights) + (Index)output * vectors;
    for (int i = threadIdx.x; i < vectors; i += THREADS) {
        reinterpret_cast<uint4*>(weights)[i] = from[i];
    }
    find_voxels<Row::WIDTH>(p, voxels, first_w);
    find_planes(p, planes, first_d, plane_count);
    if (threadIdx.x < Row::COUNT) {
        loaded[threadIdx.x].init(GROUP);
        left[threadIdx.x].init(GROUPS * 4);
    }
    fence_async_proxy();
    __syncthreads();

    if (group == GROUPS) {
        give_registers<LOADER_REGISTERS>();
        const Element* source = p.source + patch * p.source_strides.patch;
        if (p.border == CONSTANT) {
            load_rows<CHANNELS, COLUMNS, true>(
                p, source, voxels, planes, plane_count, stages, loaded, left, first_h, seen_rows
            );
        } else {
            load_rows<CHANNELS, COLUMNS, false>(
                p, source, voxels, planes, plane_count, stages, loaded, left, first_h, seen_rows
            );
        }
        return;
    }
    take_registers<OTHER_REGISTERS>();
    const int own_d = first_d + group * EACH;
    const bool is_used = own_d < inside[0];
    float sums[EACH][SUMS];  // of 8 rows of the target, one each of 8 lanes and two of each warp
#pragma unroll
    for (int plane = 0; plane < EACH; ++plane)
#pragma unroll
        for (int i = 0; i < SUMS; ++i) sums[plane][i] = 0.0f;
    auto fence_all = [&] {
#pragma unroll
        for (int plane = 0; plane < EACH; ++plane) fence_operand(sums[plane]);
    };
    float* own_complete = complete + group * TAPS * SUMS_PITCH;
    const unsigned long long first_weights = descriptor_of(weights, TURNED * PIECE * 2, PIECE * 2);
    const unsigned long long first_voxels = descriptor_of_rows<Row::VOXEL>(stages);
    const float bias = p.bias ? p.bias[output] : 0.0f;
    bool finite = true;
    int slot = 0, round = 0, read = -1;
    auto leave = [&](int slot) {
        __syncwarp();
        if (lane == 0) left[slot].arrive();
    };
    auto advance = [&] {
        if (++slot == Row::COUNT) slot = 0, ++round;
    };
    auto pass = [&](int count) {
        for (int i = 0; i < count; ++i) {
            loaded[slot].wait(round);
            leave(slot);
            advance();
        }
    };
    // Of the target's row that is complete the sums of its columns; its place begins anew.
    auto finish = [&](int done, int d, float (&sums)[SUMS]) {
        const bool odd = done & 1;
#pragma unroll
        for (int i = 0; i < SUMS; i += 4) {
            *reinterpret_cast<float2*>(own_complete + g * SUMS_PITCH + i * 2 + 2 * t) =
                make_float2(odd ? sums[i + 2] : sums[i], odd ? sums[i + 3] : sums[i + 1]);
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                sums[i + k] = odd ? sums[i + k] : 0.0f;
                sums[i + 2 + k] = odd ? 0.0f : sums[i + 2 + k];
            }
        }
        __syncwarp();
        if (done >= 0 && d < inside[0]) {
            for (int column = lane; column < COLUMNS; column += 32) {
                if (first_w + column >= inside[2]) break;
                float value = bias;
#pragma unroll
                for (int k = 0; k < KERNEL; ++k) {
                    value += own_complete[k * SUMS_PITCH + column + k];
                }
                value = p.activation(value);
                finite = finite && is_finite(value);
#ifdef IN_BLOCKS
                p.translated[output * p.blocks.voxels() +
                             p.blocks.place(start.at[0] + d, start.at[1] + first_h + done,
                                            start.at[2] + first_w + column)] = value;
#else
                p.translated[((((Index)patch * p.outputs + output) * p.target_extents[0] + d) *
                                  p.target_extents[1] + first_h + done) * p.target_extents[2] +
                             first_w + column] = value;
#endif
            }
        }
        __syncwarp();
    };
    for (int row = 0; row < seen_rows; ++row) {
        if (!is_used) {
            pass(plane_count);
            continue;
        }
        pass(group * EACH);
        const int turned = -row & (ROWS - 1);  // the weights' row for the first of the sums
        const unsigned long long a = first_weights + turned * PIECE / 8;
        fence_all();
        auto add = [&](float (&sums)[SUMS], int of_kernel, unsigned long long b) {
            const unsigned long long own = a + of_kernel * STEPS * OPERAND / 8;
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                multiply_add(sums, own + step * OPERAND / 8, b + step * 2);
            }
        };
        auto begin = [&] {
            loaded[slot].wait(round);
            begin_products();
            return first_voxels + slot * Row::BYTES / 16;
        };
        auto end = [&] {
            end_batch();
            if (read >= 0) {
                wait_for_products<1>();
                leave(read);
            }
            read = slot;
            advance();
        };
        if constexpr (EACH == 1) {
#pragma unroll 1
            for (int i = 0; i < depth; ++i) {
                add(sums[0], i, begin());
                end();
            }
        } else {
            add(sums[0], 0, begin());
            end();
#pragma unroll 1
            for (int i = 1; i < depth; ++i) {
                const unsigned long long b = begin();
                add(sums[0], i, b);
                add(sums[1], i - 1, b);
                end();
            }
            add(sums[1], depth - 1, begin());
            end();
        }
        wait_for_products<0>();
        fence_all();
        leave(read);
        read = -1;

        const int done = row - (KERNEL - 1);  // the target's row that has seen all its input rows
        if (warp == (done & (ROWS - 1)) / 2) {
#pragma unroll
            for (int plane = 0; plane < EACH; ++plane) finish(done, own_d + plane, sums[plane]);
        }
        pass(PLANES - EACH - group * EACH);
    }
    if (!finite) *p.overflow = 1;
}

#define CONVOLVE_TO_PATCHES(channels, columns)                                     \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                       \
        convolve_to_patches_##channels##_##columns(ConvolveToPatches p) {          \
        follow();                                                                  \
        convolve<channels, columns>(p);                                            \
    }

CONVOLVE_TO_PATCHES(32, 64)
CONVOLVE_TO_PATCHES(32, 96)
CONVOLVE_TO_PATCHES(32, 128)
CONVOLVE_TO_PATCHES(64, 64)
CONVOLVE_TO_PATCHES(64, 96)
CONVOLVE_TO_PATCHES(64, 128)

#endif
