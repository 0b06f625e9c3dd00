// Matrix instructions of a warp: mma.sync m16n8k16 of 16-bit numbers, summed in float, from compute
// capability 8.0 on (a program for an older GPU never launches such a kernel); and how a warp loads,
// stores and transposes its 8 x 8 matrices.
#pragma once

#include "element.cuh"

// sums += a * b. Lane 4 g + t holds of a the rows g and g + 8, of b the column g, of both the depths
// 2 t, 2 t + 1, 2 t + 8 and 2 t + 9, and of the sums the columns 2 t and 2 t + 1.
__device__ __forceinline__ void multiply_add(
    float (&sums)[4], const uint4& a, unsigned b0, unsigned b1
) {
#if __CUDA_ARCH__ >= 800
#if defined(ELEMENT_BF16)
#define KINDS "f32.bf16.bf16.f32"
#else
#define KINDS "f32.f16.f16.f32"
#endif
    asm("mma.sync.aligned.m16n8k16.row.col." KINDS
        " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
#undef KINDS
#endif
}

// Four 8 x 8 matrices; lane 8 i + r names row r of matrix i.
__device__ __forceinline__ uint4 load_matrices(unsigned row) {
    uint4 words;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "r"(row) : "memory");
    return words;
}

#ifndef ELEMENT_FLOAT

__device__ __forceinline__ unsigned pair(float low, float high) {
    struct alignas(4) Two {
        Element values[2];
    } two = {{to_element(low), to_element(high)}};
    return *reinterpret_cast<unsigned*>(&two);
}

// Of four words in each of four lanes, those with this lane's number, from lane 0 to 3.
__device__ __forceinline__ uint4 transposed(
    unsigned w0, unsigned w1, unsigned w2, unsigned w3, int t
) {
    const bool odd = t & 1, upper = t & 2;
    const unsigned a = __shfl_xor_sync(~0u, odd ? w0 : w1, 1);
    const unsigned b = __shfl_xor_sync(~0u, odd ? w2 : w3, 1);
    odd ? w0 = a : w1 = a;
    odd ? w2 = b : w3 = b;
    const unsigned c = __shfl_xor_sync(~0u, upper ? w0 : w2, 2);
    const unsigned d = __shfl_xor_sync(~0u, upper ? w1 : w3, 2);
    upper ? w0 = c : w2 = c;
    upper ? w1 = d : w3 = d;
    return make_uint4(w0, w1, w2, w3);
}

// Stores four 8 x 8 matrices of which each lane has two numbers of a row, column by column; lane 8 m + c
// has the address of column c of matrix m. From 9.0 on.
__device__ __forceinline__ void store_transposed(unsigned column, const uint4& words) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     column
                 ),
                 "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
                 : "memory");
}

// Of an 8 x 8 matrix of which lane 4 g + t holds columns 2 t and 2 t + 1 of row g, the transposed.
__device__ __forceinline__ unsigned transposed_matrix(unsigned word) {
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(word));
    return word;
}

#endif
