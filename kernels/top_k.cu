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
few rows: a cluster of 8 blocks for each, which hold it in registers, up to 32 scores a thread; digits are counted by \
block, and added up in the shared memory of all"""
needs = ["N <= 262144"]

[[variant.launch]]
entry = "top_k_cluster"
grid = ["8 * B"]
block = [1024]
cluster = [8]
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
doc = "ties of earlier tiles or blocks of the row are not counted"

[[mutant]]
name = "count_ignored"
doc = "all N scores are candidates"

[[mutant]]
name = "count_at_k"
doc = "the first K are chosen also of K + 1"

[[mutant]]
name = "tail_lost"
doc = "scores after the last whole 32 are no candidates"
*/

// reference: reference/ops/top_k.rs
//
// scores [B, N], count [B] → indices [B, K]. Scores become keys, unsigned numbers of the same order. The threshold is the key
// of the K-th: histograms find its digits from the highest to the lowest, each over the keys that agree in the digits before.
// Chosen are all keys above it, and the first that equal it, until there are K. Places in the output come from sums over the
// row in the order of indices; atomics only count.

#include "lib/cluster.cuh"

constexpr int THREADS = 1024, WARPS = THREADS / 32, DIGITS = 3, BINS = 2048;

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
    for (int at = threadIdx.x; writes && at < k; at += THREADS)
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

// The sum over the threads before this one, and over all. `partials` is shared memory for WARPS numbers; two calls with the same
// need a barrier between them.
__device__ __forceinline__ u32 block_prefix(u32 x, u32 *partials, u32 &total) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 up_to = lanes_prefix(x);
    if (lane == 31)
        partials[warp] = up_to;
    __syncthreads();
    const u32 warps = lanes_prefix(partials[lane]);
    total = __shfl_sync(0xffffffff, warps, 31);
    const u32 before = __shfl_sync(0xffffffff, warps, warp == 0 ? 0 : warp - 1);
    return (warp == 0 ? 0 : before) + up_to - x;
}

// A digit of the threshold.
struct Digit {
    u32 bin;
    // Keys with a larger digit.
    u32 above;
    // Keys with this one.
    u32 equal;
};

// What is known of the threshold.
struct Threshold {
    u32 key, mask;
    // How many are still to be chosen, among the keys that agree in the mask, of which there are `equal`.
    u32 need, equal;

    __device__ __forceinline__ bool above(u32 other) const {
        return (other & mask) > key;
    }

    __device__ __forceinline__ bool agrees(u32 other) const {
        return (other & mask) == key;
    }

    // Digits of 11, 11 and 10 bits, from the highest.
    static __device__ __forceinline__ int shift(int digit) {
        return digit == 0 ? 21 : digit == 1 ? 10 : 0;
    }

    static __device__ __forceinline__ u32 digit_of(u32 key, int digit) {
        return key >> shift(digit) & (digit == 2 ? BINS / 2 - 1 : BINS - 1);
    }

    __device__ __forceinline__ void extend(int digit, Digit found) {
        key |= found.bin << shift(digit);
        mask |= (digit == 2 ? BINS / 2 - 1 : BINS - 1) << shift(digit);
        need -= found.above;
        equal = found.equal;
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

#ifdef MUTANT_LOW_BITS_LOST
constexpr int COUNTED = DIGITS - 1;
#else
constexpr int COUNTED = DIGITS;
#endif

// The bin in which the `need`-th largest digit is. All threads get it, after a barrier; before it there must be one after `bins`
// was written.
__device__ __forceinline__ Digit find_digit(const u32 *bins, u32 need, u32 *partials, Digit *found) {
    const u32 high = BINS - 1 - 2 * threadIdx.x, low = high - 1;
    const u32 of_high = bins[high], of_low = bins[low];
    u32 total;
    const u32 above = block_prefix(of_high + of_low, partials, total);
    if (above < need && need <= above + of_high)
        *found = {high, above, of_high};
    else if (above + of_high < need && need <= above + of_high + of_low)
        *found = {low, above + of_high, of_low};
    __syncthreads();
    return *found;
}

// ---- simple

extern "C" __global__ void __launch_bounds__(THREADS)
    top_k_simple(const float *scores, const int *counts, int *indices, int rows, int n, int k) {
    __shared__ u32 bins[BINS], partials[WARPS];
    __shared__ Digit found;
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        const float *from = scores + (size_t)row * n;
        int *out = indices + (size_t)row * k;
        int count = candidates(counts, row, n);
        if (all_chosen(out, count, k, true))
            continue;
        count = rounded_down(count);

        Threshold threshold = {0, 0, (u32)k, 0};
        for (int digit = 0; digit < COUNTED; digit++) {
            for (int bin = threadIdx.x; bin < BINS; bin += THREADS)
                bins[bin] = 0;
            __syncthreads();
            for (int at = threadIdx.x; at < count; at += THREADS) {
                const u32 key = key_of(from[at]);
                if (threshold.agrees(key))
                    atomicAdd(&bins[Threshold::digit_of(key, digit)], 1);
            }
            __syncthreads();
            threshold.extend(digit, find_digit(bins, threshold.need, partials, &found));
        }

        // Numbers of keys above the threshold, and of ties, in the tiles before.
        u32 winners = 0, ties = 0;
        for (int tile = 0; tile < count; tile += THREADS) {
            const int at = tile + threadIdx.x;
            const u32 key = at < count ? key_of(from[at]) : 0;
            const bool wins = threshold.above(key), tied = threshold.agrees(key);
            u32 sums;
            const u32 before = block_prefix((u32)wins << 16 | (u32)tied, partials, sums);
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

// ---- cluster

// Adds to a number in the shared memory of a CTA of the cluster.
__device__ __forceinline__ void red_shared_cluster_add(u32 to, u32 x) {
    asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}

// CTA `rank` of a row has an equal share of its candidates, in one piece.
extern "C" __global__ void __launch_bounds__(THREADS)
    top_k_cluster(const float *__restrict__ scores, const int *__restrict__ counts, int *indices, int, int n, int k) {
    constexpr int RANKS = 8, EACH = 32;
    __shared__ u32 own[BINS], all[DIGITS][BINS], winner_bits[THREADS], tie_bits[THREADS], partials[WARPS], sums[RANKS];
    __shared__ Digit found;
    const int row = blockIdx.x / RANKS, rank = blockIdx.x % RANKS, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int *out = indices + (size_t)row * k;
    int count = candidates(counts, row, n);
    // So say all CTAs of the cluster.
    if (all_chosen(out, count, k, rank == 0))
        return;
    count = rounded_down(count);

    // ---- prologue: all loads are issued at once
    const int share = (count + 32 * RANKS - 1) / (32 * RANKS) * 32, first = rank * share;
    const int length = min(share, count - first);
    const float *from = scores + (size_t)row * n + first;
    u32 keys[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int at = i * THREADS + threadIdx.x;
        keys[i] = at < length ? __float_as_uint(__ldg(from + at)) : 0;
    }
    for (int bin = threadIdx.x; bin < BINS; bin += THREADS) {
        own[bin] = 0;
        for (int digit = 0; digit < DIGITS; digit++)
            all[digit][bin] = 0;
    }
    if (threadIdx.x < RANKS)
        sums[threadIdx.x] = 0;
    __syncthreads();
    cluster_arrive();

    // ---- threshold
    Threshold threshold = {0, 0, (u32)k, 0};
#pragma unroll
    for (int digit = 0; digit < COUNTED; digit++) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            // Absent keys are 0, which is no score's.
            if (const int at = i * THREADS + threadIdx.x; digit == 0)
                keys[i] = at < length ? key_of(__uint_as_float(keys[i])) : 0;
            if (keys[i] != 0 && threshold.agrees(keys[i]))
                atomicAdd(&own[Threshold::digit_of(keys[i], digit)], 1);
        }
        __syncthreads();
        // The sums of all CTAs are 0 before the first is added to.
        if (digit == 0)
            cluster_wait();
        for (int bin = threadIdx.x; bin < BINS; bin += THREADS) {
            const u32 keys_here = own[bin];
            if (keys_here == 0)
                continue;
            own[bin] = 0;
#pragma unroll
            for (int to = 0; to < RANKS; to++)
                red_shared_cluster_add(map_shared_rank(&all[digit][bin], to), keys_here);
        }
        cluster_sync();
        threshold.extend(digit, find_digit(all[digit], threshold.need, partials, &found));
        // All keys that agree so far are chosen.
        if (threshold.equal == threshold.need)
            break;
    }

    // ---- epilogue: a bit for each key, a word of 32 for each thread
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const u32 wins = __ballot_sync(0xffffffff, threshold.above(keys[i]));
        const u32 tied = __ballot_sync(0xffffffff, threshold.agrees(keys[i]));
        if (lane == 0)
            winner_bits[i * WARPS + warp] = wins, tie_bits[i * WARPS + warp] = tied;
    }
    __syncthreads();
    u32 wins = winner_bits[threadIdx.x], tied = tie_bits[threadIdx.x], total;
    const u32 before = block_prefix(__popc(wins) << 16 | __popc(tied), partials, total);
    if (threadIdx.x < RANKS)
        red_shared_cluster_add(map_shared_rank(&sums[rank], threadIdx.x), total);
    cluster_sync();
    // Nobody reads or writes the shared memory of another CTA from here on.
    u32 winner = before >> 16, tie = before & 0xffff;
    for (int other = 0; other < rank; other++) {
        winner += sums[other] >> 16;
#ifndef MUTANT_EARLIER_TIES_LOST
        tie += sums[other] & 0xffff;
#endif
    }
    for (u32 bits = wins | tied; bits != 0; bits &= bits - 1) {
        const u32 bit = bits & -bits;
        const bool is_tie = tied & bit;
        if (!is_tie || threshold.takes(tie))
            out[winner + threshold.taken(tie)] = first + threadIdx.x * 32 + __ffs(bit) - 1;
        tie += is_tie, winner += !is_tie;
    }
}
