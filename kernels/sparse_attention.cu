/*
[[variant]]
name = "simple"
doc = "a thread block for each head of a row; a pass over the keys for the maximum, one for the sum and the result"
scratch = [{ name = "scores", bytes = "B * H * (Wn + max(N, K)) * 4" }]

[[variant.launch]]
entry = "sparse_attention_simple_{reads}_{dtype}"
grid = ["H", "min(B, 65535)"]
block = [256]
args = ["q", "window", "position", "entries", "indices", "count", "sinks", "out", "scores", "B", "H", "D", "Wn", "N", "K", "scale"]

[[mutant]]
name = "sink_scaled"
doc = "the sink is scaled like a score"

[[mutant]]
name = "sink_left_out"
doc = "the denominator lacks the sink"

[[mutant]]
name = "window_begins_late"
doc = "the oldest vector of a full window is not read"

[[mutant]]
name = "skipped_slot_read"
doc = "an index of -1 reads entry 0"

[[mutant]]
name = "maximum_of_warp"
doc = "the maximum is that of the first warp"

[[mutant]]
name = "sinks_of_head_0"
doc = "all heads have the sink of the first"

[[mutant]]
name = "probabilities_rounded"
doc = "probabilities are rounded to bf16"

[[mutant]]
name = "padding_left_as_it_was"
doc = "rows of padding are not written"
*/

// reference: reference/ops/attention.rs
//
// Key j of a row is a slot of its window, or an entry; the order of all sums follows from the row's own keys.

#include "lib/reduce.cuh"

__device__ __forceinline__ float larger(float a, float b) {
    return a != a || a > b ? a : b;
}

// The largest of all threads; NaN if one has a NaN.
__device__ __forceinline__ float block_largest(float x, float *partials) {
    const auto over_warp = [](float x) {
#pragma unroll
        for (int step = 16; step > 0; step /= 2)
            x = larger(x, __shfl_xor_sync(0xffffffff, x, step));
        return x;
    };
    x = over_warp(x);
    if (threadIdx.x % 32 == 0)
        partials[threadIdx.x / 32] = x;
    __syncthreads();
#ifdef MUTANT_MAXIMUM_OF_WARP
    return partials[0];
#else
    return over_warp(partials[threadIdx.x % 32 % (blockDim.x / 32)]);
#endif
}

// Where a row's keys are. Those of the window come first, from the oldest on.
template <class T> struct Keys {
    const T *window, *entries;
    const int *indices;
    int recent, oldest, slots, dim;

    // The vector of a key, or nothing if its slot is empty.
    __device__ __forceinline__ const T *operator()(int key) const {
        if (key < recent) {
            const int slot = (oldest + key) % slots;
            return window + (size_t)slot * dim;
        }
        int entry = key - recent;
        if (indices)
            entry = indices[entry];
#ifdef MUTANT_SKIPPED_SLOT_READ
        entry = max(entry, 0);
#endif
        return entry < 0 ? nullptr : entries + (size_t)entry * dim;
    }
};

template <bool ALL, class T>
__device__ __forceinline__ void simple(const T *q, const T *window, const int *position, const T *entries, const int *indices,
                                       const int *count, const float *sinks, T *out, float *scores, int rows, int heads, int dim,
                                       int slots, int capacity, int chosen, float scale) {
    __shared__ float partials[2][32];
    const int head = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int row = blockIdx.y; row < rows; row += gridDim.y) {
        const size_t at = (size_t)row * heads + head;
        const T *query = q + at * dim;
        T *to = out + at * dim;
        const int now = position[row];
        if (now < 0) {
#ifndef MUTANT_PADDING_LEFT_AS_IT_WAS
            for (int i = threadIdx.x; i < dim; i += blockDim.x)
                from_f32(to[i], 0.0f);
#endif
            continue;
        }
#ifdef MUTANT_WINDOW_BEGINS_LATE
        const int oldest = max(0, now - slots + 2);
#else
        const int oldest = max(0, now - slots + 1);
#endif
        const Keys<T> keys = {window + (size_t)row * slots * dim,
                              entries + (size_t)row * capacity * dim,
                              ALL ? nullptr : indices + (size_t)row * chosen,
                              now - oldest + 1,
                              oldest,
                              slots,
                              dim};
        const int all = keys.recent + (ALL ? count[row] : chosen);
        float *score = scores + at * (slots + max(capacity, chosen));
#ifdef MUTANT_SINKS_OF_HEAD_0
        float sink = sinks[0];
#else
        float sink = sinks[head];
#endif
#ifdef MUTANT_SINK_SCALED
        sink *= scale;
#endif
        // Scores, a warp for each key.
        for (int key = warp; key < all; key += blockDim.x / 32) {
            const T *vector = keys(key);
            float product = 0.0f;
            for (int i = lane; i < dim && vector; i += 32)
                product = fmaf(to_f32(query[i]), to_f32(vector[i]), product);
            product = warp_sum(product);
            if (lane == 0)
                score[key] = vector ? product * scale : -__int_as_float(0x7f800000);
        }
        __syncthreads();
        float top = sink;
        for (int key = threadIdx.x; key < all; key += blockDim.x)
            top = larger(score[key], top);
        top = block_largest(top, partials[0]);
        float sum = 0.0f;
        for (int key = threadIdx.x; key < all; key += blockDim.x) {
            const float p = expf(score[key] - top);
            score[key] = p;
            sum += p;
        }
        sum = block_sum(sum, partials[1]);
#ifndef MUTANT_SINK_LEFT_OUT
        sum += expf(sink - top);
#endif
        for (int i = threadIdx.x; i < dim; i += blockDim.x) {
            float o = 0.0f;
            for (int key = 0; key < all; key++) {
                const T *vector = keys(key);
#ifdef MUTANT_PROBABILITIES_ROUNDED
                bf16 rounded;
                from_f32(rounded, score[key]);
                const float p = to_f32(rounded);
#else
                const float p = score[key];
#endif
                if (vector)
                    o = fmaf(p, to_f32(vector[i]), o);
            }
            from_f32(to[i], o / sum);
        }
        // The next row has the same partials.
        __syncthreads();
    }
}

#define ENTRIES(READS, ALL, DTYPE, T)                                                                                            \
    KERNEL(sparse_attention_simple_##READS##_##DTYPE,                                                                            \
           __launch_bounds__(256))(const T *q, const T *window, const int *position, const T *entries, const int *indices,       \
                                   const int *count, const float *sinks, T *out, float *scores, int rows, int heads, int dim,    \
                                   int slots, int capacity, int chosen, float scale) {                                           \
        simple<ALL>(q, window, position, entries, indices, count, sinks, out, scores, rows, heads, dim, slots, capacity, chosen, \
                    scale);                                                                                                      \
    }

ENTRIES(indices, false, bf16, bf16)
ENTRIES(indices, false, f32, float)
ENTRIES(all, true, bf16, bf16)
ENTRIES(all, true, f32, float)
