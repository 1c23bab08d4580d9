// The variant `block`: a row in the registers of one CTA, at most 16 scores for each thread.
//
// As in `cluster`, the K-th of the maxima of groups of scores is a threshold that at least K scores reach, and of scores in no particular
// order few more. Those are listed in the order of their indices, and the list has room for all. So rows of any kind go the same way, and
// those that many scores reach take longer. What is done for every score is but two comparisons of floats: only those that are listed
// become keys.
#pragma once

#include "top_k/entries.cuh"

// A thread has so many fours of scores.
constexpr int FOURS = 4;

struct alignas(16) BlockShared {
    u32 more_bins[BINS];
    Search search;
};
static_assert(sizeof(BlockShared) == 16784, "the header says how much shared memory is asked for, with the list behind it");

// Which of the four scores at a place there are, as bits.
__device__ __forceinline__ u32 places_of_four(Places places, int place) {
#ifdef MUTANT_ROW_BEFORE
    const int before = 0;
#else
    const int before = max(0, places.begin - place);
#endif
    return 15u << before & (1u << max(0, min(4, places.end - place))) - 1;
}

// A row as a CTA has it: a warp has neighbouring scores, in turns of four for each lane. A byte of a word stands for a turn.
struct RowOfBlock {
    float4 fours[FOURS];
    // Which scores there are, as the lowest bits of the bytes.
    u32 valid;

    // In the order of the places.
    static __device__ __forceinline__ int place(int turn) {
        return (threadIdx.x / 32 * FOURS + turn) * 128 + threadIdx.x % 32 * 4;
    }

    // Reads whole fours, of which the last may lie beyond the candidates, so that it need not wait for their number. `from` is where place
    // 0 is.
    __device__ __forceinline__ void load(const float *from, Places row) {
        const bool aligned = (size_t)from % 16 == 0;
#pragma unroll
        for (int turn = 0; turn < FOURS; turn++)
            if (aligned && place(turn) + 4 <= row.end)
                fours[turn] = *(const float4 *)(from + place(turn));
#pragma unroll
        for (int turn = 0; turn < FOURS; turn++)
            if (!aligned || place(turn) + 4 > row.end) {
                const auto score = [&](int at) { return row.has(at) ? from[at] : 0.0f; };
                const int at = place(turn);
                fours[turn] = {score(at), score(at + 1), score(at + 2), score(at + 3)};
            }
    }

    // Keeps the candidates; -infinity stands where there is none. Most warps have nothing else.
    __device__ __forceinline__ void keep(Places places) {
        valid = 0x0f0f0f0f;
        const int first = threadIdx.x / 32 * FOURS * 128;
        if (first >= places.begin && first + FOURS * 128 <= places.end)
            return;
        valid = 0;
        const float none = __uint_as_float(0xff800000);
#pragma unroll
        for (int turn = 0; turn < FOURS; turn++) {
            float4 &four = fours[turn];
            const u32 bits = places_of_four(places, place(turn));
            four.x = bits & 1 ? four.x : none, four.y = bits & 2 ? four.y : none;
            four.z = bits & 4 ? four.z : none, four.w = bits & 8 ? four.w : none;
            valid |= bits << 8 * turn;
        }
    }

    // The greatest of four, or NaN if there is one.
    __device__ __forceinline__ float most(int turn) const {
        const float4 four = fours[turn];
        return max_or_nan(max_or_nan(four.x, four.y), max_or_nan(four.z, four.w));
    }

    // Which scores are at least `bound`, or NaN.
    __device__ __forceinline__ u32 reach(float bound) const {
        u32 bits = 0;
#pragma unroll
        for (int turn = 0; turn < FOURS; turn++) {
            const float4 four = fours[turn];
            bits |= (u32) !(four.x < bound) << 8 * turn | (u32) !(four.y < bound) << 8 * turn + 1;
            bits |= (u32) !(four.z < bound) << 8 * turn + 2 | (u32) !(four.w < bound) << 8 * turn + 3;
        }
        return bits & valid;
    }
};

// A key that at least K scores reach; 1 if there are fewer maxima than K. `greatest` is the greatest of all. All bins are 0.
__device__ __forceinline__ u32 reached_by_maxima(Search &search, const RowOfBlock &row, int k, u32 &greatest) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float most[FOURS];
#pragma unroll
    for (int turn = 0; turn < FOURS; turn++)
        most[turn] = row.most(turn);
    // The maxima are of four scores, of eight, or of 16: twice as many as K if there can be.
    const int turns = 2 * k <= threads() ? 4 : k <= threads() ? 2 : 1;
    if (turns > 1)
        most[0] = max_or_nan(most[0], most[1]), most[2] = max_or_nan(most[2], most[3]);
    if (turns > 2)
        most[0] = max_or_nan(most[0], most[2]);
    u32 keys[FOURS], least = 0xffffffff;
    greatest = 0;
#pragma unroll
    for (int turn = 0; turn < FOURS; turn++) {
        keys[turn] = 0;
        if (turn % turns == 0 && (row.valid >> 8 * turn & 0xffffffff >> 32 - 8 * turns) != 0) {
            keys[turn] = key_of(most[turn]);
            least = min(least, keys[turn]), greatest = max(greatest, keys[turn]);
        }
    }
    least = __reduce_min_sync(0xffffffff, least), greatest = __reduce_max_sync(0xffffffff, greatest);
    if (lane == 0)
        search.least[warp] = least, search.greatest[warp] = greatest;
    if (threadIdx.x == 0)
        search.found = {0, 0, 0};
    __syncthreads();
    const bool has = lane < threads() / 32;
    least = __reduce_min_sync(0xffffffff, has ? search.least[lane] : 0xffffffff);
    greatest = __reduce_max_sync(0xffffffff, has ? search.greatest[lane] : 0);
    Threshold kth = {least, greatest, (u32)k, 0};
#pragma unroll
    for (int turn = 0; turn < FOURS; turn++)
        if (keys[turn] != 0)
            atomicAdd(&search.bins[kth.bin(keys[turn])], 1);
    __syncthreads();
    const Part part = find_part(search, search.bins, k);
    kth.narrow(part);
    return part.equal == 0 ? 1 : kth.low;
}

// Lists the scores of which there are bits, in the order of their places, as they are instead of their keys. Returns how many there are.
__device__ __forceinline__ u32 list_scores(Entry *entries, u32 *partials, const RowOfBlock &row, u32 bits, int first) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // Sums of bytes, at most 128.
    u32 own = bits - (bits >> 1 & 0x55555555);
    own = (own & 0x33333333) + (own >> 2 & 0x33333333);
    const u32 up_to = lanes_prefix(own), of_turns = __shfl_sync(0xffffffff, up_to, 31), lower = up_to - own;
    if (lane == 0)
        partials[warp] = __dp4a(of_turns, 0x01010101u, 0u);
    __syncthreads();
    const u32 of_warp = lane < threads() / 32 ? partials[lane] : 0;
    u32 before = __reduce_add_sync(0xffffffff, lane < warp ? of_warp : 0);
#pragma unroll
    for (int turn = 0; turn < FOURS; turn++) {
        const float4 four = row.fours[turn];
        const float scores[] = {four.x, four.y, four.z, four.w};
        Entry *to = entries + before + (lower >> 8 * turn & 0xff);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (bits >> 8 * turn + i & 1)
                *to++ = {__float_as_uint(scores[i]), first + row.place(turn) + i};
        before += of_turns >> 8 * turn & 0xff;
    }
    return __reduce_add_sync(0xffffffff, of_warp);
}

KERNEL(top_k_block, __launch_bounds__(1024))(const float *scores, const int *counts, int *indices, int, int n, int k) {
    BlockShared &shared = *(BlockShared *)bytes;
    Entry *entries = (Entry *)(bytes + sizeof(BlockShared));
    int *out = indices + (size_t)blockIdx.x * k;
    clear(shared.search.bins), clear(shared.more_bins);
    wait_on_dependent_grids();
    launch_dependent_grids();
    int count = candidates(counts, blockIdx.x, n);

    // From a multiple of 16 bytes if the row has room for what is before it.
    const float *from = scores + (size_t)blockIdx.x * n;
    int ahead = (size_t)from / sizeof(float) % 4;
    ahead = ahead + n <= 4 * FOURS * threads() ? ahead : 0;
    RowOfBlock row;
    row.load(from - ahead, {ahead, ahead + n, -ahead});
    if (all_chosen(out, count, k, true))
        return;
    count = rounded_down(count);

    // ---- the scores that reach a threshold, which is a number or infinite
    u32 greatest;
    row.keep({ahead, ahead + count, -ahead});
    const u32 kth = reached_by_maxima(shared.search, row, k, greatest);
    const u32 least = min(max(kth, 0x007fffffu), 0xff800000u);
    const u32 listed = list_scores(entries, shared.search.partials, row, row.reach(score_of(least)), -ahead);
    __syncthreads();

    // ---- the K largest of them
    for (int i = threadIdx.x; i < listed; i += threads())
        entries[i].key = key_of(__uint_as_float(entries[i].key));
    // If K are NaN, the K-th is, and infinity need not be told from it.
    Threshold threshold = {kth > 0xff800000 ? 0xffffffff : least, greatest, (u32)k, listed};
    if (threshold.done())
        __syncthreads();
    for (u32 *bins = shared.more_bins, *next = shared.search.bins; !threshold.done();) {
        for (int i = threadIdx.x; i < listed; i += threads()) {
            const u32 key = entries[i].key;
            if (threshold.agrees(key))
                atomicAdd(&bins[threshold.bin(key)], 1);
        }
        // All have read these.
        clear(next);
        __syncthreads();
        threshold.narrow(find_part(shared.search, bins, threshold.need));
        u32 *read = bins;
        bins = next, next = read;
    }
    // There are 512 threads or 1,024.
    const u32 each = listed + threads() - 1 >> (threads() > 512 ? 10 : 9);
    each_chosen(threshold, shared.search, listed, each, entries, [&](u32 place, Entry it) {
        // A planted fault may choose more than K.
        if (place < k)
            out[place] = it.index;
    });
}
