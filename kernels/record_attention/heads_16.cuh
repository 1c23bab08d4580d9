// 16 heads of a row for each thread block, by products of a warp: for few rows, whose 64 heads would keep few multiprocessors busy.
// Every thread block decodes its keys anew, which there is time for, and the thread blocks of a cluster, which share the keys of a
// row, have a quarter as much to add up.
//
// Keys come in tiles of at most 80. Each of eight warps decodes ten of them; has the scores of every fourth eight keys, over half of
// the channels; the exponentials of two heads; and 64 channels of the results. What a thread block reads, and so the order of all
// sums, follows from the number of keys of the row alone.
#pragma once

#include "lib/cluster.cuh"
#include "lib/mma.cuh"
#include "lib/reduce.cuh"
#include "record_attention/softmax.cuh"

namespace heads_16 {

constexpr int HEADS = 16, WARPS = 8, THREADS = WARPS * 32, WARP_KEYS = 10, TILE = WARPS * WARP_KEYS;
constexpr int BATCH = 5;  // records on their way to a warp's registers at once
constexpr int ROW = 1024; // bytes of a query or a key

struct Shared {
    u8 q[HEADS * ROW];
    union {
        u8 keys[TILE * ROW];
        float results[HEADS][512 + 8];
    };
    // Of the first half of the channels, and of the second.
    float scores[2][HEADS][TILE + 8];
    bf16 exponentials[HEADS][TILE + 8];
    float before[HEADS];
    // A bit for each key that there is, of each warp.
    u32 there[WARPS];
    // Of each rank, which sends them; then what its results are multiplied by.
    float maxima[MOST_RANKS][HEADS], sums[MOST_RANKS][HEADS], weights[MOST_RANKS][HEADS];
};
static_assert(sizeof(Shared) <= 115712, "launch.shared in the header, so that a multiprocessor has two");

// The byte of 16 of a row of queries or keys: eight rows of one column lie in different banks.
__device__ __forceinline__ int byte_of(int row, int chunk) {
    return row * ROW + (chunk ^ row % 8) * 16;
}

__device__ __forceinline__ void ld_shared_cluster(float4 &x, u32 from) {
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(from));
}

__device__ __forceinline__ void request_queries(Shared &shared, const bf16 *q, int heads) {
    const u32 to = smem_address(shared.q);
#pragma unroll
    for (int i = threadIdx.x; i < HEADS * 64; i += THREADS) {
        const int head = i / 64, chunk = i % 64;
        cp_async_16_zfill(to + byte_of(head, chunk), q + (head < heads ? i * 8 : 0), head < heads);
    }
    cp_async_commit_group();
}

// Decodes the keys of a warp, every eighth of a tile, each found by a lane. Those that are missing become zeros: their
// exponentials are zero, and zero times what is there must be, too.
template <class R> __device__ __forceinline__ void decode(Shared &shared, const Keys<R> &keys, int key, int slot, int rows) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u64 row = 0;
    u32 tail = 0;
    if (slot >= 0) {
        const Token<const u8> token = keys.record(key, slot);
        row = (u64)token.row, tail = token.tail - token.row;
    }
    const u32 there = __ballot_sync(0xffffffff, slot >= 0);
    if (lane == 0)
        shared.there[warp] = there;
#pragma unroll
    for (int first = 0; first < WARP_KEYS; first += BATCH) {
        Raw<R> raw[BATCH] = {};
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const u8 *const begin = (const u8 *)__shfl_sync(0xffffffff, row, first + i);
            const u8 *const behind = begin + __shfl_sync(0xffffffff, tail, first + i);
            if (there >> (first + i) & 1)
                raw[i].load({begin, behind});
        }
        if (first == 0 && lane >= BATCH && slot >= 0) {
#pragma unroll
            for (int at = 0; at < R::ROW; at += 128)
                prefetch_l2((const u8 *)row + at);
            prefetch_l2((const u8 *)row + R::ROW - 1);
            prefetch_l2((const u8 *)row + tail);
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int at = warp + WARPS * (first + i);
            if (at < rows)
                raw[i].template store<ROW / 2>(shared.keys + byte_of(at, lane));
        }
    }
}

// Scores of `count` keys, over half of the channels.
__device__ __forceinline__ void find_scores(Shared &shared, int count) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = warp % 2, eights = (count + 7) / 8;
    constexpr int MOST = (TILE / 8 + 3) / 4;
    const u32 q = smem_address(shared.q), k = smem_address(shared.keys);
    float scores[MOST][4] = {};
#pragma unroll 4
    for (int chunk = half * 32; chunk < half * 32 + 32; chunk += 4) {
        u32 a[2][4];
#pragma unroll
        for (int step = 0; step < 2; step++)
            ldmatrix_x4(a[step], q + byte_of(lane % 16, chunk + 2 * step + lane / 16));
#pragma unroll
        for (int i = 0; i < MOST; i++) {
            const int eight = warp / 2 + 4 * i;
            if (eight >= eights)
                break;
            u32 b[4];
            ldmatrix_x4(b, k + byte_of(eight * 8 + lane % 8, chunk + lane / 8));
            mma_m16n8k16_bf16(scores[i], a[0], b[0], b[1]);
            mma_m16n8k16_bf16(scores[i], a[1], b[2], b[3]);
        }
    }
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        const int key = (warp / 2 + 4 * i) * 8 + lane % 4 * 2;
        if (key >= TILE)
            break;
        *(float2 *)&shared.scores[half][lane / 4][key] = make_float2(scores[i][0], scores[i][1]);
        *(float2 *)&shared.scores[half][lane / 4 + 8][key] = make_float2(scores[i][2], scores[i][3]);
    }
}

// Of the two heads of a warp: the number of the warp, and the eighth behind it. Sums are those of a lane's keys.
struct Softmax {
    float maximum[2], sum[2];

    __device__ __forceinline__ void exponentials(Shared &shared, float scale) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const u32 there = shared.there[lane % WARPS] >> lane / WARPS;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int head = warp + 8 * half;
            float x[3], top = maximum[half];
#pragma unroll
            for (int i = 0; i < 3; i++) {
                const int key = lane + 32 * i;
                x[i] = -infinity();
                if (key < TILE && there >> 4 * i & 1) {
#ifdef MUTANT_HALF_OF_SCORES
                    x[i] = shared.scores[0][head][key] * scale;
#else
                    x[i] = (shared.scores[0][head][key] + shared.scores[1][head][key]) * scale;
#endif
#ifdef MUTANT_SCORES_ROUNDED
                    x[i] = from_bf16x2(to_bf16x2(x[i], 0.0f)).x;
#endif
                }
#ifdef MUTANT_MAXIMUM_OF_HALF
                if (i == 0)
#endif
                    top = fmaxf(top, x[i]);
            }
            top = lanes_maximum<32>(top);
            const float base = finite_maximum(top), before = ex2_approx_ftz(maximum[half] - base);
            maximum[half] = top;
            sum[half] *= before;
#pragma unroll
            for (int i = 0; i < 3; i++) {
                const float exponential = ex2_approx_ftz(x[i] - base);
                sum[half] += exponential;
                if (lane + 32 * i < TILE)
                    from_f32(shared.exponentials[head][lane + 32 * i], exponential);
            }
            if (lane == 0)
                shared.before[head] = before;
        }
    }
};

// Adds the values of `count` keys times their exponentials to the results, 64 channels of the 16 heads.
__device__ __forceinline__ void add_values(const Shared &shared, int count, float (&results)[8][4]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#ifndef MUTANT_RESULTS_NOT_RESCALED
    const float before[2] = {shared.before[lane / 4], shared.before[lane / 4 + 8]};
#pragma unroll
    for (int i = 0; i < 8 * 4; i++)
        results[i / 4][i % 4] *= before[i / 2 % 2];
#endif
    const u32 k = smem_address(shared.keys);
    for (int step = 0; step < (count + 15) / 16; step++) {
        u32 a[4];
        ldmatrix_x4(a, smem_address(&shared.exponentials[lane % 16][step * 16 + lane / 16 * 8]));
#pragma unroll
        for (int pair = 0; pair < 4; pair++) {
            u32 b[4];
            ldmatrix_x4_trans(b, k + byte_of(step * 16 + lane % 16, warp * 8 + pair * 2 + lane / 16));
            mma_m16n8k16_bf16(results[2 * pair], a, b[0], b[1]);
            mma_m16n8k16_bf16(results[2 * pair + 1], a, b[2], b[3]);
        }
    }
}

// Adds up a share of the channels, of which all ranks have results.
__device__ __forceinline__ void add_ranks(const Shared &shared, int rank, int ranks, bf16 *out, int heads) {
    const int first = rank * 128 / ranks, fours = (rank + 1) * 128 / ranks - first;
    for (int i = threadIdx.x; i < fours * heads; i += THREADS) {
        const int head = i / fours, four = first + i % fours;
        float4 x[MOST_RANKS];
#pragma unroll
        for (int from = 0; from < MOST_RANKS; from++)
            if (from < ranks)
                ld_shared_cluster(x[from], map_shared_rank(&shared.results[head][four * 4], from));
        float4 sum = {};
#pragma unroll
        for (int from = 0; from < MOST_RANKS; from++) {
            if (from >= ranks)
                break;
#ifdef MUTANT_WEIGHTS_OF_NEXT_RANK
            const float weight = shared.weights[(from + 1) % ranks][head];
#else
            const float weight = shared.weights[from][head];
#endif
            sum.x = fmaf(x[from].x, weight, sum.x), sum.y = fmaf(x[from].y, weight, sum.y);
            sum.z = fmaf(x[from].z, weight, sum.z), sum.w = fmaf(x[from].w, weight, sum.w);
        }
        ((uint2 *)out)[head * 128 + four] = to_bf16x4(sum);
    }
}

template <class R>
__device__ __forceinline__ void attend(const bf16 *q, const Part window, const Part entries, const float *sinks, bf16 *out,
                                       int heads, float scale) {
    extern __shared__ __align__(1024) u8 bytes[];
    Shared &shared = *(Shared *)bytes;
    u32 ranks, rank;
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(ranks));
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    // Nobody sends to a thread block that has not begun.
    cluster_arrive_relaxed();
    const int row = blockIdx.x / ranks, first_head = blockIdx.y * HEADS, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const size_t at = ((size_t)row * heads + first_head) * R::DIM;
    heads = min(heads - first_head, HEADS);
    // Slots are asked for before the counts are there, as if both parts were full. A rank has whole steps of 16 keys.
    const auto share = [&](int all) { return ((all + 15) / 16 + (int)ranks - 1) / (int)ranks * 16; };
    const int own = lane < WARP_KEYS ? warp + WARPS * lane : 1 << 30,
              first_if_full = rank * share(window.places + entries.places);
    int slot = lane < WARP_KEYS ? slot_if_full(window, entries, row, first_if_full + own) : -1;
    request_queries(shared, q + at, heads);
    const Keys<R> keys(window, entries, row);
    const int all = keys.count(), first = rank * share(all), end = min(first + share(all), all);
    const auto slot_of = [&](int tile) { return own < end - tile ? keys.slot(tile + own) : -1; };
    if (first != first_if_full || keys.window.count != window.places || own >= end - first)
        slot = slot_of(first);
    float results[8][4] = {};
    Softmax softmax = {{-infinity(), -infinity()}, {}};
    for (int tile = first; tile < end; tile += TILE) {
        const int count = min(end - tile, TILE);
        decode(shared, keys, tile + own, slot, (count + 15) / 16 * 16);
        slot = slot_of(tile + TILE);
        cp_async_wait_group<0>();
        __syncthreads();
        find_scores(shared, count);
        __syncthreads();
        softmax.exponentials(shared, scale * 1.44269504f);
        __syncthreads();
        add_values(shared, count, results);
        __syncthreads();
    }
    cp_async_wait_group<0>();
    // Results lie where keys were.
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int channel = warp * 64 + i * 8 + lane % 4 * 2;
        *(float2 *)&shared.results[lane / 4][channel] = make_float2(results[i][0], results[i][1]);
        *(float2 *)&shared.results[lane / 4 + 8][channel] = make_float2(results[i][2], results[i][3]);
    }
    cluster_wait();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int head = warp + 8 * half;
        const float sum = warp_sum(softmax.sum[half]);
        if (lane < ranks) {
            st_shared_cluster(map_shared_rank(&shared.maxima[rank][head], lane), softmax.maximum[half]);
            st_shared_cluster(map_shared_rank(&shared.sums[rank][head], lane), sum);
        }
    }
    cluster_sync();
#ifdef MUTANT_LAST_RANK_LOST
    const int active = max((all + share(all) - 1) / max(share(all), 1) - 1, 1);
#else
    const int active = ranks;
#endif
    if (threadIdx.x < HEADS) {
        const int head = threadIdx.x;
        RankSums sums;
#pragma unroll
        for (int from = 0; from < MOST_RANKS; from++) {
            sums.maxima[from] = from < active ? shared.maxima[from][head] : -infinity();
            sums.sums[from] = shared.sums[from][head];
        }
        sums.find_weights(head < heads ? sinks[first_head + head] : -infinity(), active);
#pragma unroll
        for (int from = 0; from < MOST_RANKS; from++)
            shared.weights[from][head] = sums.maxima[from];
    }
    __syncthreads();
    add_ranks(shared, rank, active, out + at, heads);
    // Others still read the results of this one.
    cluster_arrive_relaxed();
    cluster_wait();
}

} // namespace heads_16
