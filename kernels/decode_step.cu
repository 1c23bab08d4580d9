/*
[[variant]]
name = "simple"
doc = "a launch for each operation, by the simplest kernel of each"
needs = ["records == 0", "eight == 0"]

[[variant]]
name = "records"
doc = "as `simple`; keys are stored as KV records in pages, and attention reads these"
needs = ["records == 1", "indexed == 0", "eight == 0"]

[[variant]]
name = "indexed"
doc = "as `records`; index keys are records too, and tensor cores score them"
needs = ["records == 1", "indexed == 1", "DI == 128", "eight == 0"]
arch = "sm_90a"

[[variant]]
name = "persistent"
doc = "a cluster of thread blocks runs all layers for one sequence, and exchanges vectors through shared memory; small models only. The number of blocks follows from that of the sequences, and changes no bits"
needs = [
    "records == 0 && eight == 0 && routed_bits == weight_bits",
    "C <= 64 && Rq <= 64 && D <= 512 && H <= 8 && HD <= 1024 && DI <= 128 && HI <= 8 && HI * DI <= 512 && G * Ro <= 64",
    "R <= 64 && E <= 32 && K <= 4 && K <= E && (K + 1) * I <= 256 && I <= 64 && V <= 256 && topk <= 64 && 2 * ms <= 128 && mh <= 128 && H + HI <= 16",
    "C % 4 == 0 && Rq % 4 == 0 && D % 8 == 0 && DI % 8 == 0 && R % 8 == 0 && G * Ro % 4 == 0 && I % 4 == 0",
    "81920 + 4 * (Ns + Ns / 32 + 1 + H * (Wn + max(Nh, topk))) <= 232448",
]

[[variant]]
name = "w8a8"
doc = "as `simple`; attention's products are of E4M3 codes with a scale for 128 columns and E4M3 weights with one for 128 × 128, on tensor cores"
needs = ["records == 0", "eight == 1", "sixteen == 0", "HD / G % 16 == 0"]
arch = "sm_90a"

[[variant]]
name = "w8a8_records"
doc = "as `records`; attention's products are those of `w8a8`"
needs = ["records == 1", "indexed == 0", "eight == 1", "sixteen == 0", "HD / G % 16 == 0"]
arch = "sm_90a"

[[variant]]
name = "w8a8_indexed"
doc = "as `indexed`; attention's products are those of `w8a8`"
needs = ["records == 1", "indexed == 1", "DI == 128", "eight == 1", "sixteen == 0", "HD / G % 16 == 0"]
arch = "sm_90a"

[[variant]]
name = "served"
doc = "attention's products of E4M3 codes, all others and queries bfloat16, experts MXFP4, keys and index keys records: the operations' fast kernels; 16 heads of attention for a thread block, and one thread block for a row of the choice: for few rows of up to 65,536 tokens"
needs = [
    "records == 1 && indexed == 1 && DI == 128 && ms == 4 && mh == 128",
    "D == 512 && R % 4 == 0 && R <= 512 && sixteen == 1",
    "HD / G % 128 == 0 && Rq <= 4096 && C % 8 == 0 && C <= 4096 && E <= 256 && K <= 32",
]
arch = "sm_90a"

[[variant]]
name = "served_many"
doc = "as `served`, with 64 heads of attention for a thread block, and two thread blocks for a row's choice: for many rows"
needs = [
    "records == 1 && indexed == 1 && DI == 128 && ms == 4 && mh == 128",
    "D == 512 && R % 4 == 0 && R <= 512 && sixteen == 1",
    "HD / G % 128 == 0 && Rq <= 4096 && C <= 7296",
]
arch = "sm_90a"

[[mutant]]
name = "window_slot"
doc = "a vector is stored one slot too far in the window"

[[mutant]]
name = "count_of_last_step"
doc = "entries are counted without the one that this token completes"

[[mutant]]
name = "one_stream"
doc = "the last stream begins with zeros"

[[mutant]]
name = "position_kept"
doc = "positions stay after the first run"

[[mutant]]
name = "own_token_lost"
doc = "a row reads the token of the row before it"

[[mutant]]
name = "rope_of_row_0"
doc = "all rows have the angles of the first"

[[mutant]]
name = "heavy_as_sparse"
doc = "heavy entries are counted as sparse ones are"

[[mutant]]
name = "entry_slot"
doc = "an entry's record is stored one slot too far"
variants = ["records"]

[[mutant]]
name = "window_after_entries"
doc = "the window is counted without the vector of this token"
variants = ["records"]

[[mutant]]
name = "query_scale_dropped"
doc = "the weight of an index head lacks the scale of its query"
variants = ["indexed"]

[[mutant]]
name = "key_unrotated"
doc = "index keys are stored as they are, and queries rotated"
variants = ["indexed"]

[[mutant]]
name = "last_butterfly_lost"
doc = "the rotation lacks its last step"
variants = ["indexed"]

[[mutant]]
name = "absent_pooled_as_zeros"
doc = "tokens before the first are pooled, as zeros"
variants = ["persistent"]

[[mutant]]
name = "entry_turned_late"
doc = "entries have the angles of the last token of their window"
variants = ["persistent"]

[[mutant]]
name = "last_key_lost"
doc = "the last key is not read"
variants = ["persistent"]

[[mutant]]
name = "shared_expert_lost"
doc = "the shared expert is not added"
variants = ["persistent"]

[[mutant]]
name = "codes_toward_zero"
doc = "codes are rounded toward zero"
variants = ["w8a8"]

[[mutant]]
name = "codes_halved"
doc = "codes are those of numbers half as large"
variants = ["w8a8"]

[[mutant]]
name = "last_block_unscaled"
doc = "numbers of a last block that is not whole become codes without their scale"
variants = ["w8a8"]

[[mutant]]
name = "weights_of_group_0"
doc = "all groups of heads have the weights of the first"
variants = ["w8a8"]

[[mutant]]
name = "scales_of_row_0"
doc = "all groups of heads, and all rows, have the scales of the first row's first group"
variants = ["w8a8"]

[[mutant]]
name = "neighbours_scale"
doc = "weights have the scale of the next block of columns"
variants = ["w8a8"]

[[mutant]]
name = "scaled_in_turn"
doc = "a sum of products is multiplied by both scales in turn, and not by their product"
variants = ["w8a8"]

[[mutant]]
name = "groups_scales_shared"
doc = "all rows of a group have the scales of its first row"
variants = ["served", "served_many"]

[[mutant]]
name = "products_exchanged"
doc = "of a launch that has several products, those after the first have neighbouring tiles of weights exchanged"
variants = ["served", "served_many"]

[[mutant]]
name = "sums_before_post"
doc = "the mixture's weights are those of streams without what the block before gave"
variants = ["served", "served_many"]

[[mutant]]
name = "streams_not_kept"
doc = "streams stay as they are, and only the mixture has what the block before gave"
variants = ["served", "served_many"]

[[mutant]]
name = "heads_turned_on"
doc = "heads are turned on by RoPE, and not back"
variants = ["served", "served_many"]

[[mutant]]
name = "norm_of_first_warp"
doc = "a low-rank query has the norm of its first 128 columns"
variants = ["served", "served_many"]

[[mutant]]
name = "half_cut"
doc = "what becomes bfloat16 is cut off, and not rounded"
variants = ["served", "served_many"]

[[mutant]]
name = "scores_of_first_warp"
doc = "experts have the scores of the first 256 channels"
variants = ["served"]

[[mutant]]
name = "norm_of_half"
doc = "a mixture has the norm of the first 2,048 channels"
variants = ["served"]

[[mutant]]
name = "experts_of_first_lanes"
doc = "no expert after the 32nd is chosen"
variants = ["served"]

[[mutant]]
name = "first_routes"
doc = "the thread block routes whose scores are there first"
variants = ["served"]

[[mutant]]
name = "last_group_not_packed"
doc = "the last expert of a single row reads what was there before"
variants = ["served"]
*/

// reference: reference/paths/deepseek_v4/model.rs, reference/paths/deepseek_v4/layer.rs
//
// A decode step of B sequences. The operations' own files are included, each in a namespace; here is what lies between them. State and
// weights are [layers, ..], of which a launch gets the part of its layer.

#include "decode_step/operations.cuh"

#include "decode_step/step.cuh"

#include "decode_step/records.cuh"

#include "decode_step/indexed.cuh"

#include "decode_step/persistent.cuh"

#include "decode_step/eight.cuh"

#include "decode_step/served.cuh"

#include "decode_step/served_many.cuh"
