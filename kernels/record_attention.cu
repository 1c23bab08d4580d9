/*
[[variant]]
name = "simple"
doc = "a thread block for each head of a row, a warp for a key; a pass over the keys for the scores, one for the result, both of which decode"
scratch = [{ name = "scores", bytes = "B * H * (Wn + K) * 4" }]

[[variant.launch]]
entry = "record_attention_simple_{record}_{dtype}"
grid = ["H", "min(B, 65535)"]
block = [256]
args = ["q", "window_pages", "window_slots", "window_count", "pages", "slots", "count", "sinks", "out", "scores", "B", "H", "Wn", "K", "window_own", "own", "window_listed", "listed", "scale"]

[[variant]]
name = "cluster"
doc = "64 heads and a share of the keys for a thread block: two producer warpgroups decode keys to bf16, two consumer warpgroups take turns with the scores of 32 and share the channels of the results; the cluster of a row adds up through shared memory; 320 keys and more for each thread block"
arch = "sm_90a"
needs = ["size == 2", "B * 8 < 2147483648"]

[[variant.launch]]
entry = "record_attention_cluster_{record}_{dtype}"
grid = ["B * min(max(ceil(Wn + K, 320), 1), 8)", "ceil(H, 64)"]
cluster = ["min(max(ceil(Wn + K, 320), 1), 8)"]
block = [512]
shared = 217728
args = ["q", "window_pages", "window_slots", "window_count", "pages", "slots", "count", "sinks", "out", "H", "Wn", "K", "window_own", "own", "window_listed", "listed", "scale"]

[[variant]]
name = "cluster_128"
doc = "128 keys and more for each thread block of a cluster: for few rows"
arch = "sm_90a"
needs = ["size == 2", "B * 8 < 2147483648"]

[[variant.launch]]
entry = "record_attention_cluster_{record}_{dtype}"
grid = ["B * min(max(ceil(Wn + K, 128), 1), 8)", "ceil(H, 64)"]
cluster = ["min(max(ceil(Wn + K, 128), 1), 8)"]
block = [512]
shared = 217728
args = ["q", "window_pages", "window_slots", "window_count", "pages", "slots", "count", "sinks", "out", "H", "Wn", "K", "window_own", "own", "window_listed", "listed", "scale"]

[[variant]]
name = "cluster_1152"
doc = "1,152 keys and more for each thread block of a cluster: for many rows and heads"
arch = "sm_90a"
needs = ["size == 2", "B * 8 < 2147483648"]

[[variant.launch]]
entry = "record_attention_cluster_{record}_{dtype}"
grid = ["B * min(max(ceil(Wn + K, 1152), 1), 8)", "ceil(H, 64)"]
cluster = ["min(max(ceil(Wn + K, 1152), 1), 8)"]
block = [512]
shared = 217728
args = ["q", "window_pages", "window_slots", "window_count", "pages", "slots", "count", "sinks", "out", "H", "Wn", "K", "window_own", "own", "window_listed", "listed", "scale"]

[[variant]]
name = "pairs"
doc = "`cluster` for more than 64 heads: two thread blocks decode half of each tile and send it to each other; 320 keys and more for a pair"
arch = "sm_90a"
needs = ["size == 2", "B * 8 < 2147483648"]

[[variant.launch]]
entry = "record_attention_pairs_{record}_{dtype}"
grid = ["2 * B * min(max(ceil(Wn + K, 320), 1), 4)", "ceil(H, 128)"]
cluster = ["2 * min(max(ceil(Wn + K, 320), 1), 4)"]
block = [512]
shared = 217728
args = ["q", "window_pages", "window_slots", "window_count", "pages", "slots", "count", "sinks", "out", "H", "Wn", "K", "window_own", "own", "window_listed", "listed", "scale"]

[[variant]]
name = "pairs_1152"
doc = "1,152 keys and more for a pair: for many rows"
arch = "sm_90a"
needs = ["size == 2", "B * 8 < 2147483648"]

[[variant.launch]]
entry = "record_attention_pairs_{record}_{dtype}"
grid = ["2 * B * min(max(ceil(Wn + K, 1152), 1), 4)", "ceil(H, 128)"]
cluster = ["2 * min(max(ceil(Wn + K, 1152), 1), 4)"]
block = [512]
shared = 217728
args = ["q", "window_pages", "window_slots", "window_count", "pages", "slots", "count", "sinks", "out", "H", "Wn", "K", "window_own", "own", "window_listed", "listed", "scale"]

[[variant]]
name = "heads_16"
doc = "16 heads and 80 keys or more for a thread block, by mma.sync: for one row; the cluster of a row adds up through shared memory"
arch = "sm_90a"
needs = ["size == 2", "B * 8 < 2147483648"]

[[variant.launch]]
name = "attend"
entry = "record_attention_heads_16_{record}_{dtype}"
grid = ["B * min(max(ceil(Wn + K, 80), 1), 8)", "ceil(H, 16)"]
cluster = ["min(max(ceil(Wn + K, 80), 1), 8)"]
block = [512]
shared = 215040
args = ["q", "window_pages", "window_slots", "window_count", "pages", "slots", "count", "sinks", "out", "H", "Wn", "K", "window_own", "own", "window_listed", "listed", "scale"]

[[variant]]
name = "heads_32"
doc = "32 heads and 128 keys or more for a thread block: for few rows"
arch = "sm_90a"
needs = ["size == 2", "B * 8 < 2147483648"]

[[variant.launch]]
name = "attend"
entry = "record_attention_heads_32_{record}_{dtype}"
grid = ["B * min(max(ceil(Wn + K, 128), 1), 8)", "ceil(H, 32)"]
cluster = ["min(max(ceil(Wn + K, 128), 1), 8)"]
block = [512]
shared = 215040
args = ["q", "window_pages", "window_slots", "window_count", "pages", "slots", "count", "sinks", "out", "H", "Wn", "K", "window_own", "own", "window_listed", "listed", "scale"]

[[mutant]]
name = "sink_left_out"
doc = "the denominator lacks the sink"

[[mutant]]
name = "skipped_slot_read"
doc = "a slot of -1 reads slot 0"

[[mutant]]
name = "count_ignored"
doc = "slots behind the count are read"

[[mutant]]
name = "scales_of_first_slot"
doc = "every key has the scales of the first one of its page"

[[mutant]]
name = "pages_unpadded"
doc = "pages follow each other without the bytes that pad them"

[[mutant]]
name = "pool_of_first_row"
doc = "every row reads the pages of the first"

[[mutant]]
name = "scores_rounded"
doc = "scores are rounded to bf16"

[[mutant]]
name = "maximum_of_half"
doc = "the maximum is that of the first warp, or of the warpgroup's own keys"

[[mutant]]
name = "last_rank_lost"
doc = "the sums of the last thread block of the cluster that has keys are left out"
variants = ["cluster", "heads_16"]

[[mutant]]
name = "sink_of_each_rank"
doc = "each thread block of the cluster adds the sink"
variants = ["cluster", "heads_16"]

[[mutant]]
name = "weights_of_next_rank"
doc = "the results of a rank are multiplied by what those of the next one should be"
variants = ["cluster", "heads_16"]

[[mutant]]
name = "results_not_rescaled"
doc = "results keep their scale when the maximum grows"
variants = ["cluster", "heads_16"]

[[mutant]]
name = "half_of_scores"
doc = "scores are those of the first half of the channels"
variants = ["heads_16"]

[[mutant]]
name = "own_exponentials"
doc = "a warpgroup multiplies values of the other's keys by the exponentials of its own before"
variants = ["cluster"]

[[mutant]]
name = "tile_overwritten"
doc = "keys are decoded over those whose products are still under way"
variants = ["cluster", "pairs"]

[[mutant]]
name = "peers_keys_lost"
doc = "keys that the other thread block of a pair decoded are taken for missing"
variants = ["pairs"]

[[mutant]]
name = "page_offset_32"
doc = "the bytes before a page are counted in 32 bits"

[[mutant]]
name = "window_slot_none_read"
doc = "a slot of -1 in the list of a window reads slot 0"

[[mutant]]
name = "pairs_scale_too_large"
doc = "codes under a scale of 2^8 are decoded in pairs, which overflow"
variants = ["cluster", "heads_16"]

[[mutant]]
name = "nan_code_in_pairs"
doc = "a NaN code is looked for in the first half of a key only"
variants = ["cluster", "heads_16"]
*/

// reference: crates/operations/ops/record_attention.rs
//
// Keys of a row: those of its window, then its entries. Each part has a pool of pages, one for all rows or one for each, and a list
// of slots, or the slots from 0 on. A key is its record's decoded numbers, rounded to bfloat16, and is its own value.

#include "record/decode.cuh"
#include "record_attention/keys.cuh"
#include "record_attention/simple.cuh"
#if __CUDA_ARCH__ == 900
#include "record_attention/cluster.cuh"
#include "record_attention/few_heads.cuh"
#endif

#define RECORD_PARTS \
    const u8 *window_pages, const int *window_slots, const int *window_count, const u8 *pages, const int *slots, const int *count
#define RECORD_SIZES int heads, int window_places, int places, int window_own, int own, int window_listed, int listed, float scale
#define RECORD_BOTH                                                                                  \
    Part{window_pages, window_slots, window_count, window_own, window_listed, window_places}, Part { \
        pages, slots, count, own, listed, places                                                     \
    }

#define SIMPLE(R, DTYPE, T)                                                                                                     \
    KERNEL(record_attention_simple_##R##_##DTYPE, __launch_bounds__(256))(const T *q, RECORD_PARTS, const float *sinks, T *out, \
                                                                          float *scores, int rows, RECORD_SIZES) {              \
        simple<R>(q, RECORD_BOTH, sinks, out, scores, rows, heads, scale);                                                      \
    }
#define CLUSTER(R)                                                                                                          \
    KERNEL(record_attention_cluster_##R##_bf16, __launch_bounds__(512, 1))(const bf16 *q, RECORD_PARTS, const float *sinks, \
                                                                           bf16 *out, RECORD_SIZES) {                       \
        attend<R, false>(q, RECORD_BOTH, sinks, out, heads, scale);                                                         \
    }
#define PAIRS(R)                                                                                                          \
    KERNEL(record_attention_pairs_##R##_bf16, __launch_bounds__(512, 1))(const bf16 *q, RECORD_PARTS, const float *sinks, \
                                                                         bf16 *out, RECORD_SIZES) {                       \
        attend<R, true>(q, RECORD_BOTH, sinks, out, heads, scale);                                                        \
    }
#define FEW_HEADS(R, HEADS, TILE)                                                                                 \
    KERNEL(record_attention_heads_##HEADS##_##R##_bf16,                                                           \
           __launch_bounds__(512, 1))(const bf16 *q, RECORD_PARTS, const float *sinks, bf16 *out, RECORD_SIZES) { \
        few_heads::attend<HEADS, TILE, R>(q, RECORD_BOTH, sinks, few_heads::ToHalves{out, heads}, heads, scale);  \
    }
#define BOTH_FEW_HEADS(R) FEW_HEADS(R, 16, 160) FEW_HEADS(R, 32, 128)
#define ENTRIES(R)        \
    SIMPLE(R, bf16, bf16) \
    SIMPLE(R, f32, float)
#define FOR_RECORDS_OF_512(MACRO) \
    MACRO(v4_fp8) MACRO(v4_nvfp4) MACRO(v4_mxfp4) MACRO(v41_mxfp8) MACRO(v41_fp4) MACRO(v32_fp8) MACRO(v4_bf16)
FOR_RECORDS_OF_512(ENTRIES)
#if __CUDA_ARCH__ == 900
// A file that includes this one may want fewer, and has no pairs.
#ifndef FOR_RECORDS_ON_TENSOR_CORES
#define FOR_RECORDS_ON_TENSOR_CORES FOR_RECORDS_OF_512
FOR_RECORDS_OF_512(PAIRS)
#endif
FOR_RECORDS_ON_TENSOR_CORES(CLUSTER)
FOR_RECORDS_ON_TENSOR_CORES(BOTH_FEW_HEADS)
#endif
