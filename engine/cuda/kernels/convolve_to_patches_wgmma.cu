// The last layer, a convolution to few output channels, by wgmma.
//
// activation(source * factor + summand), padded -> convolution -> activation -> translated patches float
// [N, K, D, H, W]; stride 1, kernel at most 7 wide, 32 or 64 source channels. Reads the source, most of it
// from the cache, and writes 4 K bytes a voxel; nothing is stored in memory between.
//
// The matrix product has the 8 kernel columns of 8 kernel rows as M, voxels of an input row as N, and
// the channels of one kernel plane as its depth. The 64 rows of the sums are 8 rows of the target, of
// which each input row adds to those that read it: the operand of weights begins at another of its
// rows for each, so that the sums stay where they are. A complete row of the target takes no more
// part; its 8 columns are summed, each shifted by its tap, and its sums begin again from 0.
//
// Each of four consumer warpgroups owns a plane of the target, or two; the producer warpgroup copies input
// rows to shared memory, some rows before their use, and activates them there, each once for all of them.
//
// Measured 2026-11-26 (H200, fp16; bounds as in docs/gpu-engine.md): 7^3, 32 to 1 channels, 128^3,
// 0.162 ms, bound by 46 GFLOP, 37 % of it; 64 to 1 0.226 ms, 53 %. It normalises what it reads, and with a
// border of zeros takes 0.270 ms (2026-11-29).
// Alternative (2026-11-29, border of zeros): the layer's network takes 348 us, with this kernel 325.

#include "blocks.cuh"
#include "copies.cuh"
#include "part.cuh"
#include "pipeline.cuh"
#include "view.cuh"
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
    Blocks source_blocks;    // of the source, whose blocks follow from the voxel
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
        place = p.source_around.within(place, start, axis);
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
    const uint4* source;       // at the 8 channels of this lane
    float factor[8], summand[8];
    unsigned places[EACH];     // of its voxels in a row
    unsigned inside = 0;       // which of them are not zeros, a bit each
    bool has_last;             // of those
    uint4* first_target;       // of its voxels in the first slot

    __device__ __forceinline__ bool is_one(int i) const { return i + 1 < EACH || has_last; }

    __device__ __forceinline__ Index row_offset(int row) const {
        const int seen = min(row, p.target_extents[1] + p.kernel[1] - 2);
        return offset_of(p, start_h, 1, seen);
    }

    __device__ __forceinline__ uint4* target(int slot, int i) const {
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
            uint4 vectors[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE && first + i < COUNT; ++i) {
                vectors[i] = *target(slot, first + i);
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE && first + i < COUNT; ++i) {
                vectors[i] = activated(vectors[i], factor, summand, p.part.slope);
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
        source = reinterpret_cast<const uint4*>(p.part.source) + first_of(p, number) + chunk;
        first_target = reinterpret_cast<uint4*>(stages) + first * Row::CHUNKS +
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
    __device__ __forceinline__ void load_all(Ring<Row::COUNT>& ring) const {
        const int count = (last_row + 1 - first_row) * plane_count;
        RingSlot<Row::COUNT> slot, ready;
        unsigned are_there = 0;  // of the last rows begun, a bit each
        int row = first_row, plane = 0;
        Index of_row = row_offset(row);
#pragma unroll 1
        for (int i = 0; i < count + AHEAD; ++i) {
            if (i < count) {
                const bool is_there = of_row != NOTHING && planes[plane] != NOTHING;
                ring.acquire(slot);
                begin_row(of_row + planes[plane], is_there, slot.index);
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
                activate<EACH>(is_there, ready.index);
            } else {
                activate<EACH - 1>(is_there, ready.index);
            }
            ring.full[ready.index].arrive_warp();
            ready.advance();
        }
    }
};

// What a block computes: rows of some planes of the target of a patch.
struct Task {
    int output, number, first_d, first_h, first_w, rows;
    Start start;
    Inside inside;  // voxels of the patch that are of the volume

    __device__ __forceinline__ Task(
        const ConvolveActivatedToPatches& p, int columns, int planes
    ) : output(blockIdx.z % p.outputs), number(blockIdx.z / p.outputs), start(start_of(p, number)),
        inside(inside_of(p, p.target_extents, number)) {
        const int across = (p.target_extents[2] + columns - 1) / columns;
        first_w = blockIdx.x % across * columns, first_h = blockIdx.x / across * p.rows;
        first_d = blockIdx.y * planes, rows = min(p.rows, inside.extents[1] - first_h);
    }
};

template <int CHANNELS_, int COLUMNS_, int STAGES_>
struct Shared {
    static constexpr int CHANNELS = CHANNELS_, COLUMNS = COLUMNS_, STAGES = STAGES_;
    using Row = Stage<CHANNELS, COLUMNS, STAGES>;
    static constexpr int EACH = COLUMNS == 64 ? 2 : 1, PLANES = GROUPS * EACH;  // of a group, a block
    static constexpr int STEPS = CHANNELS / 16;
    static constexpr int OPERAND = 2 * TURNED * PIECE;  // of 16 channels of one kernel plane
    static constexpr int SUMS = Row::WIDTH / 2;
    static constexpr int SUMS_PITCH = Row::WIDTH + 4;  // which is in different banks

    Element rows[STAGES][Row::WIDTH * CHANNELS];  // [WIDTH][CHUNKS][8], swizzled
    Element weights[KERNEL * STEPS * OPERAND];    // [depth][STEPS][2][TURNED][ROWS][8]
    float complete[GROUPS][TAPS * SUMS_PITCH];    // columns of a row of the target
    Ring<STAGES> ring;
    Index planes[PLANES + KERNEL - 1];            // offsets within the source
    int voxels[Row::WIDTH];

    __device__ __forceinline__ void begin(
        const ConvolveActivatedToPatches& p, const Task& task, int plane_count
    ) {
        const int vectors = p.kernel[0] * STEPS * OPERAND / 8;
        const uint4* from = reinterpret_cast<const uint4*>(p.weights) + (Index)task.output * vectors;
        for (int i = threadIdx.x; i < vectors; i += THREADS) {
            reinterpret_cast<uint4*>(weights)[i] = from[i];
        }
        find_places<Row::WIDTH>(
            p, task.start, voxels, planes, task.first_w, task.first_d, plane_count
        );
        ring.init(GROUP / 32, GROUPS * 4);
        fence_async_proxy();
        __syncthreads();
    }
};

// Sums of a group's planes of the target: of each 8 rows, one each of 8 lanes and two of each warp.
template <class Held>
struct Products {
    static constexpr int EACH = Held::EACH, SUMS = Held::SUMS;

    Held& shared;
    float sums[EACH][SUMS] = {};
    RingSlot<Held::STAGES> slot;
    int read = -1;
    unsigned long long first_weights, first_voxels;

    __device__ __forceinline__ Products(Held& held_by_all) : shared(held_by_all) {
        first_weights = descriptor_of(shared.weights, TURNED * PIECE * 2, PIECE * 2);
        first_voxels = descriptor_of_rows<Held::Row::VOXEL>(shared.rows);
    }

    __device__ __forceinline__ void fence_all() {
#pragma unroll
        for (int plane = 0; plane < EACH; ++plane) fence_operand(sums[plane]);
    }

    // Releases rows that this group does not use.
    __device__ __forceinline__ void skip(int count) {
        for (int i = 0; i < count; ++i) {
            shared.ring.wait(slot);
            shared.ring.empty[slot.index].arrive_warp();
            slot.advance();
        }
    }

    // Begins a batch with the next row, whose operand is the result.
    __device__ __forceinline__ unsigned long long begin() {
        shared.ring.wait(slot);
        begin_products();
        return first_voxels + slot.index * Held::Row::BYTES / 16;
    }

    __device__ __forceinline__ void end() {
        end_batch();
        if (read >= 0) {
            wait_for_products<1>();
            shared.ring.empty[read].arrive_warp();
        }
        read = slot.index;
        slot.advance();
    }

    // Adds products of a row of the source with a plane of the kernel.
    __device__ __forceinline__ void add(
        float (&sums)[SUMS], unsigned long long a, int of_kernel, unsigned long long b
    ) {
        const unsigned long long own = a + of_kernel * Held::STEPS * Held::OPERAND / 8;
#pragma unroll
        for (int step = 0; step < Held::STEPS; ++step) {
            multiply_add(sums, own + step * Held::OPERAND / 8, b + step * 2);
        }
    }

    // Adds those of a row in all planes that the group's planes of the target see.
    __device__ __forceinline__ void add_row(int row, int depth) {
        const int turned = -row & (ROWS - 1);  // the weights' row for the first of the sums
        const unsigned long long a = first_weights + turned * PIECE / 8;
        fence_all();
        if constexpr (EACH == 1) {
#pragma unroll 1
            for (int i = 0; i < depth; ++i) {
                add(sums[0], a, i, begin());
                end();
            }
        } else {
            add(sums[0], a, 0, begin());
            end();
#pragma unroll 1
            for (int i = 1; i < depth; ++i) {
                const unsigned long long b = begin();
                add(sums[0], a, i, b);
                add(sums[1], a, i - 1, b);
                end();
            }
            add(sums[1], a, depth - 1, begin());
            end();
        }
        wait_for_products<0>();
        fence_all();
        shared.ring.empty[read].arrive_warp();
        read = -1;
    }
};

// Sums up the columns of a row of the target that is complete, and writes it; its sums begin anew.
template <class Held>
struct Written {
    const ConvolveActivatedToPatches& p;
    const Task& task;
    float* complete;  // of this group
    float bias;
    bool is_finite_yet = true;

    __device__ __forceinline__ Written(
        const ConvolveActivatedToPatches& p, const Task& task, float* complete
    ) : p(p), task(task), complete(complete), bias(p.bias ? p.bias[task.output] : 0.0f) {}

    __device__ __forceinline__ Index place(int d, int h, int w) const {
        return translated_at(p, task.start, task.number, task.output, d, h, w);
    }

    __device__ __forceinline__ void finish(int done, int d, float (&sums)[Held::SUMS]) {
        constexpr int PITCH = Held::SUMS_PITCH;
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        const bool odd = done & 1;
#pragma unroll
        for (int i = 0; i < Held::SUMS; i += 4) {
            *reinterpret_cast<float2*>(complete + g * PITCH + i * 2 + 2 * t) =
                make_float2(odd ? sums[i + 2] : sums[i], odd ? sums[i + 3] : sums[i + 1]);
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                sums[i + k] = odd ? sums[i + k] : 0.0f;
                sums[i + 2 + k] = odd ? 0.0f : sums[i + 2 + k];
            }
        }
        __syncwarp();
        if (done >= 0 && d < task.inside.extents[0]) {
            for (int column = lane; column < Held::COLUMNS; column += 32) {
                if (task.first_w + column >= task.inside.extents[2]) break;
                float value = bias;
#pragma unroll
                for (int k = 0; k < KERNEL; ++k) value += complete[k * PITCH + column + k];
                value = p.activation(value);
                is_finite_yet = is_finite_yet && is_finite(value);
                p.translated[place(d, task.first_h + done, task.first_w + column)] = value;
            }
        }
        __syncwarp();
    }
};

// Consumer: one plane of the target, or two.
template <class Held>
__device__ __forceinline__ void multiply(
    const ConvolveActivatedToPatches& p, const Task& task, Held& shared, int plane_count
) {
    constexpr int EACH = Held::EACH;
    const int group = threadIdx.x / GROUP, warp = threadIdx.x % GROUP / 32;
    const int own_d = task.first_d + group * EACH;
    const bool is_used = own_d < task.inside.extents[0];
    Products<Held> products(shared);
    Written<Held> written(p, task, shared.complete[group]);
    for (int row = 0; row < task.rows + KERNEL - 1; ++row) {
        if (!is_used) {
            products.skip(plane_count);
            continue;
        }
        products.skip(group * EACH);
        products.add_row(row, p.kernel[0]);
        const int done = row - (KERNEL - 1);  // the target's row that has seen all its input rows
        if (warp == (done & (ROWS - 1)) / 2) {
#pragma unroll
            for (int plane = 0; plane < EACH; ++plane) {
                written.finish(done, own_d + plane, products.sums[plane]);
            }
        }
        products.skip(Held::PLANES - EACH - group * EACH);
    }
    if (!written.is_finite_yet) *p.overflow = 1;
}

template <class Held>
__device__ __forceinline__ void convolve(const ConvolveActivatedToPatches& p) {
    extern __shared__ char memory[];
    Held& shared = *reinterpret_cast<Held*>(memory);
    const Task task(p, Held::COLUMNS, Held::PLANES);
    if (task.rows <= 0) return;
    const int plane_count = Held::PLANES + p.kernel[0] - 1;
    shared.begin(p, task, plane_count);
    if (threadIdx.x / GROUP == GROUPS) {
        give_registers<LOADER_REGISTERS>();
        const RowLoader<Held::CHANNELS, Held::COLUMNS, Held::STAGES> loader(
            p, task.number, task.start.at[1], shared.voxels, shared.planes, plane_count, task.first_h,
            task.rows + KERNEL - 1, shared.rows[0]
        );
        loader.load_all(shared.ring);
    } else {
        take_registers<OTHER_REGISTERS>();
        multiply(p, task, shared, plane_count);
    }
}

template <int CHANNELS, int COLUMNS, int STAGES>
__global__ void __launch_bounds__(THREADS, 1)
    convolve_to_patches_wgmma(ConvolveActivatedToPatches p) {
    convolve<Shared<CHANNELS, COLUMNS, STAGES>>(p);
}

#endif
