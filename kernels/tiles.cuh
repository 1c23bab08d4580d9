// Products of bfloat16 matrices in tensor cores, and their tiles in shared memory: rows of 64 numbers, 128 bytes, whose
// sixteens of bytes are exchanged within a row so that eight rows of one column lie in different banks.
#pragma once

#include "common.cuh"

constexpr int PANEL = 64 * 128; // bytes of a tile of 64 rows

// Byte of sixteen `chunk` of a row, in tiles of 64 rows next to each other, eight sixteens in each.
__device__ __forceinline__ int tile_byte(int row, int chunk) {
    return chunk / 8 * PANEL + row * 128 + ((chunk ^ row) & 7) * 16;
}

// 16 bytes to shared memory on their own, or zeros.
__device__ __forceinline__ void copy_async(u32 to, const void *from, bool there = true) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

__device__ __forceinline__ void commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Returns once all but the last N groups of copies have come.
template <int N> __device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// ---- Large copies: a barrier counts the bytes that have come.

// By one thread, before a __syncthreads after which others use it.
__device__ __forceinline__ void arrival_init(u64 *arrival) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(arrival)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// By one thread: `bytes`, a multiple of 16, from and to multiples of 16.
__device__ __forceinline__ void copy_block(void *to, const void *from, u32 bytes, u64 *arrival) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(arrival)), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(arrival))
                 : "memory");
}

// Returns once the copy has come for the time that has this parity, the first having 0.
__device__ __forceinline__ void arrival_wait(u64 *arrival, u32 parity) {
    asm volatile("{ .reg .pred come;\n"
                 "again_%=: mbarrier.try_wait.parity.shared.b64 come, [%0], %1;\n"
                 "@!come bra again_%=; }" ::"r"(shared_address(arrival)),
                 "r"(parity)
                 : "memory");
}

// ---- Operands and products of a warp.

// Four matrices of 8 × 8; lane l names row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(u32 (&x)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ void load_turned(u32 (&x)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ void store_turned(u32 at, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

// c [16, 8] += a [16, 16] · b [16, 8], summed in f32.
__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c [16, 8] += a [16, 8] · b [8, 8] of f32 read as TF32.
__device__ __forceinline__ void multiply_tf32(float (&c)[4], const float (&a)[4], float b0, float b1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
                   "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

// Two tiles [16, 8] of sums, side by side, as the left operand [16, 16] of a product.
__device__ __forceinline__ void as_operand(u32 (&a)[4], const float (&left)[4], const float (&right)[4]) {
    a[0] = to_bf16x2(left[0], left[1]), a[1] = to_bf16x2(left[2], left[3]);
    a[2] = to_bf16x2(right[0], right[1]), a[3] = to_bf16x2(right[2], right[3]);
}

// ---- Products by a group of four warps, each with 16 of 64 rows of the left operand and of the sums in its registers as
// above, the right operand in shared memory. They run on their own, in order.

// Before the first product after a change of operands or sums.
__device__ __forceinline__ void group_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void group_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Returns once all but the last N commits are done.
template <int N> __device__ __forceinline__ void group_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// What this thread wrote to shared memory can be read by these products, after a barrier.
__device__ __forceinline__ void group_publish() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// A tile at a multiple of 1024 bytes, eight rows every 1024. To begin n bytes later, add n / 16.
__device__ __forceinline__ u64 group_tile(u32 at) {
    return 1ull << 62 | 64ull << 32 | 1ull << 16 | (at & 0x3ffff) >> 4;
}

// c [64, 64] += a [64, 16] · b [16, 64], or = if FIRST; columns of b, or rows if TURNED, are rows of the tile.
template <bool TURNED, bool FIRST = false> __device__ __forceinline__ void group_multiply(float (&c)[8][4], const u32 (&a)[4], u64 tile) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, %38, 1, 1, %37;"
                 : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]),
                   "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]),
                   "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]),
                   "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]),
                   "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(tile), "n"(TURNED ? 1 : 0), "n"(FIRST ? 0 : 1));
}
