// What the variants have in common that hold scores in shared memory: how they get there, and lists of those that may be chosen.
#pragma once

// All that a block has; a reference to it that is kept or passed would no longer be known to be of shared memory.
extern __shared__ __align__(128) u8 bytes[];

// Greater than no score in `fmaxf`, and than all by its key.
#define NO_SCORE __uint_as_float(0x7fffffff)

// A score that may be chosen.
struct Entry {
    u32 key;
    int index;
};

// Scores in shared memory: at `begin` to `end`, where place 0 has the index `first`.
struct Places {
    int begin, end, first;

    __device__ __forceinline__ bool has(int place) const {
        return place >= begin && place < end;
    }

    // The scores at four places, and `NO_SCORE` where there is none.
    __device__ __forceinline__ float4 only(float4 four, int place) const {
        if (place < begin || place + 4 > end) {
            four.x = has(place) ? four.x : NO_SCORE, four.y = has(place + 1) ? four.y : NO_SCORE;
            four.z = has(place + 2) ? four.z : NO_SCORE, four.w = has(place + 3) ? four.w : NO_SCORE;
        }
        return four;
    }
};

// The candidates of a row that CTA `rank` of RANKS has: as many as each other, in one piece that begins at a multiple of 16 bytes.
struct Share {
    const float *from;
    Places places;

    template <int RANKS> static __device__ __forceinline__ Share of(const float *row, int count, int rank) {
        const int ahead = (size_t)row / sizeof(float) % 4, all = ahead + count;
        const int each = (all + 32 * RANKS - 1) / (32 * RANKS) * 32, start = rank * each;
        return {row - ahead + start, {rank == 0 ? ahead : 0, max(0, min(each, all - start)), start - ahead}};
    }
};

// Copies `count` scores from a multiple of 16 bytes; the barrier's phase ends when they are there. By one thread.
__device__ __forceinline__ void load_scores(float *to, const float *from, int count, u64 *here) {
    const int whole = count / 4 * 4;
    for (int i = whole; i < count; i++)
        to[i] = from[i];
    // The launch before may still have run when this one began.
    fence_proxy_async();
    mbarrier_arrive_expect_tx(here, whole * 4);
    if (whole > 0)
        tma_load_1d(to, from, whole * 4, here);
}

// The least score that has at least this key; NaN for keys above those of numbers, which no score is less than.
__device__ __forceinline__ float score_of(u32 key) {
    const u32 number = max(key, 0x007fffffu);
    return __uint_as_float(number & 0x80000000 ? number & 0x7fffffff : ~number);
}

// NaN if one of them is.
__device__ __forceinline__ float max_or_nan(float x, float y) {
    float z;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}

// Sets the bits of the places whose scores have at least the key `least`, or are NaN; then a barrier. There are at most PLACES, and so
// many bits, and the block has so many THREADS.
template <int PLACES, int THREADS>
__device__ __forceinline__ void mark(u32 *bits, const float4 *fours, Places places, u32 least) {
    if (threadIdx.x < PLACES / 32)
        bits[threadIdx.x] = 0;
    __syncthreads();
    const float bound = score_of(least);
    u32 reach = 0;
#pragma unroll
    for (int i = 0; i < PLACES / 4 / THREADS; i++) {
        const float4 four = fours[i * THREADS + threadIdx.x];
        reach |= (u32) !(max_or_nan(max_or_nan(four.x, four.y), max_or_nan(four.z, four.w)) < bound) << i;
    }
    for (; reach != 0; reach &= reach - 1) {
        const int at = (__ffs(reach) - 1) * THREADS + threadIdx.x, place = 4 * at;
        const float4 four = fours[at];
        const u32 marks = (!(four.x < bound) && places.has(place)) | (!(four.y < bound) && places.has(place + 1)) << 1 |
                          (!(four.z < bound) && places.has(place + 2)) << 2 | (!(four.w < bound) && places.has(place + 3)) << 3;
        atomicOr(&bits[at / 8], marks << at % 8 * 4);
    }
    __syncthreads();
}

// The K-th of keys, where a key of 0 is none, lies between the least and the greatest. After a barrier.
template <class Key> __device__ __forceinline__ Threshold between(Search &search, int keys, u32 k, Key key_at) {
    u32 least = 0xffffffff, greatest = 0, some = 0;
    for (int i = threadIdx.x; i < keys; i += threads()) {
        const u32 key = key_at(i);
        least = min(least, key == 0 ? 0xffffffff : key), greatest = max(greatest, key), some += key != 0;
    }
    least = __reduce_min_sync(0xffffffff, least), greatest = __reduce_max_sync(0xffffffff, greatest);
    some = __reduce_add_sync(0xffffffff, some);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (lane == 0)
        search.least[warp] = least, search.greatest[warp] = greatest, search.partials[warp] = some;
    __syncthreads();
    const bool has = lane < threads() / 32;
    least = __reduce_min_sync(0xffffffff, has ? search.least[lane] : 0xffffffff);
    greatest = __reduce_max_sync(0xffffffff, has ? search.greatest[lane] : 0);
    return {least, greatest, k, __reduce_add_sync(0xffffffff, has ? search.partials[lane] : 0)};
}

// The greatest of every fourth score of this thread, as keys; 0 where it has none. NaN is less than all others here, so they may be too
// low.
__device__ __forceinline__ uint4 greatest_of_thread(const float4 *fours, Places places) {
    float4 most = {NO_SCORE, NO_SCORE, NO_SCORE, NO_SCORE};
    const auto add = [&](float4 four) {
        most.x = fmaxf(most.x, four.x), most.y = fmaxf(most.y, four.y);
        most.z = fmaxf(most.z, four.z), most.w = fmaxf(most.w, four.w);
    };
    // Only the first and the last four may lack some.
    int at = threadIdx.x;
    if (at == 0)
        add(places.only(fours[0], 0)), at += threads();
#pragma unroll 4
    for (; 4 * at + 4 <= places.end; at += threads())
        add(fours[at]);
    if (4 * at < places.end)
        add(places.only(fours[at], 4 * at));
    const int first = 4 * threadIdx.x;
    const auto key = [&](float score, int place) {
        return places.has(place) || places.has(place + 4 * threads()) ? key_of(score) : 0;
    };
    return {key(most.x, first), key(most.y, first + 1), key(most.z, first + 2), key(most.w, first + 3)};
}

// The K-th of maxima of scores, of which 0 is none, or a key that is a little less: at least K scores reach it, or all that there are.
__device__ __forceinline__ u32 reached_by(Search &search, const u32 *maxima, int count, u32 k) {
    const auto key_at = [&](int i) { return maxima[i]; };
    Threshold kth = between(search, count, k, key_at);
    if (kth.equal < k)
        return 1;
    // It may be so many places too low.
    const auto enough = [](const Threshold &threshold) { return threshold.done() || threshold.equal <= 32; };
    narrow(kth, search, count, key_at, enough);
    return kth.low;
}

// The threshold of the K best. By all threads; barriers come before and after.
__device__ __forceinline__ Threshold best(Search &search, u32 entries, u32 k, const Entry *from) {
    const auto key_at = [&](int i) { return from[i].key; };
    __syncthreads();
    Threshold threshold = between(search, entries, min(k, entries), key_at);
    narrow(threshold, search, entries, key_at, is_done);
    __syncthreads();
    return threshold;
}

// Calls `put` with each entry that a threshold chooses, and its place among them, in the order of the entries, of which a thread has
// `each`. By all threads; a barrier must come before and after.
template <class Put>
__device__ __forceinline__ void each_chosen(Threshold threshold, Search &search, u32 count, u32 each, const Entry *entries,
                                            Put put) {
    const u32 from = threadIdx.x * each, end = min(count, from + each);
    u32 own = 0, total;
    for (u32 i = from; i < end; i++) {
        const u32 key = entries[i].key;
        own += (u32)threshold.above(key) << 16 | (u32)threshold.agrees(key);
    }
    const u32 before = block_prefix(own, search.partials, total);
    u32 winner = before >> 16, tie = before & 0xffff;
#ifdef MUTANT_EARLIER_TIES_LOST
    tie = 0;
#endif
    for (u32 i = from; i < end; i++) {
        const Entry it = entries[i];
        const bool wins = threshold.above(it.key), is_tie = threshold.agrees(it.key);
        if (wins || (is_tie && threshold.takes(tie)))
            put(winner + threshold.taken(tie), it);
        tie += is_tie, winner += wins;
    }
}

// The threads have equal numbers of them.
template <class Put>
__device__ __forceinline__ void each_chosen(Threshold threshold, Search &search, u32 count, const Entry *entries, Put put) {
    each_chosen(threshold, search, count, (count + threads() - 1) / threads(), entries, put);
}
