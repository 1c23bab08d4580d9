/*
[[variant]]
name = "simple"
doc = "a block for each row: the threshold from three histograms of digits, of 11, 11 and 10 bits, then the chosen in order"

[[variant.launch]]
entry = "top_k_simple"
grid = ["min(B, 65535)"]
block = [1024]
args = ["scores", "count", "indices", "B", "N", "K"]

[[variant]]
name = "cluster"
doc = """
a cluster of 16 blocks for each row, which hold it in shared memory; the K-th of the maxima of groups of \
scores is a threshold that no chosen score is below; the few scores that reach it are gathered, and the K largest found among them"""
# A row may begin up to three scores after a multiple of 16 bytes.
needs = ["N <= 262141 + N / 262144 * 3"]

[[variant.launch]]
entry = "top_k_cluster"
grid = ["16 * B"]
block = [512]
cluster = [16]
shared = 107056
args = ["scores", "count", "indices", "B", "N", "K"]

[[variant]]
name = "stream"
doc = """
many rows: two blocks for each, which read their halves once, piece by piece, and keep a list of the scores that may be among the K \
largest so far"""
needs = ["K <= 2048"]

[[variant.launch]]
entry = "top_k_stream"
grid = ["2 * B"]
block = [512]
cluster = [2]
shared = 213416
args = ["scores", "count", "indices", "B", "N", "K"]

[[variant]]
name = "block"
doc = """
short rows: a block for each, which holds it in registers; the few scores that reach the K-th of the maxima of groups of scores are \
listed in the order of their indices, and the K largest found among them"""
needs = ["N <= 16384"]

[[variant.launch]]
entry = "top_k_block"
grid = ["B"]
block = ["512 * ceil(N, 8192)"]
shared = "16784 + 8 * N"
args = ["scores", "count", "indices", "B", "N", "K"]

[[mutant]]
name = "zeros_apart"
doc = "-0 is less than 0"

[[mutant]]
name = "nan_by_sign"
doc = "NaN with a sign is less than any number"

[[mutant]]
name = "infinity_clamped"
doc = "-infinity is taken for the least finite number"

[[mutant]]
name = "low_bits_lost"
doc = "scores that agree in their upper 22 bits are taken for equal"

[[mutant]]
name = "last_of_ties"
doc = "of equal scores those with the largest indices are chosen"

[[mutant]]
name = "earlier_ties_lost"
doc = "ties of earlier tiles, blocks or threads of the row are not counted"

[[mutant]]
name = "count_ignored"
doc = "all N scores are candidates"

[[mutant]]
name = "count_at_k"
doc = "the first K are chosen also of K + 1"

[[mutant]]
name = "tail_lost"
doc = "scores after the last whole 32 are no candidates"

[[mutant]]
name = "row_before"
doc = "scores that end the row before, and share 16 bytes with the first of the row, are candidates"
variants = ["block"]
*/

// reference: reference/ops/top_k.rs
//
// scores [B, N], count [B] → indices [B, K]. Scores become keys, unsigned numbers of the same order. The K-th key lies in an interval,
// which a histogram of 2,048 equal parts makes 2,048 times as short, until all keys in it are chosen, or are equal. Chosen are all
// keys above it, and the first that lie in it, until there are K. Places in the output come from sums over the row in the order of
// indices; atomics only count.

#include "lib/cluster.cuh"
#include "lib/tma.cuh"

// Blocks have 512 threads, which is as many as find a part, or more.
constexpr int BINS = 2048, BINS_EACH = 4, SEARCHING = BINS / BINS_EACH, WARPS = 32;

__device__ __forceinline__ int threads() {
    return blockDim.x;
}

// Order of scores: -0 equals 0, and all NaN are equal and largest. No score has the key 0.
__device__ __forceinline__ u32 key_of(float score) {
    u32 bits = __float_as_uint(score);
#ifndef MUTANT_ZEROS_APART
    bits = score == 0.0f ? 0 : bits;
#endif
#ifdef MUTANT_INFINITY_CLAMPED
    bits = bits == 0xff800000 ? 0xff7fffff : bits;
#endif
    const u32 key = bits & 0x80000000 ? ~bits : bits | 0x80000000;
#ifdef MUTANT_NAN_BY_SIGN
    return max(key, 1u);
#else
    return score != score ? 0xffffffff : key;
#endif
}

// How many scores of a row are candidates.
__device__ __forceinline__ int candidates(const int *counts, int row, int n) {
#ifdef MUTANT_COUNT_IGNORED
    return n;
#else
    return counts[row];
#endif
}

// A row without a choice: all of its candidates, and -1. Returns whether it is one.
__device__ __forceinline__ bool all_chosen(int *out, int count, int k, bool writes) {
#ifdef MUTANT_COUNT_AT_K
    if (count > k + 1)
#else
    if (count > k)
#endif
        return false;
    for (int at = threadIdx.x; writes && at < k; at += threads())
        out[at] = at < count ? at : -1;
    return true;
}

__device__ __forceinline__ int rounded_down(int count) {
#ifdef MUTANT_TAIL_LOST
    return count / 32 * 32;
#else
    return count;
#endif
}

// The sum over the lanes up to this one.
__device__ __forceinline__ u32 lanes_prefix(u32 x) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const u32 lower = __shfl_up_sync(0xffffffff, x, step);
        x += lane >= step ? lower : 0;
    }
    return x;
}

// The sum over the threads before this one, and over all. `partials` is shared memory for a number of each warp; two calls with the same
// need a barrier between them.
__device__ __forceinline__ u32 block_prefix(u32 x, u32 *partials, u32 &total) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 up_to = lanes_prefix(x);
    if (lane == 31)
        partials[warp] = up_to;
    __syncthreads();
    const u32 of_warp = lane < threads() / 32 ? partials[lane] : 0;
    total = __reduce_add_sync(0xffffffff, of_warp);
    return __reduce_add_sync(0xffffffff, lane < warp ? of_warp : 0) + up_to - x;
}

// A part of the interval.
struct Part {
    u32 bin;
    // Keys in greater parts.
    u32 above;
    // Keys in this one.
    u32 equal;
};

// What is known of the K-th key.
struct Threshold {
    // It lies between these, both included.
    u32 low, high;
    // How many keys between them are chosen, and how many there are.
    u32 need, equal;

    __device__ __forceinline__ bool above(u32 key) const {
        return key > high;
    }

    __device__ __forceinline__ bool agrees(u32 key) const {
        return key - low <= high - low;
    }

    __device__ __forceinline__ bool done() const {
#ifdef MUTANT_LOW_BITS_LOST
        return equal == need || high - low < 1024;
#else
        return equal == need || high == low;
#endif
    }

    // Of the length of a part, a power of two.
    __device__ __forceinline__ int shift() const {
        return max(0, 21 - __clz(high - low));
    }

    __device__ __forceinline__ u32 bin(u32 key) const {
        return (key - low) >> shift();
    }

    __device__ __forceinline__ void narrow(Part part) {
        const u32 length = 1u << shift();
        low += part.bin << shift();
        high = low + min(high - low, length - 1);
        need -= part.above;
        equal = part.equal;
    }

    // Whether a tie is chosen that has so many before it.
    __device__ __forceinline__ bool takes(u32 before) const {
#ifdef MUTANT_LAST_OF_TIES
        return before >= equal - need;
#else
        return before < need;
#endif
    }

    // How many of the first ties are chosen.
    __device__ __forceinline__ u32 taken(u32 ties) const {
#ifdef MUTANT_LAST_OF_TIES
        return ties < equal - need ? 0 : ties - (equal - need);
#else
        return min(ties, need);
#endif
    }
};

// All keys of scores.
__device__ __forceinline__ Threshold all_keys(int k) {
    return {1, 0xffffffff, (u32)k, 0xffffffff};
}

// Shared memory in which a block searches.
struct Search {
    u32 bins[BINS], partials[WARPS], least[WARPS], greatest[WARPS];
    Part found;
};

// The part in which the `need`-th largest key is. All threads get it, after a barrier; before it there must be one after the bins
// were written.
__device__ __forceinline__ Part find_part(Search &search, const u32 *bins, u32 need) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, lowest = BINS - BINS_EACH * (threadIdx.x + 1);
    const uint4 four = threadIdx.x < SEARCHING ? *(const uint4 *)(bins + lowest) : make_uint4(0, 0, 0, 0);
    const u32 own[BINS_EACH] = {four.w, four.z, four.y, four.x}, sum = own[0] + own[1] + own[2] + own[3];
    const u32 of_warp = __reduce_add_sync(0xffffffff, sum);
    if (lane == 0)
        search.partials[warp] = of_warp;
    __syncthreads();
    const u32 before = __reduce_add_sync(0xffffffff, lane < warp ? search.partials[lane] : 0);
    if (before < need && need <= before + of_warp) {
        u32 above = before + lanes_prefix(sum) - sum;
#pragma unroll
        for (int i = 0; i < BINS_EACH; i++) {
            if (above < need && need <= above + own[i])
                search.found = {(u32)(lowest + BINS_EACH - 1 - i), above, own[i]};
            above += own[i];
        }
    }
    __syncthreads();
    return search.found;
}

__device__ __forceinline__ void clear(u32 *bins) {
    if (threadIdx.x < SEARCHING)
        ((uint4 *)bins)[threadIdx.x] = make_uint4(0, 0, 0, 0);
}

// Narrows a threshold of `keys` keys until it is `enough`. By all threads, after a barrier.
template <class Key, class Enough>
__device__ __forceinline__ void narrow(Threshold &threshold, Search &search, int keys, Key key_at, Enough enough) {
    while (!enough(threshold)) {
        clear(search.bins);
        __syncthreads();
        for (int i = threadIdx.x; i < keys; i += threads()) {
            const u32 key = key_at(i);
            if (threshold.agrees(key))
                atomicAdd(&search.bins[threshold.bin(key)], 1);
        }
        __syncthreads();
        threshold.narrow(find_part(search, search.bins, threshold.need));
    }
}

__device__ __forceinline__ bool is_done(const Threshold &threshold) {
    return threshold.done();
}

// ---- simple

KERNEL(top_k_simple, __launch_bounds__(1024))(const float *scores, const int *counts, int *indices, int rows, int n, int k) {
    __shared__ __align__(16) Search search;
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        const float *from = scores + (size_t)row * n;
        int *out = indices + (size_t)row * k;
        int count = candidates(counts, row, n);
        if (all_chosen(out, count, k, true))
            continue;
        count = rounded_down(count);
        Threshold threshold = all_keys(k);
        narrow(threshold, search, count, [&](int at) { return key_of(from[at]); }, is_done);

        // Numbers of keys above the threshold, and of ties, in the tiles before.
        u32 winners = 0, ties = 0;
        for (int tile = 0; tile < count; tile += threads()) {
            const int at = tile + threadIdx.x;
            const u32 key = at < count ? key_of(from[at]) : 0;
            const bool wins = threshold.above(key), tied = threshold.agrees(key);
            u32 sums;
            const u32 before = block_prefix((u32)wins << 16 | (u32)tied, search.partials, sums);
            const u32 tie = ties + (before & 0xffff);
            if (wins || (tied && threshold.takes(tie)))
                out[winners + (before >> 16) + threshold.taken(tie)] = at;
            winners += sums >> 16;
#ifndef MUTANT_EARLIER_TIES_LOST
            ties += sums & 0xffff;
#endif
            __syncthreads();
        }
    }
}

#include "top_k/block.cuh"
#include "top_k/cluster.cuh"
#include "top_k/stream.cuh"
