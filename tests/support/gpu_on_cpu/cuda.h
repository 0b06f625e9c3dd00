// Enough of CUDA for g++: a stack for each lane, of which one runs until it waits, and barriers for
// warps and blocks. What a matrix unit or an asynchronous copy does, on_cpu does in plain words and at
// once.
#pragma once

#include <signal.h>
#include <sys/mman.h>
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
#define __noinline__ __attribute__((noinline))
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
struct alignas(16) float4 {
    float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
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
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
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
        arrive_and_wait([] {});
    }

    // `work` is done by the last to come, before any goes on.
    template <class Work>
    void arrive_and_wait(Work work) {
        const unsigned before = opened;
        if (--missing == 0) work(), missing = lanes, ++opened;
        while (opened == before) wait(&opened);
    }

    bool is_first() const { return missing == lanes; }

    // Which of two places is this time's: what the lanes left in the other has been read by all that
    // have come here.
    int turn() const { return opened % 2; }
};

// Word of each lane for the others that wait at a barrier with it.
struct Told {
    unsigned words[2][32];
};

// Eight halves as doubles: GCC makes one of one alone without the units that the processor has for it.
inline void widen(double* to, const void* halves) {
    float floats[8];
#ifdef __F16C__
    typedef short Halves __attribute__((vector_size(16)));
    typedef float Floats __attribute__((vector_size(32)));
    Halves given;
    memcpy(&given, halves, sizeof given);
    const Floats made = __builtin_ia32_vcvtph2ps256(given);
    memcpy(floats, &made, sizeof made);
#else
    __half given[8];
    memcpy(given, halves, sizeof given);
    for (int i = 0; i < 8; ++i) floats[i] = given[i];
#endif
    for (int i = 0; i < 8; ++i) to[i] = floats[i];
}

constexpr int DEPTH = 16;  // of what one instruction multiplies

// The operands of one instruction, and what it makes of them, for the lanes that wait for it together.
template <int ROWS, int COLUMNS>
struct Products {
    typedef double Eight __attribute__((vector_size(64)));

    unsigned words[ROWS / 16][4][32];  // of rows in registers, in matrices of 8 x 8, row by row
    double rows[ROWS][DEPTH];
    Eight columns[DEPTH][COLUMNS / 8];
    float made[ROWS][COLUMNS];

    // Half of a column.
    void lay_column(int column, int depth, const void* halves) {
        double values[8];
        widen(values, halves);
        for (int i = 0; i < 8; ++i) columns[depth + i][column / 8][column % 8] = values[i];
    }

    void widen_words() {
        for (int row = 0; row < ROWS; ++row) {
            for (int half = 0; half < 2; ++half) {
                const unsigned(&matrix)[32] = words[row / 16][row % 16 / 8 + 2 * half];
                widen(&rows[row][8 * half], &matrix[row % 8 * 4]);
            }
        }
    }

    // Of one instruction they are summed before they are added to what is there, as by the units: which
    // of them go together shows in the bits.
    void multiply() {
        for (int row = 0; row < ROWS; ++row) {
            for (int part = 0; part < COLUMNS / 8; ++part) {
                Eight sums = {};
#pragma GCC unroll 16
                for (int k = 0; k < DEPTH; ++k) sums += rows[row][k] * columns[k][part];
                for (int i = 0; i < 8; ++i) made[row][part * 8 + i] = sums[i];
            }
        }
    }

    // The lane's sums, in the layout of wgmma.m64n*k16 as the PTX manual gives it, of which
    // mma.m16n8k16 is the first.
    void add_to(float* sums, int lane) const {
        const int row = lane / 32 * 16 + lane % 32 / 4;
        for (int i = 0; i < COLUMNS / 2; ++i) {
            sums[i] += made[row + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2];
        }
    }
};

struct Warp {
    Barrier all{32};
    std::vector<Barrier> pairs = std::vector<Barrier>(16, 2);
    Told told, told_in_pairs;
    unsigned words[2][32][5];
    Products<16, 8> products[2];
};

// Warps that multiply together; by how many columns depends on the instruction.
struct Group {
    Barrier all{128};
    std::map<int, std::vector<char>> held;

    template <int COLUMNS>
    Products<64, COLUMNS>& products() {
        typedef Products<64, COLUMNS> Wanted[2];
        auto& memory = held[COLUMNS];
        memory.resize(sizeof(Wanted) + 64);
        const uintptr_t begin = reinterpret_cast<uintptr_t>(memory.data());
        return reinterpret_cast<Wanted*>((begin + 63) / 64 * 64)[0][all.turn()];
    }
};

// Dynamic shared memory of a block. It ends where memory begins that nobody may touch, so that a kernel
// whose launch asks for too little is stopped there; at first it is full of NaN, so that what a block
// writes shows how much it needs.
class Shared {
    static constexpr size_t MOST = 256 << 10, GUARD = 1 << 20;
    static constexpr unsigned char POISON = 0xFF;
    char* const end;
    char* begin = end;

    static char* mapped() {
        char* const all = (char*)mmap(nullptr, MOST + GUARD, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        mprotect(all + MOST, GUARD, PROT_NONE);
        return all + MOST;
    }

public:
    Shared() : end(mapped()) {}

    void poison(int bytes) {
        begin = end - (bytes + 15) / 16 * 16;  // aligned as on a GPU
        memset(begin, POISON, end - begin);
    }

    char* data() const { return begin; }

    bool guards(const char* address) const { return end <= address && address < end + GUARD; }

    // Bytes up to the last one that was written.
    int used() const {
        const char* last = end;
        while (last != begin && (unsigned char)last[-1] == POISON) --last;
        return last - begin;
    }
};

struct Block {
    Place index;
    Barrier all;
    int any[2] = {};  // what __syncthreads_or joins, by the barrier's turn
    std::vector<Warp> warps;
    std::vector<Group> groups;
    Shared& shared;
    std::map<int, Barrier> named;

    Block(Place index, int threads, Shared& shared)
        : index(index), all(threads), warps(threads / 32), groups(threads / 128), shared(shared) {}
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
    auto& words = warp().words[warp().all.turn()];
    words[lane][4] = row;
    warp().all.arrive_and_wait([&] {
        for (int to = 0; to < 32 * 4; ++to) {
            const unsigned from = words[to % 4 * 8 + to / 16][4] + to / 4 % 4 * 4;
            memcpy(&words[to / 4][to % 4], block->shared.data() + from, 4);
        }
    });
    uint4 found;
    memcpy(&found, words[lane], 16);
    return found;
}

// The other way round, and transposed: lane 8 m + r says where row r of matrix m goes, which is the
// column r of what lanes hold.
inline void store_transposed(unsigned row, const uint4& own) {
    const int lane = thread % 32;
    auto& words = warp().words[warp().all.turn()];
    memcpy(words[lane], &own, 16), words[lane][4] = row;
    warp().all.arrive_and_wait([&] {
        for (int from = 0; from < 32 * 8; ++from) {
            const int of = from / 8, column = from % 8;
            const unsigned both = words[column * 4 + of % 8 / 2][of / 8];
            const unsigned short half = both >> of % 2 * 16;
            memcpy(block->shared.data() + words[of][4] + 2 * column, &half, 2);
        }
    });
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

// A word of each row that the lane holds, in the layout of mma.m16n8k16 as the PTX manual gives it.
inline void lay_words(unsigned (&words)[4][32], const uint4& a) {
    const int lane = thread % 32;
    words[0][lane] = a.x, words[1][lane] = a.y, words[2][lane] = a.z, words[3][lane] = a.w;
}

inline void multiply_add(float (&sums)[4], const uint4& a, unsigned b0, unsigned b1) {
    Barrier& laid = warp().all;
    auto& products = warp().products[laid.turn()];
    auto& columns = warp().words[laid.turn()];
    const int lane = thread % 32;
    lay_words(products.words[0], a);
    columns[lane / 4][lane % 4] = b0, columns[8 + lane / 4][lane % 4] = b1;
    laid.arrive_and_wait([&] {
        for (int column = 0; column < 8; ++column) {
            products.lay_column(column, 0, columns[column]);
            products.lay_column(column, 8, columns[8 + column]);
        }
        products.widen_words();
        products.multiply();
    });
    products.add_to(sums, lane);
}

// What lies in shared memory is read by the first lane to come: what another were still to write there
// would be missing.
template <int COLUMNS>
void lay_described_columns(Products<64, COLUMNS>& products, unsigned long long b) {
    for (int column = 0; column < COLUMNS; ++column) {
        products.lay_column(column, 0, described(b, column, 0));
        products.lay_column(column, 8, described(b, column, 8));
    }
}

template <int COUNT>
void multiply_add_of_group(float (&sums)[COUNT], const uint4& a, unsigned long long b) {
    Barrier& laid = group().all;
    auto& products = group().products<2 * COUNT>();
    if (laid.is_first()) lay_described_columns(products, b);
    lay_words(products.words[thread % 128 / 32], a);
    laid.arrive_and_wait([&] { products.widen_words(), products.multiply(); });
    products.add_to(sums, thread % 128);
}

template <int COUNT>
void multiply_add_of_group(float (&sums)[COUNT], unsigned long long a, unsigned long long b) {
    Barrier& laid = group().all;
    auto& products = group().products<2 * COUNT>();
    if (laid.is_first()) {
        lay_described_columns(products, b);
        for (int row = 0; row < 64; ++row) {
            widen(&products.rows[row][0], described(a, row, 0));
            widen(&products.rows[row][8], described(a, row, 8));
        }
    }
    laid.arrive_and_wait([&] { products.multiply(); });
    products.add_to(sums, thread % 128);
}

// Publishes the word of a lane to the lanes at a barrier; returns the words of all, by lane.
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

// Stacks begin apart from each other in a cache, too, or each lane would put out what another has there.
constexpr int STACK = 256 << 10, APART = 192;

// A place to come back to, by GCC's own jumps: longjmp looks for what is to be unwound, which took an
// eighth of the time. What jumps must seem to change all registers, and no function may both mark a
// place and jump.
typedef void* Mark[5];
#define JUMPS __attribute__((noipa))
JUMPS inline void jump(Mark& to) { __builtin_longjmp(to, 1); }

// Lives through block after block.
struct Lane {
    std::unique_ptr<char[]> stack{new char[STACK]};
    Mark where;
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
inline Mark scheduler;
inline void (*body)();

JUMPS inline void wait(const unsigned* until_changed) {
    lane->awaited = until_changed;
    if (until_changed) lane->seen = *until_changed;
    if (!__builtin_setjmp(lane->where)) jump(scheduler);
}

inline void live() {
    for (;;) {
        body();
        lane->ended = true;
        wait();
    }
}

// Until it waits or ends.
JUMPS inline void run(Lane& next) {
    lane = &next, block = next.block, thread = next.thread, blockIdx = next.block->index;
    const int row = thread / blockDim.x;
    threadIdx = {thread % blockDim.x, row % blockDim.y, row / blockDim.y};
    if (__builtin_setjmp(scheduler)) return;
    if (next.begun) jump(next.where);
    next.begun = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack = {next.stack.get(), 0, size_t(STACK - next.thread % 64 * APART)};
    context.uc_link = nullptr;
    makecontext(&context, live, 0);
    setcontext(&context);
}

// What a launch has done; kernels.py reads it. offset: of the address in shared memory, or -1.
struct Outcome {
    int used, fault, offset, thread;
    Place block;
    const char* address;
};

inline Outcome outcome;

// Of SIGSEGV: leaves the lane that goes where it has no memory. Whatever is no lane's fault is raised
// again, for whoever handled it before.
class Stopped {
    struct sigaction before;

    inline static Stopped* current;

    JUMPS static void handle(int number, siginfo_t* told, void*) {
        if (!lane) {
            sigaction(number, &current->before, nullptr);
            return;
        }
        const char* const address = (const char*)told->si_addr;
        const Shared& shared = lane->block->shared;
        const int offset = shared.guards(address) ? address - shared.data() : -1;
        outcome = {0, true, offset, lane->thread, lane->block->index, address};
        jump(scheduler);
    }

public:
    Stopped() {
        current = this;
        struct sigaction here = {};
        here.sa_sigaction = handle;
        here.sa_flags = SA_SIGINFO | SA_NODEFER;
        sigaction(SIGSEGV, &here, &before);
    }

    ~Stopped() { sigaction(SIGSEGV, &before, nullptr); }
};

// All lanes in turn, from the first or from the last one on, until all have ended or one is stopped:
// what one lane reads before another has written it is found in one order or the other.
inline void run_all(
    const std::vector<std::unique_ptr<Lane>>& lanes, size_t count, bool backwards
) {
    for (size_t ended = 0; ended < count; backwards = !backwards) {
        for (size_t i = 0; i < count; ++i) {
            Lane& next = *lanes[backwards ? count - 1 - i : i];
            if (next.ended || next.must_wait()) continue;
            run(next);
            if (outcome.fault) return;
            ended += next.ended;
        }
    }
}

// At least so many, which live on for later launches.
template <class T>
void grow(std::vector<std::unique_ptr<T>>& all, size_t count) {
    while (all.size() < count) all.push_back(std::make_unique<T>());
}

// `at_once`: blocks wait for each other; otherwise they run one after another.
template <class Arguments>
Outcome launch(void (*kernel)(Arguments), const Arguments& arguments, Place grid, Place size, int bytes,
               bool at_once) {
    static void (*called)(Arguments);
    static const Arguments* with;
    static std::vector<std::unique_ptr<Lane>> lanes;
    static std::vector<std::unique_ptr<Shared>> memory;
    called = kernel, with = &arguments, body = [] { called(*with); };
    blockDim = size, gridDim = grid, outcome = {};
    const int threads = size.x * size.y * size.z, blocks = grid.x * grid.y * grid.z;
    const int together = at_once ? blocks : 1;
    grow(lanes, threads * together), grow(memory, together);
    const Stopped stopped;
    for (int first = 0; first < blocks && !outcome.fault; first += together) {
        std::vector<std::unique_ptr<Block>> held;
        for (int number = first; number < first + together; ++number) {
            const Place index = {number % grid.x, number / grid.x % grid.y, number / (grid.x * grid.y)};
            Shared& shared = *memory[number - first];
            shared.poison(bytes);
            held.push_back(std::make_unique<Block>(index, threads, shared));
            for (int i = 0; i < threads; ++i) {
                lanes[(number - first) * threads + i]->begin(held.back().get(), i);
            }
        }
        run_all(lanes, threads * together, first % 2);
        for (const auto& one : held) outcome.used = max(outcome.used, one->shared.used());
    }
    lane = nullptr;
    if (outcome.fault) lanes.clear();  // which are amid a kernel
    return outcome;
}

}  // namespace on_cpu

inline void __syncthreads() { on_cpu::block->all.arrive_and_wait(); }

inline int __syncthreads_or(int is) {
    on_cpu::Barrier& all = on_cpu::block->all;
    int& any = on_cpu::block->any[all.turn()];
    any = is | (all.is_first() ? 0 : any);
    all.arrive_and_wait();
    return any;
}

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
