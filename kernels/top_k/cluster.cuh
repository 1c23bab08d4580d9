// The variant `cluster`: a row in the shared memory of 16 CTAs.
//
// Every CTA tells all others the maxima of groups of its scores. The K-th of all maxima is a threshold that at least K scores reach, and
// of scores in no particular order few more. Those are sent to the first CTA, which finds the K largest of them. If they are too many,
// `by_parts` narrows an interval over all scores, as `simple` does.
#pragma once

#include "top_k/entries.cuh"

constexpr int THREADS = 512, RANKS = 16, SHARE = 16384, MAXIMA = RANKS * THREADS;
// Scores of a row that reach the threshold.
constexpr int GATHERED = 4096;
__device__ __forceinline__ void red_shared_cluster_add(u32 to, u32 x) {
    asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}

struct ClusterShared {
    float scores[SHARE];
    union {
        u32 maxima[MAXIMA];
        Entry gathered[GATHERED];
        // Sums of all CTAs, in turn.
        u32 sums_of_bins[3][BINS];
    };
    Search search;
    u32 counts[RANKS], sums[RANKS];
    u64 scores_here, maxima_here, counts_here, gathered_here;
};
static_assert(sizeof(ClusterShared) == 107056, "the header says how much shared memory is asked for");

// As in `simple`, with sums over the CTAs.
__device__ __noinline__ void by_parts(Places share, int rank, int k, int *out) {
    ClusterShared &shared = *(ClusterShared *)bytes;
    const int lane = threadIdx.x % 32;
    clear(shared.search.bins);
    for (int turn = 0; turn < 3; turn++)
        clear(shared.sums_of_bins[turn]);
    if (threadIdx.x < RANKS)
        shared.sums[threadIdx.x] = 0;
    cluster_sync();
    Threshold threshold = all_keys(k);
    for (int turn = 0; !threshold.done(); turn++) {
        for (int place = share.begin + (int)threadIdx.x; place < share.end; place += THREADS) {
            const u32 key = key_of(shared.scores[place]);
            if (threshold.agrees(key))
                atomicAdd(&shared.search.bins[threshold.bin(key)], 1);
        }
        __syncthreads();
        for (int bin = threadIdx.x; bin < BINS; bin += THREADS) {
            const u32 here = shared.search.bins[bin];
            if (here == 0)
                continue;
            shared.search.bins[bin] = 0;
            for (int to = 0; to < RANKS; to++)
                red_shared_cluster_add(map_shared_rank(&shared.sums_of_bins[turn][bin], to), here);
        }
        cluster_sync();
        threshold.narrow(find_part(shared.search, shared.sums_of_bins[turn], threshold.need));
    }
    // A thread has 32 places in a row; lanes begin with different ones, since all of one number lie in one bank.
    u32 wins = 0, tied = 0;
    for (int i = 0; i < 32; i++) {
        const int bit = (i + lane) % 32, place = threadIdx.x * 32 + bit;
        if (!share.has(place))
            continue;
        const u32 key = key_of(shared.scores[place]);
        wins |= (u32)threshold.above(key) << bit, tied |= (u32)threshold.agrees(key) << bit;
    }
    u32 total;
    const u32 before = block_prefix(__popc(wins) << 16 | __popc(tied), shared.search.partials, total);
    if (threadIdx.x < RANKS)
        red_shared_cluster_add(map_shared_rank(&shared.sums[rank], threadIdx.x), total);
    cluster_sync();
    // Nobody reads or writes the shared memory of another CTA from here on.
    u32 winner = before >> 16, tie = before & 0xffff;
    for (int other = 0; other < rank; other++) {
        winner += shared.sums[other] >> 16;
#ifndef MUTANT_EARLIER_TIES_LOST
        tie += shared.sums[other] & 0xffff;
#endif
    }
    for (u32 bits = wins | tied; bits != 0; bits &= bits - 1) {
        const u32 bit = bits & -bits;
        const bool is_tie = tied & bit;
        if (!is_tie || threshold.takes(tie))
            out[winner + threshold.taken(tie)] = share.first + threadIdx.x * 32 + __ffs(bit) - 1;
        tie += is_tie, winner += !is_tie;
    }
}

KERNEL(top_k_cluster, __launch_bounds__(THREADS, 2))(const float *scores, const int *counts, int *indices, int, int n, int k) {
    ClusterShared &shared = *(ClusterShared *)bytes;
    const int row = blockIdx.x / RANKS, rank = blockIdx.x % RANKS, lane = threadIdx.x % 32;
    int *out = indices + (size_t)row * k;
    launch_dependent_grids();
    wait_on_dependent_grids();
    int count = candidates(counts, row, n);
    // So say all CTAs of the cluster.
    if (all_chosen(out, count, k, rank == 0))
        return;
    count = rounded_down(count);

    // ---- prologue: the share is copied; other CTAs may send once they know that this one's barriers are there
    const auto [from, share] = Share::of<RANKS>(scores + (size_t)row * n, count, rank);
    // The maxima are of the scores of one thread, of two, or of four.
    const int lanes = k <= MAXIMA / 16 ? 4 : k <= MAXIMA / 8 ? 2 : 1, groups = THREADS / lanes;
    if (threadIdx.x == 0) {
        mbarrier_init(&shared.scores_here, 1);
        mbarrier_init(&shared.maxima_here, 1);
        mbarrier_init(&shared.counts_here, 1);
        mbarrier_init(&shared.gathered_here, 1);
        fence_mbarrier_init();
        load_scores(shared.scores, from, share.end, &shared.scores_here);
        mbarrier_arrive_expect_tx(&shared.maxima_here, (RANKS - 1) * groups * 4);
        mbarrier_arrive_expect_tx(&shared.counts_here, (RANKS - 1) * 4);
    }
    __syncthreads();
    cluster_arrive_relaxed();

    // ---- maxima
    const float4 *fours = (const float4 *)shared.scores;
    mbarrier_wait_parity(&shared.scores_here, 0);
    const uint4 of_thread = greatest_of_thread(fours, share);
    u32 of_group = max(max(of_thread.x, of_thread.y), max(of_thread.z, of_thread.w));
    for (int step = 1; step < lanes; step *= 2)
        of_group = max(of_group, __shfl_xor_sync(0xffffffff, of_group, step));
    u32 *own_maxima = shared.maxima + rank * groups;
    if (threadIdx.x % lanes == 0)
        own_maxima[threadIdx.x / lanes] = of_group;
    __syncthreads();
    cluster_wait();
    for (int i = threadIdx.x; i < RANKS * groups / 4; i += THREADS) {
        const int to = i / (groups / 4), at = i % (groups / 4);
        if (to != rank)
            st_async(map_shared_rank(own_maxima + 4 * at, to), ((const uint4 *)own_maxima)[at],
                     map_shared_rank(&shared.maxima_here, to));
    }

    // ---- a threshold that K scores reach
    mbarrier_wait_parity(&shared.maxima_here, 0);
    const u32 least = k <= MAXIMA ? reached_by(shared.search, shared.maxima, RANKS * groups, k) : 1;

    // ---- the scores that reach it
    __syncthreads();
    u32 *bits = shared.search.bins;
    mark<SHARE, THREADS>(bits, fours, share, least);
    u32 word = bits[threadIdx.x], total;
    u32 to = block_prefix(__popc(word), shared.search.partials, total);
    if (threadIdx.x < RANKS && threadIdx.x != rank)
        st_async(map_shared_rank(&shared.counts[rank], threadIdx.x), total, map_shared_rank(&shared.counts_here, threadIdx.x));
    mbarrier_wait_parity(&shared.counts_here, 0);
    const u32 of_rank = lane == rank ? total : lane < RANKS ? shared.counts[lane] : 0;
    const u32 up_to = lanes_prefix(of_rank), gathered = __shfl_sync(0xffffffff, up_to, 31);
    if (gathered > GATHERED) {
        by_parts(share, rank, k, out);
        return;
    }

    // ---- the first CTA gathers them, and finds the K largest
    to += __shfl_sync(0xffffffff, up_to - of_rank, rank);
    if (rank == 0 && threadIdx.x == 0)
        mbarrier_arrive_expect_tx(&shared.gathered_here, (gathered - total) * (u32)sizeof(Entry));
    for (; word != 0; word &= word - 1, to++) {
        const int place = threadIdx.x * 32 + __ffs(word) - 1;
        const Entry it = {key_of(shared.scores[place]), share.first + place};
        if (rank == 0)
            shared.gathered[to] = it;
        else
            st_async(map_shared_rank(&shared.gathered[to], 0), it, map_shared_rank(&shared.gathered_here, 0));
    }
    if (rank != 0)
        return;
    mbarrier_wait_parity(&shared.gathered_here, 0);
    const Threshold threshold = best(shared.search, gathered, k, shared.gathered);
    each_chosen(threshold, shared.search, gathered, shared.gathered, [&](u32 place, Entry it) { out[place] = it.index; });
}
