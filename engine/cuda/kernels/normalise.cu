// Instance normalisation of a small tensor in one launch: its statistics, then the pass that
// applies them, pads and adds a residual.
//
// source [patches, D, H, W, C] -> target [patches, D', H', W', C']. Moves residual and target once. The
// source, too, where there is no border to pad, as far as shared memory holds it between both parts;
// otherwise it is read again, from the cache: blocks that wrote their voxels to all places of a border
// took 2 us longer than others. A block has a share of the voxels of some columns, a column being a few
// channels of one patch. Blocks that share columns are on the GPU at the same time and wait for each
// other between both parts. Sums are taken of deviations from a voxel of the channel, so that a mean
// far from zero costs no digits, and in a fixed order: the result is the same in every run.
//
// Measured 2026-11-23 and 26 (H200, fp16; bounds as in docs/gpu-engine.md): 32^3 to 34^3 voxels of 128
// channels, 10.3 us, bound by 18 MB, 42 % of it; 64^3 of 64 in place 31 us, bound by 67 MB, 51 %.
// Alternative (2026-11-29): as two launches, statistics and pointwise, 32^3 of 256 take 4.2 us more than 11.7.

#include "copies.cuh"
#include "pass.cuh"
#include "walk.cuh"

struct Normalise {
    Pointwise pointwise;
    float2* partials;     // [patches][gridDim.x][C]: mean, sum of squared deviations
    const float* scale;   // [C] or null
    const float* shift;
    unsigned* counters;   // [gridDim.y], 0 before and after
    int voxels;           // of a patch of the source
    int groups, columns;  // of channels; groups x patches
    int held;             // vectors of a thread that stay in shared memory, where there is no border
    float epsilon;
};

constexpr int THREADS = 512, WARPS = THREADS / 32;
constexpr int ACROSS = 4, BESIDE = THREADS / ACROSS;  // vectors of a column, voxels of a turn
constexpr int WIDTH = ACROSS * LANES;                 // channels of a column
constexpr int PARTS = THREADS / WIDTH;                // threads that join partials of one channel
constexpr int SUMS = 2 * WIDTH + 2 * THREADS;         // floats of shared memory
constexpr int AT_ONCE = 4;                            // loads in flight in one thread
constexpr int AHEAD = 3, RING = AHEAD + 1;            // turns that are copied before they are due

__device__ __forceinline__ int thread_number() { return threadIdx.y * ACROSS + threadIdx.x; }

struct Column {
    int group, patch, channel;  // this thread's first one

    __device__ __forceinline__ Column(const Normalise& p, int number) {
        patch = number / p.groups;
        group = number - patch * p.groups;
        channel = (group * ACROSS + threadIdx.x) * LANES;
    }
};

// How the voxels of a patch are shared by a row of blocks.
struct Shares {
    const int voxels, each;

    __device__ __forceinline__ Shares(int voxels)
        : voxels(voxels), each((unsigned)(voxels + gridDim.x - 1) / gridDim.x) {}

    __device__ __forceinline__ int first(int block) const { return min(block * each, voxels); }
    __device__ __forceinline__ int count(int block) const {
        return min(each, voxels - first(block));
    }
};

// What a thread does in its block's share: at each turn one voxel.
struct Turns {
    const int first;   // voxel
    const int voxels;  // of the block
    const int own;     // turns of this thread
    const int count;   // turns of a thread at most, the same in all blocks

    __device__ __forceinline__ Turns(const Shares& shares)
        : first(shares.first(blockIdx.x) + threadIdx.y), voxels(shares.count(blockIdx.x)),
          own((voxels - (int)threadIdx.y + BESIDE - 1) / BESIDE),
          count((shares.each + BESIDE - 1) / BESIDE) {}

    __device__ __forceinline__ int voxel(int turn) const { return first + turn * BESIDE; }
    __device__ __forceinline__ bool has(int turn) const { return turn < own; }
};

// The voxel of each turn.
struct Path {
    const int (&extents)[3];
    Walk at;
    const Walk step;

    __device__ __forceinline__ Path(const Turns& turns, const int (&extents)[3])
        : extents(extents), at(turns.first, extents), step(BESIDE, extents) {}

    __device__ __forceinline__ void advance() { at.advance(step, extents); }
};

// Vectors of this thread in shared memory. Of a column's source the first turns stay there; the others,
// and the residual's, until RING turns later.
struct Slots {
    Vector* const first;  // [p.held, RING of the source, RING of the residual if any][THREADS]
    const int own, held, all;

    // Of the block's column `number`.
    __device__ __forceinline__ Slots(
        const Normalise& p, float* shared, int number, const Turns& turns
    ) : first(reinterpret_cast<Vector*>(shared + SUMS) + thread_number()),
        own(number * turns.count), held(p.held - own), all(p.held) {}

    __device__ __forceinline__ bool stays(int turn) const { return turn < held; }
    __device__ __forceinline__ Vector* source(int turn) const {
        return first + (stays(turn) ? own + turn : all + turn % RING) * THREADS;
    }
    __device__ __forceinline__ Vector* residual(int turn) const {
        return first + (all + RING + turn % RING) * THREADS;
    }
};

// Sums of deviations from `shift` and of their squares.
struct Deviations {
    Vector shift = {};
    float sum[LANES] = {}, squares[LANES] = {};

    __device__ __forceinline__ void add(const Vector& vector) {
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            const float value = to_float(vector.lanes[lane]) - to_float(shift.lanes[lane]);
            sum[lane] += value;
            squares[lane] = fmaf(value, value, squares[lane]);
        }
    }
};

// Adds up a column, whose turns are copied ahead.
__device__ __forceinline__ void add_copied(
    const Turns& turns, const Slots& slots, const Element* source, int channels, Deviations& sums
) {
    const auto begin = [&](int turn) {
        if (turns.has(turn)) begin_copy(slots.source(turn), source + turns.voxel(turn) * channels);
        end_group();
    };
#pragma unroll
    for (int turn = 0; turn < AHEAD; ++turn) begin(turn);
#pragma unroll 1
    for (int turn = 0; turns.has(turn); ++turn) {
        begin(turn + AHEAD);
        wait_for_all_groups_but<AHEAD>();
        sums.add(*slots.source(turn));
    }
}

// The same without shared memory.
__device__ __forceinline__ void add_loaded(
    const Turns& turns, const Element* source, int channels, Deviations& sums
) {
#pragma unroll 1
    for (int first = 0; turns.has(first); first += AT_ONCE) {
        Vector vectors[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            vectors[i] = sums.shift;  // past the end, which adds 0
            if (turns.has(first + i)) vectors[i] = load(source + turns.voxel(first + i) * channels);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) sums.add(vectors[i]);
    }
}

// Adds what two lanes `distance` apart hold: of 2 COUNT values each keeps the sums of half of them.
template <int COUNT>
__device__ __forceinline__ void exchange(float (&values)[2 * LANES], int distance, int& place) {
    const bool has_upper = thread_number() & distance;
    if (has_upper) place += COUNT;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const float given = has_upper ? values[i] : values[i + COUNT];
        const float kept = has_upper ? values[i + COUNT] : values[i];
        values[i] = kept + __shfl_xor_sync(~0u, given, distance);
    }
}

// Mean and sum of squared deviations of this block's voxels, to its partials.
__device__ __forceinline__ void write_partials(
    const Normalise& p, const Column& column, int count, const Deviations& sums, float* shared
) {
    const int thread = thread_number();
    float values[2 * LANES];
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
        values[2 * lane] = sums.sum[lane];
        values[2 * lane + 1] = sums.squares[lane];
    }
    // Of the lanes of a warp with the same channels each gets the sums of some values, from `place` on.
    int place = 2 * LANES * threadIdx.x;
    exchange<LANES>(values, 16, place);
    exchange<LANES / 2>(values, 8, place);
    exchange<LANES / 4>(values, 4, place);
    float* shifts = shared + 2 * WARPS * WIDTH;  // [WIDTH], behind [WARPS][2 * WIDTH]
#pragma unroll
    for (int i = 0; i < LANES / 4; ++i) shared[thread / 32 * 2 * WIDTH + place + i] = values[i];
    if (threadIdx.y == 0) {
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            shifts[threadIdx.x * LANES + lane] = to_float(sums.shift.lanes[lane]);
        }
    }
    __syncthreads();
    const int channels = p.pointwise.channels, channel = column.group * WIDTH + thread;
    if (thread >= WIDTH || channel >= channels) return;
    const float2* joined = reinterpret_cast<const float2*>(shared);
    float2 total = joined[thread];
#pragma unroll
    for (int other = 1; other < WARPS; ++other) {
        const float2 one = joined[other * WIDTH + thread];
        total.x += one.x;
        total.y += one.y;
    }
    const float offset = count ? total.x / count : 0.0f;
    p.partials[(column.patch * gridDim.x + blockIdx.x) * channels + channel] =
        make_float2(shifts[thread] + offset, total.y - offset * total.x);
}

template <bool IS_HELD>
__device__ __forceinline__ void measure(
    const Normalise& p, const Column& column, const Turns& turns, const Slots& slots, float* shared
) {
    Deviations sums;
    const int channels = p.pointwise.channels;
    if (column.channel < channels && turns.voxels) {
        const Element* source =
            p.pointwise.source + column.patch * p.pointwise.source_strides.patch + column.channel;
        sums.shift = load(source + (turns.first - (int)threadIdx.y) * channels);
        if (IS_HELD) {
            add_copied(turns, slots, source, channels, sums);
        } else {
            add_loaded(turns, source, channels, sums);
        }
    }
    write_partials(p, column, turns.voxels, sums, shared);
}

// Factors and summands of a column's channels from the partials of all blocks: float [2][WIDTH].
__device__ __forceinline__ float* conclude(
    const Normalise& p, const Shares& shares, const Column& column, float* shared
) {
    const int thread = thread_number(), local = thread % WIDTH, part = thread / WIDTH;
    const int channels = p.pointwise.channels, channel = column.group * WIDTH + local;
    float2* joined = reinterpret_cast<float2*>(shared + 2 * WIDTH);  // [PARTS][WIDTH]
    const float2* partials = p.partials + column.patch * gridDim.x * channels + channel;
    float2 total = make_float2(0.0f, 0.0f);
    float mean = 0.0f;
    if (channel < channels) {
        mean = __ldcg(partials).x;
#pragma unroll 1
        for (int first = part; first < gridDim.x; first += AT_ONCE * PARTS) {
            float2 ones[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const int block = min(first + i * PARTS, (int)gridDim.x - 1);
                ones[i] = __ldcg(partials + block * channels);
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const int block = first + i * PARTS;
                const int count = block < gridDim.x ? shares.count(block) : 0;
                const float distance = ones[i].x - mean;
                total.x += count ? count * distance : 0.0f;
                total.y += count ? fmaf(count * distance, distance, ones[i].y) : 0.0f;
            }
        }
    }
    joined[thread] = total;
    __syncthreads();
    if (part == 0 && channel < channels) {
#pragma unroll
        for (int other = 1; other < PARTS; ++other) {
            const float2 one = joined[other * WIDTH + local];
            total.x += one.x;
            total.y += one.y;
        }
        const float offset = total.x / p.voxels;
        float variance = total.y / p.voxels - offset * offset;
        if (variance < 0.0f) variance = 0.0f;  // what is not a number stays so
        float factor = 1.0f / sqrtf(variance + p.epsilon);
        if (p.scale) factor *= p.scale[channel];
        shared[local] = factor;
        shared[WIDTH + local] = (p.shift ? p.shift[channel] : 0.0f) - (mean + offset) * factor;
    }
    __syncthreads();
    return shared;
}

// What a thread writes of a column without a border: copied ahead, unless it has stayed.
template <Form FORM>
struct Writing {
    Channels<FORM> channels;
    const Turns& turns;
    const Slots& slots;
    Path ahead;

    __device__ __forceinline__ Writing(
        const Pointwise& p, const Column& column, const Turns& turns, const Slots& slots
    ) : channels(p, column.patch, column.channel), turns(turns), slots(slots),
        ahead(turns, p.source_extents) {
#pragma unroll
        for (int turn = 0; turn < AHEAD; ++turn) begin(turn);
    }

    __device__ __forceinline__ void begin(int turn) {
        const Pointwise& p = channels.p;
        if (turns.has(turn) && channels.first < p.channels) {
            if (!slots.stays(turn)) {
                begin_copy(slots.source(turn), channels.source + turns.voxel(turn) * p.channels);
            }
            if (channels.has_residual()) begin_copy(slots.residual(turn), residual());
        }
        ahead.advance();
        end_group();
    }

    // The tensors are small: an int holds the numbers within a patch.
    __device__ __forceinline__ const Element* residual() const {
        const Strides& strides = channels.p.residual_strides;
        return channels.residual + (ahead.at.plane * (int)strides.plane +
                                    ahead.at.row * (int)strides.row + ahead.at.column * strides.voxel);
    }

    __device__ __forceinline__ void write(const Column& column, const float* table) {
        const Pointwise& p = channels.p;
        if (channels.first >= p.channels) return;
        const int local = threadIdx.x * LANES;
        channels.scale_by(table + local, table + WIDTH + local);
        Element* target = p.target + column.patch * p.target_strides.patch + column.channel;
#pragma unroll 1
        for (int turn = 0; turns.has(turn); ++turn) {
            begin(turn + AHEAD);
            wait_for_all_groups_but<AHEAD>();
            Vector beside;
            if (channels.has_residual()) beside = *slots.residual(turn);
            float values[LANES];
            channels.evaluate(*slots.source(turn), beside, values);
            const int place = turns.voxel(turn) * p.target_strides.voxel;
            store(target + place, vector_of(values, p.target_scale));
        }
    }
};

// Writes a column with its border, from a source that is read again.
template <Form FORM>
__device__ __forceinline__ void pad(
    const Pointwise& p, const Column& column, const float* table
) {
    constexpr int AT_ONCE = has_curves(FORM) ? 2 : 5;  // the compiler takes long for curves
    const int local = threadIdx.x * LANES;
    if (column.channel >= p.channels) return;
    Channels<FORM> channels(p, column.patch, column.channel);
    channels.scale_by(table + local, table + WIDTH + local);
    const int (&extents)[3] = p.target_extents;
    const Turns turns(Shares(extents[0] * extents[1] * extents[2]));
    // The tensors are small: an int holds the numbers within a patch.
    const Strides residual = p.residual_strides;
    const int plane = residual.plane, row = residual.row;
    Element* target = p.target + column.patch * p.target_strides.patch + column.channel;
    Path path(turns, extents);
#pragma unroll 1
    for (int first = 0; turns.has(first); first += AT_ONCE) {
        Vector from[AT_ONCE], beside[AT_ONCE];
        bool shows[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int d = continued(path.at.plane + p.origin[0], p.extents[0], p.border);
            const int h = continued(path.at.row + p.origin[1], p.extents[1], p.border);
            const int w = continued(path.at.column + p.origin[2], p.extents[2], p.border);
            path.advance();
            shows[i] = turns.has(first + i) && (d | h | w) >= 0;
            if (!shows[i]) continue;
            const int line = d * p.source_extents[1] + h;
            from[i] = load(channels.source + (line * p.source_extents[2] + w) * p.channels);
            if (channels.has_residual()) {
                beside[i] = load(channels.residual + (d * plane + h * row + w * residual.voxel));
            }
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            if (!turns.has(first + i)) break;
            float values[LANES];
            channels.fill(values);
            if (shows[i]) channels.evaluate(from[i], beside[i], values);
            const int place = turns.voxel(first + i) * p.target_strides.voxel;
            store(target + place, vector_of(values, p.target_scale));
        }
    }
}

// Signals to the other blocks of the same columns that this one has measured; returns whether it is
// the last one, for the thread that waits.
__device__ __forceinline__ bool arrive(unsigned* counter) {
    if (thread_number()) return false;
    const unsigned last = gridDim.x - 1;
    unsigned before;
    asm volatile("atom.inc.acq_rel.gpu.global.u32 %0, [%1], %2;"
                 : "=r"(before) : "l"(counter), "r"(last) : "memory");
    return before == last;
}

// Until all of them have; the last one has made the counter 0.
__device__ __forceinline__ void wait_for_others(unsigned* counter, bool is_last) {
    if (thread_number() == 0 && !is_last) {
        unsigned now;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
        } while (now);
    }
    __syncthreads();
}

template <Form FORM, bool IS_HELD>
__device__ __forceinline__ void normalise_all(const Normalise& p) {
    extern __shared__ float shared[];
    const Shares shares(p.voxels);
    const Turns turns(shares);
    const int columns = (p.columns - blockIdx.y + gridDim.y - 1) / gridDim.y;
#pragma unroll 1
    for (int own = columns - 1; own >= 0; --own) {
        const Column column(p, blockIdx.y + own * gridDim.y);
        measure<IS_HELD>(p, column, turns, Slots(p, shared, own, turns), shared);
        __syncthreads();
    }
    unsigned* const counter = p.counters + blockIdx.y;
    const bool is_last = arrive(counter);
    if (!IS_HELD) wait_for_others(counter, is_last);
#pragma unroll 1
    for (int own = 0; own < columns; ++own) {
        const Column column(p, blockIdx.y + own * gridDim.y);
        if constexpr (IS_HELD) {
            const Slots slots(p, shared, own, turns);
            Writing<FORM> writing(p.pointwise, column, turns, slots);
            if (own == 0) wait_for_others(counter, is_last);
            writing.write(column, conclude(p, shares, column, shared));
        } else {
            pad<FORM>(p.pointwise, column, conclude(p, shares, column, shared));
        }
        __syncthreads();
    }
}

// Block (ACROSS, BESIDE); grid (shares, columns at once).
template <Form FORM, bool IS_HELD>
__global__ void __launch_bounds__(THREADS, 1) normalise(Normalise p) {
    normalise_all<FORM, IS_HELD>(p);
}
