// Thread block clusters: CTAs that read and write each other's shared memory. A peer is the other CTA of a pair.
#pragma once

#include "lib/mbarrier.cuh"

// By converged warps.
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
}

// Arrives, but what was written before need not be seen: it takes no fence of all memory. Barriers count as seen after
// `fence_mbarrier_init`.
__device__ __forceinline__ void cluster_arrive_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

// By all threads of all CTAs, whose warps need not have converged.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// The address, in the cluster, of the same place in the shared memory of CTA `rank`.
__device__ __forceinline__ u32 map_shared_rank(const void *at, int rank) {
    u32 address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(smem_address(at)), "r"(rank));
    return address;
}

// The same of the peer CTA, in a cluster of two.
__device__ __forceinline__ u32 map_shared_peer(const void *at) {
    u32 address;
    asm volatile("{ .reg .u32 rank;\nmov.u32 rank, %%cluster_ctarank;\nxor.b32 rank, rank, 1;\n"
                 "mapa.shared::cluster.u32 %0, %1, rank; }"
                 : "=r"(address)
                 : "r"(smem_address(at)));
    return address;
}

// What one store writes: 4, 8 or 16 bytes of any type, as most of them are f32.
template <class T> struct Words {
    static constexpr int COUNT = sizeof(T) / 4;
    static_assert(4 * COUNT == sizeof(T) && (COUNT & COUNT - 1) == 0 && COUNT <= 4, "what instructions store");
    float of[COUNT];

    __device__ __forceinline__ Words(const T &x) {
        memcpy(of, &x, sizeof(T));
    }
};

// In the shared memory of another CTA, or of this one.
template <class T> __device__ __forceinline__ void st_shared_cluster(u32 to, const T &x) {
    const Words<T> bits(x);
    if constexpr (bits.COUNT == 1)
        asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to), "f"(bits.of[0]) : "memory");
    else if constexpr (bits.COUNT == 2)
        asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(bits.of[0]), "f"(bits.of[1]) : "memory");
    else
        asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(bits.of[0]), "f"(bits.of[1]),
                     "f"(bits.of[2]), "f"(bits.of[3])
                     : "memory");
}

// The same, and the barrier of that CTA counts the bytes.
template <class T> __device__ __forceinline__ void st_async(u32 to, const T &x, u32 barrier) {
    const Words<T> bits(x);
    if constexpr (bits.COUNT == 1)
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to), "f"(bits.of[0]),
                     "r"(barrier)
                     : "memory");
    else if constexpr (bits.COUNT == 2)
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to),
                     "f"(bits.of[0]), "f"(bits.of[1]), "r"(barrier)
                     : "memory");
    else
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
                     "f"(bits.of[0]), "f"(bits.of[1]), "f"(bits.of[2]), "f"(bits.of[3]), "r"(barrier)
                     : "memory");
}

// At a barrier of another CTA, which so learns that memory of its own has been read. The scope is the CTA, as CUTLASS has it: what a
// scope of the cluster adds is a fence of all memory, hundreds of cycles, and nothing for shared memory, of which there is one copy.
// For the same reason `mbarrier_wait_parity` waits for arrivals and stores of other CTAs, too.
__device__ __forceinline__ void mbarrier_arrive_cluster(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
