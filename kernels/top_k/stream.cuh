// The variant `stream`: two CTAs read half a row each, in pieces, one of which is copied while another is read.
//
// A CTA has a list of entries in the order of their indices: the scores that reached the threshold when they were read. If it is full, or
// has grown, only its K best are kept, and the least of them is the new threshold. So a row whose scores ascend takes longer, and is right.
// The first threshold is the K-th of the maxima of groups of the first piece. In the end the first CTA chooses among all lists.
#pragma once

#include "top_k/entries.cuh"

constexpr int STREAMING = 512, HALVES = 2, PIECE = 16384, LISTED = 4608, MAXIMA_OF_PIECE = 4 * STREAMING;

struct StreamShared {
    union {
        float pieces[2][PIECE];
        Entry gathered[HALVES * LISTED];
    };
    Entry lists[2][LISTED];
    u64 here[2];
    Search search;
    // Sizes of the lists of all CTAs.
    u32 sizes[HALVES];
    // The place behind the last that found room.
    int next;
};
static_assert(sizeof(StreamShared) == 213416, "the header says how much shared memory is asked for");

// The list of a CTA.
struct List {
    u32 k, size, list;
    // The least key that may be chosen.
    u32 least;

    static __device__ __forceinline__ StreamShared &shared() {
        return *(StreamShared *)bytes;
    }

    __device__ __forceinline__ Entry *entries() const {
        return shared().lists[list];
    }

    // Keeps the K best. By all threads.
    __device__ __forceinline__ void keep_best() {
        const Entry *from = entries();
        Entry *to = shared().lists[list ^ 1];
        const Threshold threshold = best(shared().search, size, k, from);
        each_chosen(threshold, shared().search, size, from, [&](u32 place, Entry it) { to[place] = it; });
        __syncthreads();
        // Later scores that equal the least of K are not chosen.
        if (size >= k)
            least = threshold.low + (threshold.low == threshold.high && threshold.low != 0xffffffff);
        size = min(size, k), list ^= 1;
    }

    // Appends the scores of a piece that may be chosen.
    __device__ __forceinline__ void append(const float *scores, Places places) {
        while (true) {
            // Few of a piece reach a threshold that is high.
            if (size > max(2 * k, LISTED / 4))
                keep_best();
            mark<PIECE, STREAMING>(shared().search.bins, (const float4 *)scores, places, least);
            u32 word = threadIdx.x < PIECE / 32 ? shared().search.bins[threadIdx.x] : 0, total;
            u32 to = block_prefix(__popc(word), shared().search.partials, total);
            const u32 room = LISTED - size;
            for (; word != 0 && to < room; word &= word - 1, to++) {
                const int place = threadIdx.x * 32 + __ffs(word) - 1;
                entries()[size + to] = {key_of(scores[place]), places.first + place};
                if (to == room - 1)
                    shared().next = place + 1;
            }
            __syncthreads();
            size += min(total, room);
            if (total <= room)
                return;
            places.begin = shared().next;
        }
    }
};

KERNEL(top_k_stream, __launch_bounds__(STREAMING, 1))(const float *scores, const int *counts, int *indices, int, int n, int k) {
    StreamShared &shared = *(StreamShared *)bytes;
    const int row = blockIdx.x / HALVES, rank = blockIdx.x % HALVES;
    int *out = indices + (size_t)row * k;
    launch_dependent_grids();
    wait_on_dependent_grids();
    int count = candidates(counts, row, n);
    // So say all CTAs of the cluster.
    if (all_chosen(out, count, k, rank == 0))
        return;
    count = rounded_down(count);

    const Share share = Share::of<HALVES>(scores + (size_t)row * n, count, rank);
    const int length = share.places.end;
    const auto load = [&](int first) {
        const int piece = first / PIECE % 2;
        load_scores(shared.pieces[piece], share.from + first, min(PIECE, length - first), &shared.here[piece]);
    };
    if (threadIdx.x == 0) {
        mbarrier_init(&shared.here[0], 1);
        mbarrier_init(&shared.here[1], 1);
        fence_mbarrier_init();
        for (int first = 0; first < min(length, 2 * PIECE); first += PIECE)
            load(first);
    }
    __syncthreads();

    List list = {(u32)k, 0, 0, 1};
    for (int first = 0; first < length; first += PIECE) {
        const int piece = first / PIECE;
        mbarrier_wait_parity(&shared.here[piece % 2], piece / 2 % 2);
        const Places places = {first == 0 ? share.places.begin : 0, min(PIECE, length - first), share.places.first + first};
        if (first == 0 && k <= MAXIMA_OF_PIECE) {
            // The other list is not in use yet.
            uint4 *maxima = (uint4 *)shared.lists[1];
            maxima[threadIdx.x] = greatest_of_thread((const float4 *)shared.pieces[0], places);
            __syncthreads();
            list.least = reached_by(shared.search, (const u32 *)maxima, MAXIMA_OF_PIECE, k);
            __syncthreads();
        }
        list.append(shared.pieces[piece % 2], places);
        // All have read it.
        if (threadIdx.x == 0 && first + 2 * PIECE < length)
            load(first + 2 * PIECE);
    }

    // ---- the first CTA gathers the lists, and chooses
    if (threadIdx.x < HALVES)
        st_shared_cluster(map_shared_rank(&shared.sizes[rank], threadIdx.x), list.size);
    // The pieces have been read, and their place is free.
    cluster_sync();
    u32 entries = 0, before = 0;
    for (int of = 0; of < HALVES; of++)
        before = of == rank ? entries : before, entries += shared.sizes[of];
    for (int i = threadIdx.x; i < list.size; i += STREAMING)
        st_shared_cluster(map_shared_rank(&shared.gathered[before + i], 0), list.entries()[i]);
    cluster_sync();
    // Nobody reads or writes the shared memory of another CTA from here on.
    if (rank != 0)
        return;
    const Threshold threshold = best(shared.search, entries, k, shared.gathered);
    each_chosen(threshold, shared.search, entries, shared.gathered, [&](u32 place, Entry it) { out[place] = it.index; });
}
