// wgmma: the matrix product of a warpgroup (four warps) of 16-bit numbers, of which the second operand, or
// both, lie in shared memory; summed in float. Only compute capability 9.0 has it.
#pragma once

#include "element.cuh"

// An operand in shared memory: pieces of 8 rows, one behind the other, each of 8 numbers along the
// depth. beside: bytes to the next 8 numbers of the depth; below: to the next 8 rows.
__device__ __forceinline__ unsigned long long descriptor_of(const void* first, int beside, int below) {
    const unsigned long long address = __cvta_generic_to_shared(first);
    return (address & 0x3FFFF) >> 4 | (unsigned long long)(beside >> 4) << 16 |
           (unsigned long long)(below >> 4) << 32;
}

// An operand of whole rows of 64 or 128 bytes, one behind the other, each with its 16-byte pieces
// where `swizzled` puts them; from a multiple of 8 rows on.
template <int ROW>
__device__ __forceinline__ unsigned long long descriptor_of_rows(const void* first) {
    static_assert(ROW == 64 || ROW == 128);
    const unsigned long long kind = ROW == 128 ? 1 : 2;
    return descriptor_of(first, 16, 8 * ROW) | kind << 62;
}

// Place of a row's piece, so that pieces of 8 rows lie in different banks.
template <int ROW>
__device__ __forceinline__ int swizzled(int row, int piece) {
    return ROW == 128 ? piece ^ (row & 7) : piece ^ (row >> 1 & 3);
}

// Whether the products that were begun may still read shared memory: at most so many batches.
template <int BATCHES>
__device__ __forceinline__ void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(BATCHES) : "memory");
}

// Before the first product of a batch: registers and shared memory are as it is to see them.
__device__ __forceinline__ void begin_products() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// The same where those who wrote shared memory have made it visible: bulk copies, or lanes with a fence.
__device__ __forceinline__ void begin_visible_products() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void end_batch() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Keeps the compiler from touching sums of which products may be in flight.
template <int COUNT>
__device__ __forceinline__ void fence_operand(float (&sums)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

#ifndef ELEMENT_FLOAT

#if defined(ELEMENT_BF16)
#define KINDS "f32.bf16.bf16"
#else
#define KINDS "f32.f16.f16"
#endif

#define FOUR(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_32 \
    NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_36 NAMES_32 ", %32, %33, %34, %35"
#define NAMES_48 NAMES_36 ", %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_52 NAMES_48 ", %48, %49, %50, %51"
#define NAMES_64 NAMES_52 ", %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_68 NAMES_64 ", %64, %65, %66, %67"
#define NAMES_80 \
    NAMES_68 ", %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define SUMS_16 FOUR(0), FOUR(4), FOUR(8), FOUR(12)
#define SUMS_32 SUMS_16, FOUR(16), FOUR(20), FOUR(24), FOUR(28)
#define SUMS_36 SUMS_32, FOUR(32)
#define SUMS_48 SUMS_36, FOUR(36), FOUR(40), FOUR(44)
#define SUMS_52 SUMS_48, FOUR(48)
#define SUMS_64 SUMS_52, FOUR(52), FOUR(56), FOUR(60)
#define SUMS_68 SUMS_64, FOUR(64)
#define SUMS_80 SUMS_68, FOUR(68), FOUR(72), FOUR(76)
#define PRODUCT_32 \
    asm volatile( \
        "{.reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n32k16." KINDS " {" \
        NAMES_16 "}, {%16, %17, %18, %19}, %20, p, 1, 1, 0;}" \
        : SUMS_16 \
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));
#define PRODUCT_64 \
    asm volatile( \
        "{.reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n64k16." KINDS " {" \
        NAMES_32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 0;}" \
        : SUMS_32 \
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));
#define PRODUCT_96 \
    asm volatile( \
        "{.reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n96k16." KINDS " {" \
        NAMES_48 "}, {%48, %49, %50, %51}, %52, p, 1, 1, 0;}" \
        : SUMS_48 \
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));
#define PRODUCT_128 \
    asm volatile( \
        "{.reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n128k16." KINDS " {" \
        NAMES_64 "}, {%64, %65, %66, %67}, %68, p, 1, 1, 0;}" \
        : SUMS_64 \
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));
#define SHARED_PRODUCT_160 \
    asm volatile( \
        "{.reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n160k16." KINDS " {" \
        NAMES_80 "}, %80, %81, p, 1, 1, 0, 0;}" \
        : SUMS_80 \
        : "l"(a), "l"(b));
#define SHARED_PRODUCT_128 \
    asm volatile( \
        "{.reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n128k16." KINDS " {" \
        NAMES_64 "}, %64, %65, p, 1, 1, 0, 0;}" \
        : SUMS_64 \
        : "l"(a), "l"(b));
#define SHARED_PRODUCT_96 \
    asm volatile( \
        "{.reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n96k16." KINDS " {" \
        NAMES_48 "}, %48, %49, p, 1, 1, 0, 0;}" \
        : SUMS_48 \
        : "l"(a), "l"(b));
#define SHARED_PRODUCT_64 \
    asm volatile( \
        "{.reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n64k16." KINDS " {" \
        NAMES_32 "}, %32, %33, p, 1, 1, 0, 0;}" \
        : SUMS_32 \
        : "l"(a), "l"(b));
#define SHARED_PRODUCT_32 \
    asm volatile( \
        "{.reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n32k16." KINDS " {" \
        NAMES_16 "}, %16, %17, p, 1, 1, 0, 0;}" \
        : SUMS_16 \
        : "l"(a), "l"(b));
#define PRODUCT_72 \
    asm volatile( \
        "{.reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n72k16." KINDS " {" \
        NAMES_36 "}, %36, %37, p, 1, 1, 0, 0;}" \
        : SUMS_36 \
        : "l"(a), "l"(b));
#define PRODUCT_104 \
    asm volatile( \
        "{.reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n104k16." KINDS " {" \
        NAMES_52 "}, %52, %53, p, 1, 1, 0, 0;}" \
        : SUMS_52 \
        : "l"(a), "l"(b));
#define PRODUCT_136 \
    asm volatile( \
        "{.reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n136k16." KINDS " {" \
        NAMES_68 "}, %68, %69, p, 1, 1, 0, 0;}" \
        : SUMS_68 \
        : "l"(a), "l"(b));

// sums += a * b for 64 rows. Warp w of the group has the rows 16 w to 16 w + 15; its lane 4 g + t
// holds of a what multiply_add of matrix.cuh takes, and of the sums, for each 8 columns, 2 t and
// 2 t + 1 of row g, then of row g + 8.
template <int COUNT>
__device__ __forceinline__ void multiply_add(
    float (&sums)[COUNT], const uint4& a, unsigned long long b
) {
    if constexpr (COUNT == 16) {
        PRODUCT_32
    } else if constexpr (COUNT == 32) {
        PRODUCT_64
    } else if constexpr (COUNT == 48) {
        PRODUCT_96
    } else {
        static_assert(COUNT == 64);
        PRODUCT_128
    }
}

// The same with both operands in shared memory.
template <int COUNT>
__device__ __forceinline__ void multiply_add(
    float (&sums)[COUNT], unsigned long long a, unsigned long long b
) {
    if constexpr (COUNT == 80) {
        SHARED_PRODUCT_160
    } else if constexpr (COUNT == 64) {
        SHARED_PRODUCT_128
    } else if constexpr (COUNT == 48) {
        SHARED_PRODUCT_96
    } else if constexpr (COUNT == 32) {
        SHARED_PRODUCT_64
    } else if constexpr (COUNT == 16) {
        SHARED_PRODUCT_32
    } else if constexpr (COUNT == 36) {
        PRODUCT_72
    } else if constexpr (COUNT == 52) {
        PRODUCT_104
    } else {
        static_assert(COUNT == 68);
        PRODUCT_136
    }
}

#endif
