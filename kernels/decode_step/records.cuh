/*
[[variant]]
name = "records"
doc = "as `simple`; keys are stored as KV records in pages, and attention reads these"
like = "simple"
needs = ["records == 1", "indexed == 0", "eight == 0"]
in_sequence = { begin = "begin places", push = "push window_write", tap_csa_entry = "tap_csa_entry entry_row csa_write", tap_hca_entry = "tap_hca_entry entry_row hca_write" }
more_scratch = [
    { name = "row", bytes = "B * D * 2" }, { name = "window_count", bytes = "B * 4" }, { name = "chosen_count", bytes = "B * 4" },
    { name = "window_at", bytes = "B * 4" }, { name = "csa_at", bytes = "B * 4" }, { name = "hca_at", bytes = "B * 4" },
    { name = "unread", bytes = "B * max(Ns, Nh) * D * 4" },
]

# counts of keys, and the slots that this token's vectors go to
[[variant.launch]]
name = "places"
entry = "decode_step_places"
grid = ["ceil(B, 128)"]
block = [128]
args = [
    "position", "window_count", "chosen_count", "window_at", "csa_at", "hca_at", "B", "Wn", "topk", "ms", "mh",
    "window_pages_of_row", "csa_pages_of_row", "hca_pages_of_row",
]
[[variant.launch]]
name = "push"
entry = "decode_step_row"
args = ["kv_row", "row", "D", "D", "0"]
[[variant.launch]]
name = "window_write"
call = "record_write.simple"
with = [
    { form = "raw", x = "row", weight = "ones", positions = "window_at", cos_sin = "cos", slots = "window_at" },
    { pages = "window_pages[@layers]", C = "D", slot_bytes = "4" },
]
[[variant.launch]]
name = "entry_row"
entry = "decode_step_row"
grid = ["B"]
block = [128]
args = ["stages", "row", "D", "3 * D", "2 * D"]
[[variant.launch]]
name = "csa_write"
call = "record_write.simple"
with = [
    { form = "raw", x = "row", weight = "ones", positions = "csa_at", cos_sin = "cos", slots = "csa_at" },
    { pages = "csa_pages[(@layers - lead) / 2]", C = "D", slot_bytes = "4" },
]
[[variant.launch]]
name = "hca_write"
call = "record_write.simple"
with = [
    { form = "raw", x = "row", weight = "ones", positions = "hca_at", cos_sin = "cos", slots = "hca_at" },
    { pages = "hca_pages[min(@layers, lead) + max(0, @layers - lead) / 2]", C = "D", slot_bytes = "4" },
]

# the compressors' own entries are not read
[[variant.launch]]
name = "csa_compress"
with = [
    { kv = "values", gate = "logits_of_slots", ape = "csa_ape[(@layers - lead) / 2]" },
    { weight = "csa_norm[(@layers - lead) / 2]", ring_kv = "csa_ring_kv[(@layers - lead) / 2]" },
    { ring_gate = "csa_ring_gate[(@layers - lead) / 2]", entries = "unread", m = "ms", N = "Ns", overlap = "1" },
]
[[variant.launch]]
name = "hca_compress"
with = [
    { kv = "values", gate = "logits_of_slots", ape = "hca_ape[min(@layers, lead) + max(0, @layers - lead) / 2]" },
    { weight = "hca_norm[min(@layers, lead) + max(0, @layers - lead) / 2]" },
    { ring_kv = "hca_ring_kv[min(@layers, lead) + max(0, @layers - lead) / 2]" },
    { ring_gate = "hca_ring_gate[min(@layers, lead) + max(0, @layers - lead) / 2]" },
    { entries = "unread", m = "mh", N = "Nh", overlap = "0" },
]
[[variant.launch]]
name = "attend_sparse"
call = "record_attention.simple"
with = [
    { q = "query", window_pages = "window_pages[@layers]", window_slots = "chosen", window_count = "window_count" },
    { pages = "csa_pages[(@layers - lead) / 2]", slots = "chosen", count = "chosen_count", sinks = "sinks[@layers]" },
    { out = "heads", K = "topk", window_own = "window_pages_of_row", own = "csa_pages_of_row", window_listed = "0" },
    { listed = "1", scale = "attention_scale" },
]
[[variant.launch]]
name = "attend_heavy"
call = "record_attention.simple"
with = [
    { q = "query", window_pages = "window_pages[@layers]", window_slots = "chosen", window_count = "window_count" },
    { pages = "hca_pages[min(@layers, lead) + max(0, @layers - lead) / 2]", slots = "chosen", count = "heavy_count" },
    { sinks = "sinks[@layers]", out = "heads", K = "Nh", window_own = "window_pages_of_row", own = "hca_pages_of_row" },
    { window_listed = "0", listed = "0", scale = "attention_scale" },
]

[[mutant]]
name = "entry_slot"
doc = "an entry's record is stored one slot too far"
variants = ["records"]

[[mutant]]
name = "window_after_entries"
doc = "the window is counted without the vector of this token"
variants = ["records"]
*/

// What a step does besides where keys are KV records.
#pragma once

#include "decode_step/step.cuh"

// Reads positions: how many slots of the window and of the chosen entries attention reads, and the slots, among those of all rows, that
// records of this token go to: that of its vector, and those of the entries that it completes. -1 is none.
KERNEL(decode_step_places, __launch_bounds__(128))(const int *position, int *window_count, int *chosen_count, int *window_at,
                                                   int *sparse_at, int *heavy_at, int rows, int window, int chosen,
                                                   int sparse_rate, int heavy_rate, int window_pages, int sparse_pages,
                                                   int heavy_pages) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    launch_dependent_grids();
    wait_on_dependent_grids();
    if (row >= rows)
        return;
    const int at = position[row], page = 64;
#ifdef MUTANT_WINDOW_AFTER_ENTRIES
    window_count[row] = min(max(at, 0), window);
#else
    window_count[row] = min(at + 1, window);
#endif
    chosen_count[row] = at < 0 ? 0 : chosen;
    window_at[row] = at < 0 ? -1 : row * window_pages * page + window_slot(at, window);
    const auto entry = [&](int rate, int pages) {
        if (at < 0 || (at + 1) % rate != 0)
            return -1;
        const int slot = (at + 1) / rate - 1;
#ifdef MUTANT_ENTRY_SLOT
        return (row * pages * page + slot + 1) % (rows * pages * page);
#else
        return row * pages * page + slot;
#endif
    };
    sparse_at[row] = entry(sparse_rate, sparse_pages);
    heavy_at[row] = entry(heavy_rate, heavy_pages);
}

// Rounds a vector of each row to bfloat16; rows are `stride` elements apart and begin at `first`.
KERNEL(decode_step_row, __launch_bounds__(128))(const float *from, bf16 *to, int cols, int stride, int first) {
    const int row = blockIdx.x;
    for (int col = threadIdx.x; col < cols; col += blockDim.x)
        from_f32(to[(size_t)row * cols + col], from[(size_t)row * stride + first + col]);
}
