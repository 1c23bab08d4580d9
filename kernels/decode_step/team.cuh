// A cluster of CTAs that computes for one sequence. Each CTA has all vectors that are as long as a row of a matrix, and computes a
// share of each product, which it gives to the others.
#pragma once

#include "lib/cluster.cuh"
#include "lib/reduce.cuh"
#include "lib/stored.cuh"

namespace persistent {

// Warps of a CTA that work together: of few sequences, whose shares are small, so that most instructions are not products but what is
// around them, which all warps issue; and of many. Two more warps: the mixer computes what the others need late, and the copier finds
// and copies what they need next.
constexpr int FEW_WARPS = 8, MANY_WARPS = 16;

__host__ __device__ constexpr int threads_of(int warps) {
    return 32 * warps + 64;
}

// Most CTAs of a cluster: each is reached by a lane of its own.
constexpr int MOST_RANKS = 16;

// Numbers of named barriers.
constexpr int WORK = 1, PRODUCTS_READY = 2, MIXING_READY = 3, FIRST_READ = 4, DOWN_READY = 5, ROUTED_READY = 6;

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

    __device__ __forceinline__ Share only_if(bool there) const {
        return {first, there ? count : 0};
    }
};

// How many CTAs a cluster has, as a power of two: as it is launched, or known when this is compiled.
template <int N> struct AnyRanks {
    static constexpr bool COUNTED = false;
    static constexpr int WARPS = N;
    int bits;

    __device__ __forceinline__ AnyRanks() {
        u32 ranks;
        asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(ranks));
        bits = __ffs(ranks) - 1;
    }
};

// Here a CTA waits for the bytes that it is given, and for nothing else: each CTA gives something to all others in most exchanges, so
// that none is ahead of another by more than one of these.
struct MostRanks {
    static constexpr bool COUNTED = true;
    static constexpr int WARPS = FEW_WARPS;
    static constexpr int bits = 4;
    static_assert(MOST_RANKS == 1 << bits, "a power of two");
};

// The CTAs of a cluster.
template <class Ranks> struct Team : Ranks {
    using Ranks::bits;
    static constexpr int WARPS = Ranks::WARPS, WORKERS = 32 * WARPS;
    int rank;

    __device__ __forceinline__ Team() {
        u32 rank_of_cta;
        asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank_of_cta));
        rank = rank_of_cta;
    }

    __device__ __forceinline__ int ranks() const {
        return 1 << bits;
    }

    template <int STEP> __device__ __forceinline__ Share share(int count) const {
        const int steps = count / STEP;
        // If all have as much, nobody computes how much.
        if constexpr (Ranks::COUNTED)
            if (steps % MOST_RANKS == 0)
                return {steps / MOST_RANKS * STEP * rank, steps / MOST_RANKS * STEP};
        const int first = (steps * rank >> bits) * STEP;
        return {first, (steps * (rank + 1) >> bits) * STEP - first};
    }

    // Stores a number, or four, in the shared memory of a CTA. `arrived` counts its bytes there, if they are counted.
    template <class X> __device__ __forceinline__ void store(u64 *arrived, float *to, X x, int other) const {
        if constexpr (Ranks::COUNTED)
            st_async(map_shared_rank(to, other), x, map_shared_rank(arrived, other));
        else
            st_shared_cluster(map_shared_rank(to, other), x);
    }

    // Sends a number, or four, to the CTA of this lane.
    template <class X> __device__ __forceinline__ void send(u64 *arrived, float *to, X x, int lane) const {
        if (lane < ranks())
            store(arrived, to, x, lane);
    }

    // Sends a number that `LANES` lanes have to all CTAs.
    template <int LANES> __device__ __forceinline__ void broadcast_by(u64 *arrived, float *to, float x, int lane) const {
#pragma unroll
        for (int first = 0; first < MOST_RANKS; first += LANES)
            send(arrived, to, x, first + lane);
    }

    // The numbers of four units of `products`; by all lanes of a warp, sixteen of which get the same.
    static __device__ __forceinline__ float4 four(float product) {
        float4 four;
        four.x = __shfl_sync(0xffffffff, product, 0, 16), four.y = __shfl_sync(0xffffffff, product, 4, 16);
        four.z = __shfl_sync(0xffffffff, product, 8, 16), four.w = __shfl_sync(0xffffffff, product, 12, 16);
        return four;
    }

    // Sends them to all CTAs, unless `to` is null.
    __device__ __forceinline__ void broadcast_four(u64 *arrived, float *to, float product) const {
        const float4 all = four(product);
        if (to)
            send(arrived, to, all, threadIdx.x % 16);
    }

    // Sends `count` numbers in shared memory to all CTAs, by all workers: four at a time only if both places are 16-byte aligned.
    template <bool ALIGNED = true>
    __device__ __forceinline__ void broadcast(u64 *arrived, float *to, const float *from, int count) const {
        const int other = threadIdx.x & (ranks() - 1), first = threadIdx.x >> bits, step = WORKERS >> bits;
        const int fours = ALIGNED ? count / 4 : 0;
#pragma unroll 1
        for (int at = first; at < fours; at += step)
            store(arrived, to + 4 * at, load4(from + 4 * at), other);
#pragma unroll 1
        for (int at = 4 * fours + first; at < count; at += step)
            store(arrived, to + at, from[at], other);
    }
};

// What one of four lanes multiplies of a row, of at most 64 numbers, in the order of `products`. All is loaded at once: nothing
// branches, and what is behind the last column is that column again, and counts nothing.
struct FourParts {
    static constexpr int PARTS = 4;
    float4 of[PARTS];

    static __device__ __forceinline__ int column(int part) {
        return 4 * (threadIdx.x % 4 + 4 * part);
    }

    // Columns from `first` on, of `cols` that the row has.
    template <class Row> __device__ __forceinline__ void load(const Row &weights, int first, int cols) {
#pragma unroll
        for (int part = 0; part < PARTS; part++)
            of[part] = weights.four(min(first + column(part), cols - 4));
    }

    // The product with K numbers in shared memory; the same for all four lanes.
    __device__ __forceinline__ float product(const float *vector, int K) const {
        float sums[PARTS];
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const float sum = dot4(of[part], load4(vector + min(column(part), K - 4)), 0.0f);
            sums[part] = column(part) < K ? sum : 0.0f;
        }
        return lanes_sum<4>((sums[0] + sums[1]) + (sums[2] + sums[3]));
    }
};

// The product of a row with a vector in shared memory, both of at most 64 numbers, by four lanes, in the order of `products`.
template <bool STAGED, class Row> __device__ __forceinline__ float product_of(const Row &weights, const float *vector, int K) {
    constexpr int PARTS = 4;
    const int lane = threadIdx.x % 4, swizzle = STAGED && K == 16 * PARTS ? threadIdx.x / 4 % PARTS : 0;
    float sums[PARTS];
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        const int column = 4 * (lane + 4 * (part ^ swizzle));
        sums[part] = column < K ? dot4(weights.four(column), load4(vector + column), 0.0f) : 0.0f;
    }
    return lanes_sum<4>((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// The sums of four numbers over a warp, each as `warp_sum` has it: that of the first for lanes 0 to 7, and so on.
__device__ __forceinline__ float warp_sums(float a, float b, float c, float d) {
    const bool second = threadIdx.x & 16, odd = threadIdx.x & 8;
    const float low = (second ? c : a) + __shfl_xor_sync(0xffffffff, second ? a : c, 16);
    const float high = (second ? d : b) + __shfl_xor_sync(0xffffffff, second ? b : d, 16);
    return lanes_sum<8>((odd ? high : low) + __shfl_xor_sync(0xffffffff, odd ? low : high, 8));
}

// Products of rows of a matrix with a vector in shared memory, both of at most 64 numbers: four lanes for each, UNITS of which are
// loaded together, and nothing branches before they are. All four lanes of unit u call done(u, product), and so do all other lanes of a warp that has any, with a unit behind
// the last. The order of a sum depends on K alone: rows that lie one after the other in shared memory begin with different parts, so
// that their lanes have different banks, and the sum of two parts is the same either way.
template <class Ranks, int UNITS, bool STAGED = false, class Row, class Done>
__device__ __forceinline__ void products(int count, int K, const float *vector, Row row, Done done) {
    constexpr int GROUPS = Team<Ranks>::WORKERS / 4, PARTS = 4;
    const int lane = threadIdx.x % 4;
    const int swizzle = STAGED && K == 16 * PARTS ? threadIdx.x / 4 % PARTS : 0;
    const auto column = [&](int part) { return 4 * (lane + 4 * (part ^ swizzle)); };
    float4 x[PARTS];
#pragma unroll
    for (int part = 0; part < PARTS; part++)
        x[part] = column(part) < K ? load4(vector + column(part)) : make_float4(0, 0, 0, 0);
#pragma unroll 1
    for (int first = threadIdx.x / 4; first / 8 * 8 < count; first += GROUPS * UNITS) {
        float4 loaded[UNITS][PARTS];
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            const auto weights = row(min(first + u * GROUPS, count - 1));
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                loaded[u][part] = weights.four(STAGED && K == 16 * PARTS ? column(part) : min(column(part), K - 4));
        }
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            if (u > 0 && (first + u * GROUPS) / 8 * 8 >= count)
                continue;
            float sums[PARTS];
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                const float sum = dot4(loaded[u][part], x[part], 0.0f);
                sums[part] = column(part) < K ? sum : 0.0f;
            }
            done(first + u * GROUPS, lanes_sum<4>((sums[0] + sums[1]) + (sums[2] + sums[3])));
        }
    }
}

} // namespace persistent
