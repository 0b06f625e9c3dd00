// Synchronisation of the warpgroups of a block: mbarriers, rings of pipeline stages with full and empty
// barriers, an ordered barrier, and registers that move from producers to consumers. All but
// wait_for_group is for compute capability 9.0 alone.
#pragma once

// Named barrier number + 1 of so many threads, for one of several groups of warps; __syncthreads has 0.
template <int THREADS>
__device__ __forceinline__ void wait_for_group(int number) {
    asm volatile("barrier.sync.aligned %0, %1;" ::"r"(number + 1), "n"(THREADS) : "memory");
}

// Registers of each lane from here on, executed by all warps of a warpgroup: producers give some back,
// and consumers, which wait for them, take more than the launch gave them.
template <int COUNT>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Makes writes of this lane to shared memory visible to the async proxy: to wgmma and bulk copies.
__device__ __forceinline__ void fence_async_proxy() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// mbarrier in shared memory: a phase ends when `count` lanes have arrived.
struct Barrier {
    unsigned long long state;

    __device__ __forceinline__ void init(int count) {
        Barrier* const barrier = this;
        const unsigned address = __cvta_generic_to_shared(barrier);
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address), "r"(count) : "memory");
    }

    __device__ __forceinline__ void arrive() {
        Barrier* const barrier = this;
        const unsigned address = __cvta_generic_to_shared(barrier);
        asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(address) : "memory");
    }

    // Arrives for the whole warp, once all its lanes are here.
    __device__ __forceinline__ void arrive_warp() {
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive();
    }

    // Arrives when the cp.async copies that this lane has started are complete.
    __device__ __forceinline__ void arrive_when_copied() {
        Barrier* const barrier = this;
        const unsigned address = __cvta_generic_to_shared(barrier);
        asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(address) : "memory");
    }

    // Starts a bulk copy from global memory and arrives when its bytes have landed; for one lane.
    __device__ __forceinline__ void arrive_with_bytes(void* target, const void* source, int bytes) {
        Barrier* const barrier = this;
        const unsigned address = __cvta_generic_to_shared(barrier);
        const unsigned to = __cvta_generic_to_shared(target);
        asm volatile(
            "mbarrier.arrive.expect_tx.shared.b64 _, [%0], %3; "
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%1], [%2], %3, [%0];"
            ::"r"(address), "r"(to), "l"(source), "r"(bytes)
            : "memory");
    }

    // Waits until phase number `phase` has ended; it must be the current phase or the one before.
    __device__ __forceinline__ void wait(int phase) {
        Barrier* const barrier = this;
        const unsigned address = __cvta_generic_to_shared(barrier), parity = phase & 1;
        unsigned over = 0;
        while (!over) {
            asm volatile(
                "{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; "
                "selp.u32 %0, 1, 0, p;}"
                : "=r"(over)
                : "r"(address), "r"(parity)
                : "memory");
        }
    }
};

// Position in a ring of COUNT stages; phase: how often the ring was passed.
template <int COUNT>
struct RingSlot {
    int index = 0, phase = 0;

    __device__ __forceinline__ void advance() {
        if (++index == COUNT) index = 0, ++phase;
    }
};

// Barriers of a ring of COUNT stages in shared memory. A producer acquires a stage, fills it and arrives
// at `full`; a consumer waits for it and releases it, by `empty`.
template <int COUNT>
struct Ring {
    Barrier full[COUNT], empty[COUNT];

    // For the first COUNT threads. producers, consumers: how many arrive at each barrier.
    __device__ __forceinline__ void init(int producers, int consumers) {
        if (threadIdx.x >= COUNT) return;
        full[threadIdx.x].init(producers);
        empty[threadIdx.x].init(consumers);
    }

    __device__ __forceinline__ void acquire(const RingSlot<COUNT>& slot) {
        if (slot.phase) empty[slot.index].wait(slot.phase - 1);
    }

    __device__ __forceinline__ void wait(const RingSlot<COUNT>& slot) {
        full[slot.index].wait(slot.phase);
    }
};

// Ordered barrier (ping-pong) of two warpgroups, which execute a section in turns: one has the Tensor
// Cores while the other writes its results.
struct OrderedBarrier {
    Barrier turns[2];

    __device__ __forceinline__ void init() {
        if (threadIdx.x < 2) turns[threadIdx.x].init(4);
    }

    // Waits for this group's turn number `turn`.
    __device__ __forceinline__ void wait(int group, int turn) { turns[group].wait(turn); }

    // Gives the next turn to the other group; for each of this group's warps.
    __device__ __forceinline__ void pass(int group) {
        if (threadIdx.x % 32 == 0) turns[1 - group].arrive();
    }
};
