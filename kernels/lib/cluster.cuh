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

// The CTAs of the cluster, which extends along x, and which of them this one is.
__device__ __forceinline__ u32 cluster_size() {
    u32 ranks;
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(ranks));
    return ranks;
}

__device__ __forceinline__ u32 cluster_rank() {
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
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

template <class T> __device__ __forceinline__ T ld_shared_cluster(u32 from);

template <> __device__ __forceinline__ float ld_shared_cluster(u32 from) {
    float x;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
    return x;
}

template <> __device__ __forceinline__ float4 ld_shared_cluster(u32 from) {
    float4 x;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(from)
                 : "memory");
    return x;
}

// Adds to a number of another CTA.
__device__ __forceinline__ void red_shared_cluster_add(u32 to, u32 x) {
    asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}

// Shared memory to that of the peer CTA, whose barrier counts the bytes; after `fence_proxy_async_smem` by those who wrote it.
__device__ __forceinline__ void tma_copy_to_peer(const void *at, u32 bytes, const u64 *barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(map_shared_peer(at)),
        "r"(smem_address(at)), "r"(bytes), "r"(map_shared_peer(barrier))
        : "memory");
}

// One thread copies to the same place of both CTAs of a pair; the barrier of each counts the bytes.
__device__ __forceinline__ void tma_load_1d_both(u32 to, const void *from, u32 bytes, u32 barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(
            to),
        "l"(from), "r"(bytes), "r"(barrier), "h"((u16)3)
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

// ---- delays

#ifdef ULPLAB_DELAYS
#define cluster_arrive() DELAYED(cluster_arrive())
#define cluster_arrive_relaxed() DELAYED(cluster_arrive_relaxed())
#define cluster_wait() DELAYED(cluster_wait())
#define cluster_sync() DELAYED(cluster_sync())
#define st_shared_cluster(...) DELAYED(st_shared_cluster(__VA_ARGS__))
#define red_shared_cluster_add(...) DELAYED(red_shared_cluster_add(__VA_ARGS__))
#define tma_copy_to_peer(...) DELAYED(tma_copy_to_peer(__VA_ARGS__))
#define tma_load_1d_both(...) DELAYED(tma_load_1d_both(__VA_ARGS__))
#define st_async(...) DELAYED(st_async(__VA_ARGS__))
#define mbarrier_arrive_cluster(...) DELAYED(mbarrier_arrive_cluster(__VA_ARGS__))
#endif
