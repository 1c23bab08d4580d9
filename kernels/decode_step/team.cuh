// A cluster of CTAs that computes for one sequence. Each CTA has all vectors that are as long as a row of a matrix, and computes a
// share of each product, which it gives to the others.
#pragma once

#include "lib/cluster.cuh"
#include "lib/reduce.cuh"
#include "lib/stored.cuh"

namespace persistent {

// The threads of a CTA that work together. One more warp, the mixer, computes what the others need late.
constexpr int WARPS = 16, WORKERS = 32 * WARPS, THREADS = WORKERS + 32;

// Most CTAs of a cluster: each is reached by a lane of its own.
constexpr int MOST_RANKS = 16;

// Numbers of named barriers.
constexpr int WORK = 1, PRODUCTS_READY = 2, MIXING_READY = 3;

__device__ __forceinline__ void workers_sync() {
    named_barrier_sync(WORK, WORKERS);
}

__device__ __forceinline__ void st_shared_cluster(u32 to, float4 x) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w)
                 : "memory");
}

__device__ __forceinline__ float4 ldg4(const float *from) {
    return __ldg((const float4 *)from);
}

// Four numbers that another CTA may have written in this launch: they do not come from L1.
__device__ __forceinline__ float4 ldcg4(const float *from) {
    return __ldcg((const float4 *)from);
}

__device__ __forceinline__ float4 load4(const float *from) {
    return *(const float4 *)from;
}

__device__ __forceinline__ float dot4(float4 a, float4 b, float sum) {
    return fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, sum))));
}

// A share of `count` things, in steps of `STEP`.
struct Share {
    int first, count;
};

// The CTAs of a cluster, a power of two.
struct Team {
    int rank, bits;

    static __device__ __forceinline__ Team own() {
        u32 rank, ranks;
        asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
        asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(ranks));
        return {(int)rank, __ffs(ranks) - 1};
    }

    __device__ __forceinline__ int ranks() const {
        return 1 << bits;
    }

    template <int STEP> __device__ __forceinline__ Share share(int count) const {
        const int steps = count / STEP, first = (steps * rank >> bits) * STEP;
        return {first, (steps * (rank + 1) >> bits) * STEP - first};
    }

    // Gives a number to the CTA of this lane.
    __device__ __forceinline__ void give(float *to, float x, int lane) const {
        if (lane < ranks())
            ::st_shared_cluster(map_shared_rank(to, lane), x);
    }

    __device__ __forceinline__ void give4(float *to, float4 x, int lane) const {
        if (lane < ranks())
            st_shared_cluster(map_shared_rank(to, lane), x);
    }

    // Gives `count` numbers in shared memory to all CTAs; by all workers.
    __device__ __forceinline__ void give_all(float *to, const float *from, int count) const {
        const int other = threadIdx.x & (ranks() - 1), first = threadIdx.x >> bits, step = WORKERS >> bits;
#pragma unroll 1
        for (int at = first; at < count / 4; at += step)
            st_shared_cluster(map_shared_rank(to + 4 * at, other), load4(from + 4 * at));
        if (const int at = count / 4 * 4 + first; at < count)
            ::st_shared_cluster(map_shared_rank(to + at, other), from[at]);
    }
};

// Products of rows of a matrix with vectors in shared memory, both of K numbers: LANES lanes for each, UNITS of which are loaded
// together. Unit u is row(u) · vector(u); all lanes that have it call done(u, product). The order of a sum depends on K alone. A row is
// asked for where it is loaded, as registers do not hold the places of all.
template <int LANES, int UNITS, class Row, class Vector, class Done>
__device__ __forceinline__ void products(int count, int K, Row row, Vector vector, Done done) {
    constexpr int GROUPS = WORKERS / LANES, UNROLL = UNITS == 1 ? 4 : 1;
    const int lane = threadIdx.x % LANES;
#pragma unroll 1
    for (int block = 0; block < count; block += GROUPS * UNITS) {
        const int first = block + threadIdx.x / LANES;
        float sum[UNITS] = {};
#pragma unroll UNROLL
        for (int at = 4 * lane; at < K; at += 4 * LANES) {
            float4 loaded[UNITS];
#pragma unroll
            for (int u = 0; u < UNITS; u++) {
                const int unit = first + u * GROUPS;
                loaded[u] = unit < count ? row(unit).four(at) : make_float4(0, 0, 0, 0);
            }
#pragma unroll
            for (int u = 0; u < UNITS; u++)
                sum[u] = dot4(loaded[u], load4(vector(min(first + u * GROUPS, count - 1)) + at), sum[u]);
        }
#pragma unroll
        for (int u = 0; u < UNITS; u++)
            sum[u] = lanes_sum<LANES>(sum[u]);
#pragma unroll
        for (int u = 0; u < UNITS; u++)
            if (first + u * GROUPS < count)
                done(first + u * GROUPS, sum[u]);
    }
}

} // namespace persistent
