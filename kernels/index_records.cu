/*
[[variant]]
name = "simple"
doc = "a warpgroup for each page of 64 keys of a row, 64 heads at a time, nothing copied ahead"
arch = "sm_90a"

[[variant.launch]]
entry = "index_records_simple_{record}"
grid = ["ceil(N, 64)", "min(B, 65535)"]
block = [128]
args = ["q", "head_weights", "pages", "table", "count", "scores", "B", "H", "N", "scale"]

[[variant]]
name = "tensor"
doc = "64 heads; a warpgroup has an equal share of all pages of all rows, and copies of the next two or three pages are under way"
arch = "sm_90a"
needs = ["H == 64"]

[[variant.launch]]
entry = "index_records_tensor_{record}"
grid = ["min(sms, ceil(B * ceil(N, 64), 4))"]
block = [512]
shared = 135168
args = ["q", "head_weights", "pages", "table", "count", "scores", "B", "N", "scale"]

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
name = "table_ignored"
doc = "pages are read in the order of rows, and not where the table says"

[[mutant]]
name = "last_head_lost"
doc = "the last head is left out"

[[mutant]]
name = "neighbours_scale"
doc = "a key has the scales of its neighbour"

[[mutant]]
name = "heads_in_one_order"
doc = "partial sums are added one after the other, and not in pairs"

[[mutant]]
name = "rest_left_as_it_was"
doc = "entries that a row may not see are not written"

[[mutant]]
name = "query_kept"
doc = "a warpgroup keeps the query of its first row for the rows that follow"
variants = ["tensor"]

[[mutant]]
name = "last_step_skipped"
doc = "the last channels of a key are left out"

[[mutant]]
name = "pool_offset_32"
doc = "the bytes before a page are counted in 32 bits"
*/

// reference: crates/operations/ops/index_records.rs
//
// q [B, H, 128] in E4M3 or bfloat16, pages of records as crates/core/formats has them, table [B, ceil(N, 64)], scores [B, N]. Keys are rows of
// the instruction and heads its columns. A thread has the heads h of which h % 8 / 2 is its place among four lanes, in ascending
// order; the sums of the four lanes are added in pairs. So the bits of a score depend on its row and its key only.

#if __CUDA_ARCH__ == 900
#include "index_records/tensor.cuh"

#define ENTRIES(RECORD)                                                                                                        \
    KERNEL(index_records_simple_##RECORD, __launch_bounds__(128))(const u8 *q, const float *head_weights, const u8 *pages,     \
                                                                  const int *table, const int *count, float *scores, int B,    \
                                                                  int H, int N, float scale) {                                 \
        simple<RECORD>(q, head_weights, pages, table, count, scores, B, H, N, scale);                                          \
    }                                                                                                                          \
    KERNEL(index_records_tensor_##RECORD, __launch_bounds__(512, 1))(const u8 *q, const float *head_weights, const u8 *pages,  \
                                                                     const int *table, const int *count, float *scores, int B, \
                                                                     int N, float scale) {                                     \
        tensor<RECORD>(q, head_weights, pages, table, count, scores, B, N, scale);                                             \
    }
ENTRIES(index_fp8)
ENTRIES(index_mxfp4)
#endif
