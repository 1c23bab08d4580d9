/*
[[variant]]
name = "simple"
doc = "a warp for each entry, heads one after the other"

[[variant.launch]]
entry = "index_scores_simple_{dtype}"
grid = ["ceil(N, 8)", "min(B, 65535)"]
block = [256]
args = ["q", "keys", "head_weights", "count", "scores", "B", "H", "D", "N", "scale"]

[[mutant]]
name = "one_entry_too_many"
doc = "a row sees the entry after its last"

[[mutant]]
name = "relu_left_out"
doc = "products count with their sign"

[[mutant]]
name = "nan_dropped"
doc = "a product that is NaN counts as 0"

[[mutant]]
name = "weights_of_row_0"
doc = "all rows have the head weights of the first"

[[mutant]]
name = "keys_of_row_0"
doc = "all rows score the entries of the first"

[[mutant]]
name = "last_head_lost"
doc = "the last head is left out"

[[mutant]]
name = "rest_left_as_it_was"
doc = "entries that a row may not see are not written"

[[mutant]]
name = "rows_of_the_grid"
doc = "rows after the first 65,535 are not written"

[[mutant]]
name = "channels_by_eights"
doc = "channels after the last whole eight are left out"
*/

// reference: reference/ops/indexer.rs
//
// q [B, H, D], keys [B, N, D], scores [B, N]. A score is a sum over heads in ascending order, whatever B and N.

#include "lib/reduce.cuh"

template <class T>
__device__ __forceinline__ void simple(const T *q, const T *keys, const float *head_weights, const int *count, float *scores,
                                       int rows, int heads, int dim, int entries, float scale) {
    const int entry = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (entry >= entries)
        return;
#ifdef MUTANT_ROWS_OF_THE_GRID
    rows = min(rows, 65535);
#endif
    for (int row = blockIdx.y; row < rows; row += gridDim.y) {
        float *to = scores + (size_t)row * entries + entry;
#ifdef MUTANT_ONE_ENTRY_TOO_MANY
        const bool seen = entry <= count[row];
#else
        const bool seen = entry < count[row];
#endif
        if (!seen) {
#ifndef MUTANT_REST_LEFT_AS_IT_WAS
            if (lane == 0)
                *to = -__int_as_float(0x7f800000);
#endif
            continue;
        }
#ifdef MUTANT_KEYS_OF_ROW_0
        const T *key = keys + (size_t)entry * dim;
#else
        const T *key = keys + ((size_t)row * entries + entry) * dim;
#endif
#ifdef MUTANT_WEIGHTS_OF_ROW_0
        const float *weights = head_weights;
#else
        const float *weights = head_weights + (size_t)row * heads;
#endif
#ifdef MUTANT_LAST_HEAD_LOST
        const int last = heads > 1 ? heads - 1 : heads;
#else
        const int last = heads;
#endif
        float score = 0.0f;
        for (int head = 0; head < last; head++) {
            const T *query = q + ((size_t)row * heads + head) * dim;
            float product = 0.0f;
#ifdef MUTANT_CHANNELS_BY_EIGHTS
            for (int i = lane; i < dim / 8 * 8; i += 32)
#else
            for (int i = lane; i < dim; i += 32)
#endif
                product = fmaf(to_f32(query[i]), to_f32(key[i]), product);
            product = warp_sum(product);
#if defined(MUTANT_RELU_LEFT_OUT)
            const float positive = product;
#elif defined(MUTANT_NAN_DROPPED)
            const float positive = fmaxf(product, 0.0f);
#else
            const float positive = product < 0.0f ? 0.0f : product;
#endif
            score = fmaf(weights[head] * scale, positive, score);
        }
        if (lane == 0)
            *to = score;
    }
}

#define ENTRIES(DTYPE, T)                                                                                                      \
    KERNEL(index_scores_simple_##DTYPE, __launch_bounds__(256))(const T *q, const T *keys, const float *head_weights,          \
                                                                const int *count, float *scores, int rows, int heads, int dim, \
                                                                int entries, float scale) {                                    \
        simple(q, keys, head_weights, count, scores, rows, heads, dim, entries, scale);                                        \
    }

ENTRIES(bf16, bf16)
ENTRIES(f32, float)
