// Asynchronous copies (cp.async) from global to shared memory. They exist from compute capability 8.0 on;
// an older GPU copies at once.
#pragma once

#include "element.cuh"

// 16 bytes, for this thread alone until others have waited for it too.
__device__ __forceinline__ void begin_copy(Vector* to, const Element* source) {
#if __CUDA_ARCH__ >= 800
    const unsigned target = __cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
#else
    *to = load(source);
#endif
}

// The same to an address of shared memory; zeros where the source is not inside. From 8.0 on.
__device__ __forceinline__ void begin_copy(unsigned target, const void* source, bool is_inside) {
#if __CUDA_ARCH__ >= 800
    const int size = is_inside ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source),
                 "r"(size)
                 : "memory");
#endif
}

// The same by way of the L1 cache, for what neighbouring threads read again.
__device__ __forceinline__ void begin_cached_copy(
    unsigned target, const void* source, bool is_inside
) {
#if __CUDA_ARCH__ >= 800
    const int size = is_inside ? 16 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source),
                 "r"(size)
                 : "memory");
#endif
}

// Those begun since the last time are one group.
__device__ __forceinline__ void end_group() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int GROUPS>
__device__ __forceinline__ void wait_for_all_groups_but() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
#endif
}
