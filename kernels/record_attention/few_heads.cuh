// 16 or 32 heads of a row for each thread block, by products of a warp: for few rows, whose 64 heads would keep few multiprocessors
// busy. Every thread block decodes its keys anew, which there is time for, and the thread blocks of a cluster, which share the keys
// of a row, have less to add up.
//
// Sixteen warps decode a tile of keys, at most 160 or 128, each a sixteenth. Of 16 heads, two warps share the scores of some of the
// keys, half of the channels each; a warp has the exponentials of one or two heads, and of 16 heads an eighth or a sixteenth of the
// channels of the results. What a thread block reads, and so the order of all sums, follows from the number of keys of the row alone.
#pragma once

#include "lib/cluster.cuh"
#include "lib/mma.cuh"
#include "lib/reduce.cuh"
#include "record_attention/softmax.cuh"

namespace few_heads {

constexpr int ROW = 1024; // bytes of a query or a key
constexpr int SHARED = 215040, MOST_RANKS = 8, WARPS = 16, THREADS = WARPS * 32;

// The byte of 16 of a row of queries or keys: eight rows of one column lie in different banks.
__device__ __forceinline__ int byte_of(int row, int chunk) {
    return row * ROW + (chunk ^ row % 8) * 16;
}

__device__ __forceinline__ float4 ld_shared_cluster(u32 from) {
    float4 x;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(from));
    return x;
}

// The records of the keys of a warp, a lane's each. A missing one is that of another key of the same warp, if it has one:
// exponentials of a missing key are zero, and what they are multiplied by must be finite if that of other keys is.
struct Found {
    u64 row;
    u32 tail;  // behind the row
    u32 there; // a bit for each lane

    template <class R> __device__ __forceinline__ void find(const Keys<R> &keys, int key, int slot) {
        row = 0, tail = 0;
        if (slot >= 0) {
            const Token<const u8> token = keys.record(key, slot);
            row = (u64)token.row, tail = token.tail - token.row;
#pragma unroll
            for (int at = 0; at < R::ROW; at += 128)
                prefetch_l2(token.row + at);
            prefetch_l2(token.row + R::ROW - 1);
            prefetch_l2(token.tail);
        }
        there = __ballot_sync(0xffffffff, slot >= 0);
        const int from = slot >= 0 || there == 0 ? int(threadIdx.x % 32) : __ffs(there) - 1;
        row = __shfl_sync(0xffffffff, row, from), tail = __shfl_sync(0xffffffff, tail, from);
    }

    // The record of a lane, named by all lanes of the warp.
    __device__ __forceinline__ Token<const u8> of_lane(int lane) const {
        const u8 *const begin = (const u8 *)__shfl_sync(0xffffffff, row, lane);
        return {begin, begin + __shfl_sync(0xffffffff, tail, lane)};
    }
};

// What attention gives, as bfloat16 [rows, heads, 512].
struct ToHalves {
    bf16 *out;
    int heads;

    // By a warp, whose lanes have four channels each of 128.
    __device__ __forceinline__ void store(int row, int head, int channel, float4 x) const {
        *(uint2 *)(out + ((size_t)row * heads + head) * 512 + channel) = to_bf16x4(x);
    }
};

template <int HEADS, int TILE> struct Block {
    // Records on their way to a warp's registers at once.
    static constexpr int WARP_KEYS = TILE / WARPS, BATCH = WARP_KEYS / 2;
    // Of 16 heads.
    static constexpr int OF_16 = WARPS / (HEADS / 16), CHANNELS = 512 / OF_16;
    static constexpr int WARP_HEADS = HEADS / WARPS, LANE_KEYS = (TILE + 31) / 32;

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

    __device__ __forceinline__ void request_queries(const bf16 *from, int heads) {
        const u32 to = smem_address(q);
#pragma unroll
        for (int i = threadIdx.x; i < HEADS * 64; i += THREADS) {
            const int head = i / 64, chunk = i % 64;
            cp_async_16_zfill(to + byte_of(head, chunk), from + (head < heads ? i * 8 : 0), head < heads);
        }
        cp_async_commit_group();
    }

    // Decodes the keys of a warp, one of as many as there are warps. Rows from `rows` on are not read.
    template <class R> __device__ __forceinline__ void decode(const Found &found, int rows) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (lane == 0)
            there[warp] = found.there;
#pragma unroll
        for (int first = 0; first < WARP_KEYS; first += BATCH) {
            Raw<R> raw[BATCH] = {};
            if (found.there) {
#pragma unroll
                for (int i = 0; i < BATCH; i++)
                    raw[i].load(found.of_lane(first + i));
            }
            u8 *const to = keys + byte_of(warp + WARPS * first, lane);
#pragma unroll
            for (int i = 0; i < BATCH; i++)
                if (warp + WARPS * (first + i) < rows)
                    raw[i].template store<ROW / 2>(to + WARPS * i * ROW);
        }
    }

    // Scores of 16 heads and MINE times eight keys, over half of the channels.
    template <int MINE> __device__ __forceinline__ void scores_of(int first_head, int first_key, int half) {
        const int lane = threadIdx.x % 32;
        const u32 of_q = smem_address(q) + byte_of(first_head + lane % 16, half * 32 + lane / 16);
        const u32 of_k = smem_address(keys) + byte_of(first_key + lane % 8, half * 32 + lane / 8);
        float x[MINE][4] = {};
        // Chunks of 16 bytes, four at a time. Where only the lowest three bits of a chunk's number change, so do those of its place.
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int fours = i / 4 * 64, behind = i % 4 * 128;
            u32 a[2][4];
            ldmatrix_x4(a[0], (of_q ^ fours) + behind);
            ldmatrix_x4(a[1], (of_q ^ fours ^ 32) + behind);
#pragma unroll
            for (int n = 0; n < MINE; n++) {
                u32 b[4];
                ldmatrix_x4(b, (of_k ^ fours) + behind + n * (OF_16 / 2 * 8 * ROW));
                mma_m16n8k16_bf16(x[n], a[0], b[0], b[1]);
                mma_m16n8k16_bf16(x[n], a[1], b[2], b[3]);
            }
        }
        float *const to = &scores[half][first_head + lane / 4][first_key + lane % 4 * 2];
#pragma unroll
        for (int n = 0; n < MINE; n++) {
            *(float2 *)(to + n * (OF_16 / 2 * 8)) = make_float2(x[n][0], x[n][1]);
            *(float2 *)(to + n * (OF_16 / 2 * 8) + 8 * (TILE + 8)) = make_float2(x[n][2], x[n][3]);
        }
    }

    template <int MOST> __device__ __forceinline__ void scores_of(int mine, int first_head, int first_key, int half) {
        if (mine == MOST)
            scores_of<MOST>(first_head, first_key, half);
        else if constexpr (MOST > 1)
            scores_of<MOST - 1>(mine, first_head, first_key, half);
    }

    // Scores of the first `count` keys: pairs of warps take turns with eight.
    __device__ __forceinline__ void find_scores(int count) {
        constexpr int PAIRS = OF_16 / 2, MOST = (TILE / 8 + PAIRS - 1) / PAIRS;
        const int warp = threadIdx.x / 32, pair = warp % OF_16 / 2, eights = (count + 7) / 8;
        scores_of<MOST>((eights - pair + PAIRS - 1) / PAIRS, warp / OF_16 * 16, pair * 8, warp % 2);
    }

    // The exponentials of the heads of a warp, one of as many as there are warps. Sums are those of a lane's keys.
    __device__ __forceinline__ void find_exponentials(float scale, float (&maximum)[WARP_HEADS], float (&sum)[WARP_HEADS]) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        u32 valid = 0; // of this lane's keys, every 32nd
#pragma unroll
        for (int i = 0; i < LANE_KEYS; i++)
            valid |= (there[lane % WARPS] >> (lane + 32 * i) / WARPS & (lane + 32 * i < TILE)) << i;
#pragma unroll
        for (int mine = 0; mine < WARP_HEADS; mine++) {
            const int head = warp + WARPS * mine;
            float x[LANE_KEYS], top = maximum[mine];
#pragma unroll
            for (int i = 0; i < LANE_KEYS; i++) {
                const int key = lane + 32 * i;
                x[i] = -infinity();
                if (valid >> i & 1) {
#ifdef MUTANT_HALF_OF_SCORES
                    x[i] = scores[0][head][key] * scale;
#else
                    x[i] = (scores[0][head][key] + scores[1][head][key]) * scale;
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
            const float base = finite_maximum(top), grown = ex2_approx_ftz(maximum[mine] - base);
            maximum[mine] = top;
            sum[mine] *= grown;
#pragma unroll
            for (int i = 0; i < LANE_KEYS; i++) {
                const float exponential = ex2_approx_ftz(x[i] - base);
                sum[mine] += exponential;
                if (lane + 32 * i < TILE)
                    from_f32(exponentials[head][lane + 32 * i], exponential);
            }
            if (lane == 0)
                before[head] = grown;
        }
    }

    // Adds the values of `count` keys times their exponentials to the results of 16 heads.
    __device__ __forceinline__ void add_values(int count, float (&x)[CHANNELS / 8][4]) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first_head = warp / OF_16 * 16;
#ifndef MUTANT_RESULTS_NOT_RESCALED
        const float by[2] = {before[first_head + lane / 4], before[first_head + lane / 4 + 8]};
#pragma unroll
        for (int i = 0; i < CHANNELS / 2; i++)
            x[i / 4][i % 4] *= by[i / 2 % 2];
#endif
        const u32 of_p = smem_address(&exponentials[first_head + lane % 16][lane / 16 * 8]);
        const u32 of_k = smem_address(keys) + byte_of(lane % 16, warp % OF_16 * (CHANNELS / 8) + lane / 16);
#pragma unroll
        for (int step = 0; step < TILE / 16; step++) {
            if (step * 16 >= count)
                break;
            u32 a[4];
            ldmatrix_x4(a, of_p + step * 32);
#pragma unroll
            for (int pair = 0; pair < CHANNELS / 16; pair++) {
                u32 b[4];
                ldmatrix_x4_trans(b, (of_k ^ pair * 32) + step * 16 * ROW);
                mma_m16n8k16_bf16(x[2 * pair], a, b[0], b[1]);
                mma_m16n8k16_bf16(x[2 * pair + 1], a, b[2], b[3]);
            }
        }
    }

    // Lets the ranks have the results, which lie where keys were, and the maxima and the sums of exponentials.
    __device__ __forceinline__ void publish(int rank, int ranks, const float (&x)[CHANNELS / 8][4],
                                            const float (&maximum)[WARP_HEADS], const float (&sum)[WARP_HEADS]) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        float *const to = &results[warp / OF_16 * 16 + lane / 4][warp % OF_16 * CHANNELS + lane % 4 * 2];
#pragma unroll
        for (int i = 0; i < CHANNELS / 8; i++) {
            *(float2 *)(to + i * 8) = make_float2(x[i][0], x[i][1]);
            *(float2 *)(to + i * 8 + 8 * (512 + 8)) = make_float2(x[i][2], x[i][3]);
        }
#pragma unroll
        for (int mine = 0; mine < WARP_HEADS; mine++) {
            const int head = warp + WARPS * mine;
            const float of_all = warp_sum(sum[mine]);
            if (lane < ranks) {
                st_shared_cluster(map_shared_rank(&maxima[rank][head], lane), maximum[mine]);
                st_shared_cluster(map_shared_rank(&sums[rank][head], lane), of_all);
            }
        }
    }

    // What the results of each rank are multiplied by: a thread for a head and a rank.
    __device__ __forceinline__ void find_weights(float sink, int ranks) {
        static_assert(THREADS >= MOST_RANKS * HEADS, "a thread each");
        const int rank = threadIdx.x / HEADS, head = threadIdx.x % HEADS;
        if (rank >= ranks)
            return;
        const auto maximum = [&](int from) { return maxima[from][head]; };
        const auto sum = [&](int from) { return sums[from][head]; };
        const AllRanks all = AllRanks::of<MOST_RANKS>(ranks, sink, maximum, sum);
        weights[rank][head] = all.weight(maximum(rank));
    }

    // Adds up a share of the heads' channels, of which the first `active` ranks have results: a warp has 128 channels of a head.
    template <class Out>
    __device__ __forceinline__ void add_ranks(int rank, int ranks, int active, const Out &out, int row, int first_head,
                                              int heads) const {
        const int end = (rank + 1) * heads * 4 / ranks;
        for (int part = rank * heads * 4 / ranks + threadIdx.x / 32; part < end; part += WARPS) {
            const int head = part / 4, channel = part % 4 * 128 + threadIdx.x % 32 * 4;
            float4 x[MOST_RANKS], sum = {};
#pragma unroll
            for (int from = 0; from < MOST_RANKS; from++)
                if (from < active)
                    x[from] = ld_shared_cluster(map_shared_rank(&results[head][channel], from));
#pragma unroll
            for (int from = 0; from < MOST_RANKS; from++) {
                if (from >= active)
                    break;
#ifdef MUTANT_WEIGHTS_OF_NEXT_RANK
                const float weight = weights[(from + 1) % active][head];
#else
                const float weight = weights[from][head];
#endif
                sum.x = fmaf(x[from].x, weight, sum.x), sum.y = fmaf(x[from].y, weight, sum.y);
                sum.z = fmaf(x[from].z, weight, sum.z), sum.w = fmaf(x[from].w, weight, sum.w);
            }
            out.store(row, first_head + head, channel, sum);
        }
    }
};

template <int HEADS, int TILE, class R, class Out>
__device__ __forceinline__ void attend(const bf16 *q, const Part window, const Part entries, const float *sinks, const Out &out,
                                       int heads, float scale) {
    typedef Block<HEADS, TILE> Block;
    static_assert(sizeof(Block) <= SHARED, "launch.shared in the header");
    extern __shared__ __align__(1024) u8 bytes[];
    Block &block = *(Block *)bytes;
    u32 ranks, rank;
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(ranks));
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    // Nobody sends to a thread block that has not begun.
    cluster_arrive_relaxed();
    const int row = blockIdx.x / ranks, first_head = blockIdx.y * HEADS, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const size_t at = ((size_t)row * heads + first_head) * R::DIM;
    heads = min(heads - first_head, HEADS);
    launch_dependent_grids();
    const int head = threadIdx.x % HEADS;
    const float sink = head < heads ? sinks[first_head + head] : 0.0f;
    // All but sinks comes from the launches before.
    wait_on_dependent_grids();
    // Slots are asked for before the counts are there, as if both parts were full. A rank has whole steps of 16 keys.
    const auto share = [&](int all) { return ((all + 15) / 16 + (int)ranks - 1) / (int)ranks * 16; };
    const int own = warp + WARPS * lane, first_if_full = rank * share(window.places + entries.places);
    int slot = own < TILE ? slot_if_full(window, entries, row, first_if_full + own) : -1;
    block.request_queries(q + at, heads);
    const Keys<R> keys(window, entries, row);
    const int all = keys.count(), each = share(all), first = rank * each, end = min(first + each, all);
    const auto slot_of = [&](int tile) { return own < min(end - tile, TILE) ? keys.slot(tile + own) : -1; };
    if (first != first_if_full || keys.window.count != window.places || own >= end - first)
        slot = slot_of(first);
    Found found;
    found.find(keys, first + own, slot);
    float results[Block::CHANNELS / 8][4] = {}, maximum[Block::WARP_HEADS], sum[Block::WARP_HEADS] = {};
#pragma unroll
    for (float &of_head : maximum)
        of_head = -infinity();
    for (int tile = first; tile < end; tile += TILE) {
        const int count = min(end - tile, TILE);
        block.template decode<R>(found, (count + 15) / 16 * 16);
        slot = slot_of(tile + TILE);
        cp_async_wait_group<0>();
        __syncthreads();
        block.find_scores(count);
        found.find(keys, tile + TILE + own, slot);
        __syncthreads();
        block.find_exponentials(scale * 1.44269504f, maximum, sum);
        __syncthreads();
        block.add_values(count, results);
        __syncthreads();
    }
    cp_async_wait_group<0>();
    cluster_wait();
    block.publish(rank, ranks, results, maximum, sum);
    cluster_sync();
    int active = ranks;
#ifdef MUTANT_LAST_RANK_LOST
    active = max((all + each - 1) / max(each, 1) - 1, 1);
#endif
    block.find_weights(sink, active);
    __syncthreads();
    block.add_ranks(rank, ranks, active, out, row, first_head, heads);
    // Others still read the results of this one.
    cluster_arrive_relaxed();
    cluster_wait();
}

} // namespace few_heads
