// Matrix products of a warp (mma.sync) and their operands in shared memory: tiles of rows of 64 bfloat16, 128 bytes, swizzled so
// that eight rows of one column lie in different banks.
#pragma once

#include "lib/ptx.cuh"

constexpr int PANEL = 64 * 128; // bytes of a tile of 64 rows

// The byte of chunk `chunk`, 16 bytes, of a row. Tiles of 64 rows lie next to each other, with eight chunks in each row.
__device__ __forceinline__ int swizzle_128b(int row, int chunk) {
    return chunk / 8 * PANEL + row * 128 + ((chunk ^ row) & 7) * 16;
}

// ---- operands: four matrices of 8 × 8; lane l names row l % 8 of matrix l / 8

__device__ __forceinline__ void ldmatrix_x4(u32 (&x)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(u32 (&x)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ void stmatrix_x4(u32 at, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

__device__ __forceinline__ void stmatrix_x4_trans(u32 at, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a), "r"(b), "r"(c),
                 "r"(d)
                 : "memory");
}

// ---- products

// c [16, 8] += a [16, 16] · b [16, 8] of bfloat16, summed in f32.
__device__ __forceinline__ void mma_m16n8k16_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c [16, 8] += a [16, 8] · b [8, 8] of the bits of f32 read as TF32, whose low 13 bits do not count.
__device__ __forceinline__ void mma_m16n8k8_tf32(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two accumulators [16, 8], side by side, as the A operand [16, 16] of the next product.
__device__ __forceinline__ void accumulators_to_a(u32 (&a)[4], const float (&left)[4], const float (&right)[4]) {
    a[0] = to_bf16x2(left[0], left[1]), a[1] = to_bf16x2(left[2], left[3]);
    a[2] = to_bf16x2(right[0], right[1]), a[3] = to_bf16x2(right[2], right[3]);
}
