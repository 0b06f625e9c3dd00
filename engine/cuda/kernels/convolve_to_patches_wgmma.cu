// The last layer, a convolution to few output channels, by wgmma.
//
// activation(source * factor + summand), padded -> convolution -> activation -> translated patches float
// [N, K, D, H, W]; stride 1, kernel at most 7 wide, 32 or 64 source channels. Reads the source, most of it
// from the cache, and writes 4 K bytes a voxel; nothing lies in memory between.
//
// The matrix product has the 8 kernel columns of 8 kernel rows as M, voxels of an input row as N, and
// the channels of one kernel plane as its depth. The 64 rows of the sums are 8 rows of the target, of
// which each input row adds to those that see it: the operand of weights begins at another of its
// rows for each, so that the sums stay where they are. The target's row that is complete takes no
// more part; its 8 columns are summed, each shifted by its tap, and it begins anew.
//
// Each of four groups of four warps owns a plane of the target, or two; a fifth one copies input rows to
// shared memory, some rows ahead, and activates them there, each once for all of them.

#include "blocks.cuh"
#include "copies.cuh"
#include "order.cuh"
#include "part.cuh"
#include "wgmma.cuh"

struct ConvolveActivatedToPatches {
    Part part;               // of a slope from 0 to 1
    const Element* weights;  // operands
    const float* bias;       // [K], or null
    float* translated;
    int* overflow;
    int extents[3];          // of the source, as the convolution sees it
    int target_extents[3];
    int kernel[3];
    int origin[3];
    int border;
    int rows;                // of the target, a block
    int outputs;             // K
    Activation activation;
#ifdef IN_BLOCKS
    Blocks blocks;           // of the target
    Blocks source_blocks;    // of the source, where each voxel tells its block
    Around source_around;
#endif
};

#if !defined(ELEMENT_FLOAT) && defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int GROUPS = 4;              // that have planes of the target
constexpr int ROWS = 8, TAPS = 8;      // of the target that are in flight, and of its columns
constexpr int KERNEL = 7, TURNED = 2 * ROWS - 1;
constexpr int PIECE = ROWS * TAPS;     // numbers of 8 rows of an operand, 8 of the depth
constexpr int GROUP = 128, THREADS = (GROUPS + 1) * GROUP;
constexpr int LOADER_REGISTERS = 64, OTHER_REGISTERS = 104;
// A launch has no more of them, and what asks for more would wait for ever.
static_assert(LOADER_REGISTERS + GROUPS * OTHER_REGISTERS <= 65536 / THREADS / 8 * 8 * (GROUPS + 1));
constexpr int NOTHING = -1;            // in place of an offset: a plane, a row or a voxel of zeros

// Row of the padded source as the convolution sees it, in one plane of it.
template <int CHANNELS, int COLUMNS, int STAGES>
struct Stage {
    static constexpr int COUNT = STAGES;  // at once
    static constexpr int WIDTH = COLUMNS + TAPS, VOXEL = CHANNELS * 2;  // bytes
    static constexpr int CHUNKS = CHANNELS / 8, BYTES = WIDTH * VOXEL;
};

// Vectors of the source before what a patch sees at a position of an axis, which may lie past a border.
// start: of the patch, along that axis.
__device__ __forceinline__ Index offset_of(
    const ConvolveActivatedToPatches& p, int start, int axis, int position
) {
    const Strides& strides = p.part.strides;
    position += start + p.origin[axis];
    Index offset = 0;
#ifdef IN_BLOCKS
    int place = continued(position, p.blocks.volume[axis], p.border);
#else
    int place = continued(position, p.extents[axis], p.border);
#endif
    if (p.border == CONSTANT && place < 0) return NOTHING;
    place = max(place, 0);  // far past the border, where nothing is used
#ifdef IN_BLOCKS
    if (p.source_around.extents[0]) {
        place -= start + p.source_around.first[axis];
        place = min(max(place, 0), p.source_around.extents[axis] - 1);
    } else {
        const int block = p.source_blocks.block_at(place, axis);
        place -= block * p.source_blocks.extents[axis];
        offset = block * strides.patch;
        for (int inner = 2; inner > axis; --inner) offset *= p.source_blocks.counts[inner - 1];
    }
#endif
    const Index step = axis == 0 ? strides.plane : axis == 1 ? strides.row : strides.voxel;
    if (!p.part.shuffled) return (offset + place * step) / LANES;
    const int voxel_of_cell = (place & 1) << (2 - axis);
    return (offset + (place >> 1) * step + voxel_of_cell * p.part.channels) / LANES;
}

// Offset of each voxel of the rows that a block sees, and of each plane.
template <int WIDTH>
__device__ __forceinline__ void find_places(
    const ConvolveActivatedToPatches& p, const Start& start, int* voxels, Index* planes,
    int first_w, int first_d, int plane_count
) {
    for (int i = threadIdx.x; i < WIDTH; i += THREADS) {
        // Columns past the last that an output sees may hold anything.
        const int column = min(first_w + i, p.target_extents[2] + p.kernel[2] - 2);
        voxels[i] = (int)offset_of(p, start.at[2], 2, column);
    }
    const int plane = threadIdx.x;
    if (plane < plane_count) planes[plane] = offset_of(p, start.at[0], 0, first_d + plane);
}

// Of a patch, the vectors of the source before those that `offset_of` counts.
__device__ __forceinline__ Index first_of(const ConvolveActivatedToPatches& p, int number) {
#ifdef IN_BLOCKS
    if (!p.source_around.extents[0]) number = -p.source_blocks.first;
#endif
    return number * (p.part.strides.patch / LANES);
}

// Loads all rows that a block sees, each in one plane after the other, with all lanes of a group.
template <int CHANNELS, int COLUMNS, int STAGES>
class RowLoader {
    using Row = Stage<CHANNELS, COLUMNS, STAGES>;
    static constexpr int STEP = GROUP / Row::CHUNKS, EACH = (Row::WIDTH + STEP - 1) / STEP;
    static_assert(STEP % 8 == 0);  // so that all pieces of a lane are swizzled alike
    static constexpr int AHEAD = Row::COUNT / 2;  // rows on their way, of which the first is awaited

    const ConvolveActivatedToPatches& p;
    const Index* const planes;
    const int start_h, plane_count, first_row, last_row;
    const Vector* source;      // at the 8 channels of this lane
    float factor[8], summand[8];
    unsigned places[EACH];     // of its voxels in a row
    unsigned inside = 0;       // which of them are not zeros, a bit each
    bool has_last;             // of those
    Vector* first_target;      // of its voxels in the first slot

    __device__ __forceinline__ bool is_one(int i) const { return i + 1 < EACH || has_last; }

    __device__ __forceinline__ Index row_offset(int row) const {
        const int seen = min(row, p.target_extents[1] + p.kernel[1] - 2);
        return offset_of(p, start_h, 1, seen);
    }

    __device__ __forceinline__ Vector* target(int slot, int i) const {
        return first_target + (slot * Row::WIDTH + i * STEP) * Row::CHUNKS;
    }

    __device__ __forceinline__ void begin_row(Index offset, bool is_there, int slot) const {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const bool is_inside = is_there && inside >> i & 1;
            const unsigned to = __cvta_generic_to_shared(target(slot, i));
            if (is_one(i)) begin_copy(to, source + (is_inside ? offset + places[i] : 0), is_inside);
        }
    }

    // Some voxels at once, so that none waits for another.
    template <int COUNT>
    __device__ __forceinline__ void activate(bool is_there, int slot) const {
        constexpr int AT_ONCE = COUNT < 4 ? COUNT : 3;
#pragma unroll
        for (int first = 0; first < COUNT; first += AT_ONCE) {
            Vector vectors[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE && first + i < COUNT; ++i) {
                vectors[i] = *target(slot, first + i);
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE && first + i < COUNT; ++i) {
#pragma unroll
                for (int lane = 0; lane < LANES; ++lane) {
                    const float number = to_float(vectors[i].lanes[lane]);
                    const float value = fmaf(number, factor[lane], summand[lane]);
                    vectors[i].lanes[lane] = to_element(fmaxf(value, p.part.slope * value));
                }
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE && first + i < COUNT; ++i) {
                if (is_there && inside >> (first + i) & 1) *target(slot, first + i) = vectors[i];
            }
        }
    }

public:
    // number: of the patch. first_h, rows: of those that the block sees.
    __device__ __forceinline__ RowLoader(
        const ConvolveActivatedToPatches& p, int number, int start_h, const int* voxels,
        const Index* planes, int plane_count, int first_h, int rows, Element* stages
    ) : p(p), planes(planes), start_h(start_h), plane_count(plane_count), first_row(first_h),
        last_row(first_h + rows - 1) {
        const int lane = threadIdx.x % GROUP, chunk = lane % Row::CHUNKS, first = lane / Row::CHUNKS;
        source = reinterpret_cast<const Vector*>(p.part.source) + first_of(p, number) + chunk;
        first_target = reinterpret_cast<Vector*>(stages) + first * Row::CHUNKS +
                       swizzled<Row::VOXEL>(first, chunk);
        const int channel = number * p.part.table_stride + chunk * LANES;
#pragma unroll
        for (int k = 0; k < LANES; ++k) {
            factor[k] = p.part.factor ? p.part.factor[channel + k] : 1.0f;
            summand[k] = p.part.factor ? p.part.summand[channel + k] : 0.0f;
        }
        has_last = first + (EACH - 1) * STEP < Row::WIDTH;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int found = is_one(i) ? voxels[first + i * STEP] : NOTHING;
            inside |= (unsigned)(found != NOTHING) << i;
            places[i] = max(found, 0);
        }
    }

    // Each lane activates what it has copied itself, where that lies.
    __device__ __forceinline__ void load_all(Barrier* loaded, Barrier* left) const {
        const int count = (last_row + 1 - first_row) * plane_count;
        RingSlot<Row::COUNT> slot, activated;
        unsigned are_there = 0;  // of the last rows begun, a bit each
        int row = first_row, plane = 0;
        Index of_row = row_offset(row);
#pragma unroll 1
        for (int i = 0; i < count + AHEAD; ++i) {
            if (i < count) {
                const bool is_there = of_row != NOTHING && planes[plane] != NOTHING;
                if (slot.round) left[slot.number].wait(slot.round - 1);
                begin_row(of_row + planes[plane], is_there, slot.number);
                are_there = are_there << 1 | is_there;
                slot.advance();
                if (++plane == plane_count) plane = 0, of_row = row_offset(++row);
            } else {
                are_there <<= 1;
            }
            end_group();
            if (i < AHEAD) continue;
            wait_for_all_groups_but<AHEAD>();
            const bool is_there = are_there >> AHEAD & 1;
            if (has_last) {
                activate<EACH>(is_there, activated.number);
            } else {
                activate<EACH - 1>(is_there, activated.number);
            }
            __syncwarp();
            if (threadIdx.x % 32 == 0) loaded[activated.number].arrive();
            activated.advance();
        }
    }
};

template <int CHANNELS, int COLUMNS, int STAGES>
__device__ __forceinline__ void convolve(const ConvolveActivatedToPatches& p) {
    using Row = Stage<CHANNELS, COLUMNS, STAGES>;
    constexpr int EACH = COLUMNS == 64 ? 2 : 1, PLANES = GROUPS * EACH;  // of a group, of a block
    constexpr int STEPS = CHANNELS / 16;
    constexpr int OPERAND = 2 * TURNED * PIECE;  // of 16 channels of one kernel plane
    constexpr int SUMS = Row::WIDTH / 2, SUMS_PITCH = Row::WIDTH + 4;  // which is in different banks
    extern __shared__ char shared[];
    const int depth = p.kernel[0], plane_count = PLANES + depth - 1;
    Element* stages = reinterpret_cast<Element*>(shared);  // [COUNT][WIDTH][CHUNKS][8], swizzled
    Element* weights = stages + Row::COUNT * Row::WIDTH * CHANNELS;
    // [GROUPS][TAPS][SUMS_PITCH], behind [depth][STEPS][2][TURNED][ROWS][8].
    float* complete = reinterpret_cast<float*>(weights + KERNEL * STEPS * OPERAND);
    Barrier* loaded = reinterpret_cast<Barrier*>(complete + GROUPS * TAPS * SUMS_PITCH);
    Barrier* left = loaded + Row::COUNT;
    Index* planes = reinterpret_cast<Index*>(left + Row::COUNT);  // offsets within the source
    int* voxels = reinterpret_cast<int*>(planes + PLANES + KERNEL - 1);

    const int output = blockIdx.z % p.outputs, patch = blockIdx.z / p.outputs;
    const int blocks_w = (p.target_extents[2] + COLUMNS - 1) / COLUMNS;
    const int first_w = blockIdx.x % blocks_w * COLUMNS;
    const int first_h = blockIdx.x / blocks_w * p.rows, first_d = blockIdx.y * PLANES;
    const Start start = start_of(p, patch);
#ifdef IN_BLOCKS
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
    find_places<Row::WIDTH>(p, start, voxels, planes, first_w, first_d, plane_count);
    if (threadIdx.x < Row::COUNT) {
        loaded[threadIdx.x].init(GROUP / 32);
        left[threadIdx.x].init(GROUPS * 4);
    }
    fence_async_proxy();
    __syncthreads();

    if (group == GROUPS) {
        give_registers<LOADER_REGISTERS>();
        const RowLoader<CHANNELS, COLUMNS, STAGES> loader(
            p, patch, start.at[1], voxels, planes, plane_count, first_h, seen_rows, stages
        );
        loader.load_all(loaded, left);
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

template <int CHANNELS, int COLUMNS, int STAGES>
__global__ void __launch_bounds__(THREADS, 1)
    convolve_to_patches_wgmma(ConvolveActivatedToPatches p) {
    follow();
    convolve<CHANNELS, COLUMNS, STAGES>(p);
}

#endif
