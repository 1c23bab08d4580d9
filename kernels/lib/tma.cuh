// Asynchronous copies between global and shared memory: `cp.async` of 16 bytes by every thread, and bulk copies (TMA without a
// tensor map) of multiples of 16 bytes by one thread, from and to multiples of 16, whose arrival an mbarrier counts.
#pragma once

#include "lib/mbarrier.cuh"

// ---- cp.async, 16 bytes

__device__ __forceinline__ void cp_async_16(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(smem_address(to)), "l"(from) : "memory");
}

__device__ __forceinline__ void cp_async_16(void *to, const void *from, u64 policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(smem_address(to)), "l"(from), "l"(policy)
                 : "memory");
}

// Writes zeros where there is nothing to copy.
__device__ __forceinline__ void cp_async_16_zfill(u32 to, const void *from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}

__device__ __forceinline__ void cp_async_commit_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Returns once all but the last N groups of this thread's copies are there.
template <int N> __device__ __forceinline__ void cp_async_wait_group() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// ---- bulk copies

// Global to shared memory. The phase of the barrier expects the bytes, before or after.
__device__ __forceinline__ void tma_load_1d(void *to, const void *from, u32 bytes, u64 *barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(smem_address(to)),
        "l"(from), "r"(bytes), "r"(smem_address(barrier))
        : "memory");
}

__device__ __forceinline__ void tma_load_1d(u32 to, const void *from, u32 bytes, u32 barrier, u64 policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
        : "memory");
}

// For data larger than L2: two fifths of the lines are evicted last, so that they are still there the next time; the others are
// evicted first, and leave room for everything else.
__device__ __forceinline__ void tma_load_1d_part_resident(void *to, const void *from, u32 bytes, u64 *barrier) {
    asm volatile(
        "{ .reg .b64 policy;\ncreatepolicy.fractional.L2::evict_last.L2::evict_first.b64 policy, 0.4;\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], policy; }" ::"r"(
            smem_address(to)),
        "l"(from), "r"(bytes), "r"(smem_address(barrier))
        : "memory");
}

// Shared to global memory, after `fence_proxy_async_smem` by the writers and a barrier.
__device__ __forceinline__ void tma_store_1d(void *to, const void *from, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(smem_address(from)), "r"(bytes)
                 : "memory");
}

// Returns once all stores of this thread have been written.
__device__ __forceinline__ void tma_store_wait() {
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
}

// Returns once all stores of this thread have read their shared memory; they are written by the end of the kernel.
__device__ __forceinline__ void tma_store_wait_read() {
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Global memory to L2.
__device__ __forceinline__ void tma_prefetch_l2(const void *from, u32 bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes));
}
