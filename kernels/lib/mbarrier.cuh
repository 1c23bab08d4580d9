// Barriers in shared memory (mbarrier). A phase ends when all arrivals and all expected bytes have come; waiters name the parity
// of the phase, the first having 0.
#pragma once

#include "lib/ptx.cuh"

// One thread calls it, then `fence_mbarrier_init`, before a barrier after which others use it.
__device__ __forceinline__ void mbarrier_init(u64 *barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(smem_address(barrier)), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to bulk copies and to the cluster.
__device__ __forceinline__ void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(u64 *barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(smem_address(barrier)) : "memory");
}

// Arrives, and has the phase wait for so many bytes of bulk copies.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(u64 *barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(smem_address(barrier)), "r"(bytes) : "memory");
}

// Returns once the phase of this parity has ended.
__device__ __forceinline__ void mbarrier_wait_parity(u64 *barrier, u32 parity) {
    asm volatile("{ .reg .pred done;\n"
                 "again_%=: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
                 "@!done bra again_%=; }" ::"r"(smem_address(barrier)),
                 "r"(parity)
                 : "memory");
}
