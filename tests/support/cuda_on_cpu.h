// Enough of CUDA for g++: a stack for each lane, of which one runs until it waits, and barriers for
// warps and blocks. What a matrix unit or an asynchronous copy does, on_cpu does in plain words and at
// once.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

using std::abs, std::max, std::min;

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static  // of blocks that run one after another

struct Place {
    int x, y, z;
};
struct float2 {
    float x, y;
};
struct int2 {
    int x, y;
};
struct uint2 {
    unsigned x, y;
};
struct uint4 {
    unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

typedef _Float16 __half;
inline float __half2float(__half value) { return value; }
inline __half __float2half_rn(float value) { return (__half)value; }

inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, 4);
    return bits;
}

template <class T>
T atomicAdd(T* address, T added) {
    return __atomic_fetch_add(address, added, __ATOMIC_ACQ_REL);
}

inline unsigned atomicInc(unsigned* address, unsigned last) {
    unsigned before = __atomic_load_n(address, __ATOMIC_ACQUIRE);
    while (!__atomic_compare_exchange_n(address, &before, before >= last ? 0 : before + 1, false,
                                        __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    }
    return before;
}

inline void __threadfence() {}

inline void atomicMax(unsigned* address, unsigned value) {
    unsigned before = __atomic_load_n(address, __ATOMIC_ACQUIRE);
    while (before < value &&
           !__atomic_compare_exchange_n(address, &before, value, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE)) {
    }
}

inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fdividef(float a, float b) { return a / b; }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }

inline Place blockDim, gridDim, threadIdx, blockIdx;

namespace on_cpu {

// Lets the other lanes run; this one only once the number is another.
void wait(const unsigned* until_changed = nullptr);

class Barrier {
    int missing, lanes;
    unsigned opened = 0;

public:
    Barrier(int lanes) : missing(lanes), lanes(lanes) {}

    void arrive_and_wait() {
        const unsigned before = opened;
        if (--missing == 0) missing = lanes, ++opened;
        while (opened == before) wait(&opened);
    }

    // Which of two places is this time's: what the lanes left in the other has been read by all that
    // have come here.
    int turn() const { return opened % 2; }
};

// What each lane tells the others that wait at a barrier with it.
struct Told {
    unsigned words[2][32];
};

constexpr int DEPTH = 16, MOST_COLUMNS = 256;  // of what one instruction multiplies

typedef double Four __attribute__((vector_size(32)));

// What rows are multiplied by. Of each 8 columns the lane 4 g + t adds up two, 2 t and 2 t + 1; all of
// its own lie side by side, a Four of 16 columns.
template <int MOST>
struct Columns {
    Four of_lanes[DEPTH][4][(MOST + 15) / 16] = {};

    double& at(int depth, int column) {
        double* const of_lane = reinterpret_cast<double*>(of_lanes[depth][column % 8 / 2]);
        return of_lane[column / 8 * 2 + column % 2];
    }
};

struct Warp {
    Barrier all{32};
    std::vector<Barrier> pairs = std::vector<Barrier>(16, 2);
    Told told, told_in_pairs;
    unsigned words[32][4];
    double rows[16][DEPTH];
    Columns<8> columns;
};

// Warps that share the columns.
struct Group {
    Barrier all{128};
    std::unique_ptr<Columns<MOST_COLUMNS>> held;

    Columns<MOST_COLUMNS>& columns() {
        if (!held) held.reset(new Columns<MOST_COLUMNS>);
        return *held;
    }
};

struct Block {
    Place index;
    Barrier all;
    std::vector<Warp> warps;
    std::vector<Group> groups;
    std::vector<char> shared;
    std::map<int, Barrier> named;

    Block(Place index, int threads, int bytes)
        : index(index), all(threads), warps(threads / 32), groups(threads / 128),
          shared(bytes) {}
};

inline Block* block;
inline int thread;

inline Warp& warp() { return block->warps[thread / 32]; }
inline Group& group() { return block->groups[thread / 128]; }

template <class T>
T* shared() {
    return reinterpret_cast<T*>(block->shared.data());
}

// A barrier for some lanes of a block, by its number.
inline void wait_for_some(int name, int lanes) {
    block->named.try_emplace(name, lanes).first->second.arrive_and_wait();
}

inline unsigned read(unsigned* address) {
    wait();
    return __atomic_load_n(address, __ATOMIC_ACQUIRE);
}

inline void copy(unsigned target, const void* source, bool is_inside) {
    char* to = block->shared.data() + target;
    is_inside ? memcpy(to, source, 16) : memset(to, 0, 16);
}

// Lane 4 g + t gets columns 2 t and 2 t + 1 of row g of each matrix.
inline uint4 load_matrices(unsigned row) {
    const int lane = thread % 32;
    warp().words[lane][0] = row;
    warp().all.arrive_and_wait();
    unsigned found[4];
    for (int matrix = 0; matrix < 4; ++matrix) {
        const unsigned from = warp().words[matrix * 8 + lane / 4][0] + lane % 4 * 4;
        memcpy(&found[matrix], block->shared.data() + from, 4);
    }
    warp().all.arrive_and_wait();
    return {found[0], found[1], found[2], found[3]};
}

// The other way round, and transposed: lane 8 m + r says where row r of matrix m goes, which is the
// column r of what lanes hold.
inline void store_transposed(unsigned row, const uint4& own) {
    const int lane = thread % 32;
    memcpy(warp().words[lane], &own, 16);
    warp().all.arrive_and_wait();
    for (int column = 0; column < 8; ++column) {
        const unsigned both = warp().words[column * 4 + lane % 8 / 2][lane / 8];
        const unsigned short half = both >> lane % 2 * 16;
        memcpy(block->shared.data() + row + 2 * column, &half, 2);
    }
    warp().all.arrive_and_wait();
}

// Not inlined, as a half becomes a double in software alone.
[[gnu::noinline]] inline float half_at(const void* place) {
    __half value;
    memcpy(&value, place, 2);
    return value;
}

// The lane's part of 16 rows, in the layout of mma.m16n8k16 as the PTX manual gives it.
inline void lay_rows(const uint4& a) {
    const int lane = thread % 32;
    const unsigned words[4] = {a.x, a.y, a.z, a.w};
    for (int i = 0; i < 8; ++i) {
        const int row = lane / 4 + i / 2 % 2 * 8, depth = lane % 4 * 2 + i / 4 * 8 + i % 2;
        warp().rows[row][depth] = half_at((const char*)words + 2 * i);
    }
}

inline void lay_columns(unsigned b0, unsigned b1) {
    const int lane = thread % 32;
    const unsigned words[2] = {b0, b1};
    for (int i = 0; i < 4; ++i) {
        const int depth = lane % 4 * 2 + i / 2 * 8 + i % 2;
        warp().columns.at(depth, lane / 4) = half_at((const char*)words + 2 * i);
    }
}

// Eight halves of row 8 m + r of an operand, from depth 0 or 8 on, where its descriptor puts them: the
// layouts without a swizzle, and with those of 128 and of 64 bytes, as the PTX manual gives them.
inline const char* described(unsigned long long operand, int row, int depth) {
    const auto bytes = [&](int bit) { return (operand >> bit & 0x3FFF) << 4; };
    const int kind = operand >> 62, swizzle = kind == 1 ? 128 : kind == 2 ? 64 : 0;
    size_t place = bytes(0) + row / 8 * bytes(32);
    if (swizzle) {
        place += row % 8 * swizzle + depth * 2;
        place ^= place / 128 % (swizzle / 16) * 16;
    } else {
        place += depth / 8 * bytes(16) + row % 8 * 16;
    }
    return block->shared.data() + place;
}

// The lane's share of the warp's rows.
inline void lay_described_rows(unsigned long long a) {
    const int row = thread % 32 / 2, depth = thread % 2 * 8;
    const char* const from = described(a, thread % 128 / 32 * 16 + row, depth);
    for (int i = 0; i < 8; ++i) warp().rows[row][depth + i] = half_at(from + 2 * i);
}

// The lane's share of the group's columns.
template <int COUNT>
void lay_described_columns(unsigned long long b) {
    static_assert(2 * COUNT <= MOST_COLUMNS);
    Columns<MOST_COLUMNS>& columns = group().columns();
    for (int i = thread % 128; i < 2 * COUNT * 2; i += 128) {
        const int column = i / 2, depth = i % 2 * 8;
        const char* const from = described(b, column, depth);
        for (int k = 0; k < 8; ++k) columns.at(depth + k, column) = half_at(from + 2 * k);
    }
}

// Once all lanes have laid their parts. The layout of wgmma.m64n*k16, of which mma.m16n8k16 is the first.
// The products of one instruction are summed before they are added to what is there, as by the units:
// which of them go together shows in the bits.
template <int COUNT, int MOST>
void add_products(float (&sums)[COUNT], const Columns<MOST>& columns, Barrier& laid) {
    constexpr int FOURS = (COUNT + 7) / 8, AT_ONCE = min(FOURS, 4);  // of each row; held in registers
    laid.arrive_and_wait();
    const int lane = thread % 32;
    const double(&upper)[DEPTH] = warp().rows[lane / 4], (&lower)[DEPTH] = warp().rows[lane / 4 + 8];
    for (int first = 0; first < FOURS; first += AT_ONCE) {
        Four products[2][AT_ONCE] = {};
#pragma GCC unroll 16
        for (int k = 0; k < DEPTH; ++k) {
            const Four* const own = columns.of_lanes[k][lane % 4] + first;
#pragma GCC unroll 4
            for (int i = 0; i < AT_ONCE; ++i) {
                products[0][i] += upper[k] * own[i];
                products[1][i] += lower[k] * own[i];
            }
        }
        for (int i = 8 * first; i < min(8 * (first + AT_ONCE), COUNT); ++i) {
            sums[i] += float(products[i / 2 % 2][i / 8 - first][i / 4 % 2 * 2 + i % 2]);
        }
    }
    laid.arrive_and_wait();
}

inline void multiply_add(float (&sums)[4], const uint4& a, unsigned b0, unsigned b1) {
    lay_rows(a);
    lay_columns(b0, b1);
    add_products(sums, warp().columns, warp().all);
}

template <int COUNT>
void multiply_add_of_group(float (&sums)[COUNT], const uint4& a, unsigned long long b) {
    lay_rows(a);
    lay_described_columns<COUNT>(b);
    add_products(sums, group().columns(), group().all);
}

template <int COUNT>
void multiply_add_of_group(float (&sums)[COUNT], unsigned long long a, unsigned long long b) {
    lay_described_rows(a);
    lay_described_columns<COUNT>(b);
    add_products(sums, group().columns(), group().all);
}

// Tells the lanes at a barrier one's own word; the place of what they tell, by their lane.
inline const unsigned* tell(Told& told, Barrier& barrier, const void* word) {
    unsigned(&words)[32] = told.words[barrier.turn()];
    memcpy(&words[thread % 32], word, 4);
    barrier.arrive_and_wait();
    return words;
}

// Lane 4 g + t gets of rows 2 t and 2 t + 1 the column g.
inline unsigned transposed_matrix(unsigned word) {
    const int lane = thread % 32;
    const unsigned* const words = tell(warp().told, warp().all, &word);
    unsigned found = 0;
    for (int half = 0; half < 2; ++half) {
        const int row = lane % 4 * 2 + half, column = lane / 4;
        found |= (words[row * 4 + column / 2] >> column % 2 * 16 & 0xFFFF) << half * 16;
    }
    return found;
}

// An mbarrier: how many it expects, how many are missing, and phases that are over.
struct Phases {
    short expected, missing;
    unsigned over;
};

inline void init(void* barrier, int count) {
    const Phases phases = {(short)count, (short)count, 0};
    memcpy(barrier, &phases, sizeof phases);
}

inline void arrive(void* barrier) {
    Phases& phases = *static_cast<Phases*>(barrier);
    if (--phases.missing == 0) phases.missing = phases.expected, ++phases.over;
}

inline bool is_over(void* barrier, unsigned parity) {
    const Phases& phases = *static_cast<Phases*>(barrier);
    if (phases.over % 2 == parity) wait(&phases.over);
    return phases.over % 2 != parity;
}

constexpr int STACK = 256 << 10;

// Lives through block after block.
struct Lane {
    std::unique_ptr<char[]> stack{new char[STACK]};
    jmp_buf where;
    Block* block;
    int thread;
    bool begun = false, ended;
    const unsigned* awaited;
    unsigned seen;

    void begin(Block* with, int number) {
        block = with, thread = number, ended = false, awaited = nullptr;
    }

    bool must_wait() const { return awaited && *awaited == seen; }
};

inline Lane* lane;
inline jmp_buf scheduler;
inline void (*body)();

inline void wait(const unsigned* until_changed) {
    lane->awaited = until_changed;
    if (until_changed) lane->seen = *until_changed;
    if (!_setjmp(lane->where)) _longjmp(scheduler, 1);
}

inline void live() {
    for (;;) {
        body();
        lane->ended = true;
        wait();
    }
}

// Until it waits or ends.
inline void run(Lane& next) {
    lane = &next, block = next.block, thread = next.thread, blockIdx = next.block->index;
    threadIdx = {thread % blockDim.x, thread / blockDim.x, 0};
    if (_setjmp(scheduler)) return;
    if (next.begun) _longjmp(next.where, 1);
    next.begun = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack = {next.stack.get(), 0, STACK};
    context.uc_link = nullptr;
    makecontext(&context, live, 0);
    setcontext(&context);
}

// All lanes in turn, from the first or from the last one on, until all have ended: what one lane reads
// before another has written it is found in one order or the other.
inline void run_all(
    const std::vector<std::unique_ptr<Lane>>& lanes, size_t count, bool backwards
) {
    for (size_t ended = 0; ended < count; backwards = !backwards) {
        for (size_t i = 0; i < count; ++i) {
            Lane& next = *lanes[backwards ? count - 1 - i : i];
            if (next.ended || next.must_wait()) continue;
            run(next);
            ended += next.ended;
        }
    }
}

// `at_once`: blocks wait for each other; otherwise they run one after another.
template <class Arguments>
void launch(void (*kernel)(Arguments), const Arguments& arguments, Place grid, Place size, int bytes,
            bool at_once) {
    static void (*called)(Arguments);
    static const Arguments* with;
    static std::vector<std::unique_ptr<Lane>> lanes;
    called = kernel, with = &arguments, body = [] { called(*with); };
    blockDim = size, gridDim = grid;
    const int threads = size.x * size.y, blocks = grid.x * grid.y * grid.z;
    const int together = at_once ? blocks : 1;
    while (lanes.size() < threads * together) lanes.push_back(std::make_unique<Lane>());
    for (int first = 0; first < blocks; first += together) {
        std::vector<std::unique_ptr<Block>> held;
        for (int number = first; number < first + together; ++number) {
            const Place index = {number % grid.x, number / grid.x % grid.y, number / (grid.x * grid.y)};
            held.push_back(std::make_unique<Block>(index, threads, bytes));
            for (int i = 0; i < threads; ++i) {
                lanes[(number - first) * threads + i]->begin(held.back().get(), i);
            }
        }
        run_all(lanes, threads * together, first % 2);
    }
}

}  // namespace on_cpu

inline void __syncthreads() { on_cpu::block->all.arrive_and_wait(); }

inline void __syncwarp() { on_cpu::warp().all.arrive_and_wait(); }

inline unsigned __cvta_generic_to_shared(const void* pointer) {
    return static_cast<const char*>(pointer) - on_cpu::block->shared.data();
}

template <class T>
T __ldcg(const T* address) {
    return *address;
}

template <class T>
T __shfl_sync(unsigned, T value, int source) {
    on_cpu::Warp& warp = on_cpu::warp();
    memcpy(&value, &on_cpu::tell(warp.told, warp.all, &value)[source], 4);
    return value;
}

// All lanes, or a lane and its neighbour.
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int distance) {
    on_cpu::Warp& warp = on_cpu::warp();
    const int lane = on_cpu::thread % 32;
    const unsigned* const words = mask == ~0u
                                      ? on_cpu::tell(warp.told, warp.all, &value)
                                      : on_cpu::tell(warp.told_in_pairs, warp.pairs[lane / 2], &value);
    memcpy(&value, &words[lane ^ distance], 4);
    return value;
}
