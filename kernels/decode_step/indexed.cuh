/*
[[variant]]
name = "indexed"
doc = "as `records`; index keys are records too, and tensor cores score them"
like = "records"
arch = "sm_90a"
needs = ["records == 1", "indexed == 1", "DI == 128", "eight == 0"]
in_sequence = { places = "places table", tap_index_key = "tap_index_key index_row index_write", index_weights = "index_weights index_query" }
more_scratch = [
    { name = "index_table", bytes = "B * csa_pages_of_row * 4" }, { name = "coded_query", bytes = "B * HI * DI * 2" },
]

# Index keys have as many pages as the entries that they are of, so that a slot serves both.
[[variant.launch]]
name = "table"
entry = "decode_step_table"
grid = ["ceil(B * csa_pages_of_row, 128)"]
block = [128]
args = ["index_table", "B * csa_pages_of_row"]
[[variant.launch]]
name = "index_compress"
with = [
    { kv = "values", gate = "logits_of_slots", ape = "index_ape[(@layers - lead) / 2]" },
    { weight = "index_norm[(@layers - lead) / 2]", ring_kv = "index_ring_kv[(@layers - lead) / 2]" },
    { ring_gate = "index_ring_gate[(@layers - lead) / 2]", entries = "unread", m = "ms", D = "DI", N = "Ns", overlap = "1" },
]
[[variant.launch]]
name = "index_row"
entry = "decode_step_index_row_{index}"
grid = ["B"]
block = [128]
args = ["stages", "row"]
[[variant.launch]]
name = "index_write"
call = "record_write.simple"
with = [
    { record = "{index}", form = "raw", x = "row", weight = "ones", positions = "csa_at", cos_sin = "cos", slots = "csa_at" },
    { pages = "index_pages[(@layers - lead) / 2]", C = "DI", slot_bytes = "4" },
]
[[variant.launch]]
name = "index_query"
entry = "decode_step_index_query_{index}"
grid = ["HI", "B"]
block = [128]
args = ["index_query", "coded_query", "head_weights", "HI"]
[[variant.launch]]
name = "index_score"
call = "index_records.simple"
with = [
    { record = "{index}", q = "coded_query", pages = "index_pages[(@layers - lead) / 2]", table = "index_table" },
    { count = "sparse_count", H = "HI", N = "Ns", scale = "index_scale" },
]

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
*/

// What a step does besides where index keys are records.
#pragma once

#include "decode_step/records.cuh"

constexpr int INDEX_CHANNELS = 128;

// A row's pages follow each other, and those of the row before.
extern "C" __global__ void __launch_bounds__(128) decode_step_table(int *table, int pages) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < pages)
        table[at] = at;
}

// Rotates 128 numbers by a Hadamard matrix, one for each thread: butterflies, then one multiplication by 128^-1/2.
__device__ __forceinline__ float rotated(float x) {
    __shared__ float shared[INDEX_CHANNELS];
    const int own = threadIdx.x;
#ifdef MUTANT_LAST_BUTTERFLY_LOST
    const int last = INDEX_CHANNELS / 2;
#else
    const int last = INDEX_CHANNELS;
#endif
    for (int half = 1; half < last; half *= 2) {
        shared[own] = x;
        __syncthreads();
        const float other = shared[own ^ half];
        x = own & half ? other - x : x + other;
        __syncthreads();
    }
    return x * (1.0f / sqrtf((float)INDEX_CHANNELS));
}

// The key of the entry that a token completes, as it is stored: rotated if it will have four bits, and rounded to bfloat16.
template <bool ROTATED> __device__ __forceinline__ void index_row(const float *stages, bf16 *to) {
    const int row = blockIdx.x, at = threadIdx.x;
    const float x = stages[((size_t)row * 3 + 2) * INDEX_CHANNELS + at];
#ifdef MUTANT_KEY_UNROTATED
    from_f32(to[(size_t)row * INDEX_CHANNELS + at], x);
#else
    from_f32(to[(size_t)row * INDEX_CHANNELS + at], ROTATED ? rotated(x) : x);
#endif
}

extern "C" __global__ void __launch_bounds__(128) decode_step_index_row_index_fp8(const float *stages, bf16 *to) {
    index_row<false>(stages, to);
}

extern "C" __global__ void __launch_bounds__(128) decode_step_index_row_index_mxfp4(const float *stages, bf16 *to) {
    index_row<true>(stages, to);
}

// A head of a query as E4M3 under a power of two, which its weight takes.
extern "C" __global__ void __launch_bounds__(128)
    decode_step_index_query_index_fp8(const float *query, u8 *coded, float *head_weights, int heads) {
    const size_t head = (size_t)blockIdx.y * heads + blockIdx.x;
    if (threadIdx.x > 0)
        return;
    const float *const from = query + head * INDEX_CHANNELS;
    fp8_b128::Stored scale;
    quantize_block<fp8_b128>(0, INDEX_CHANNELS, coded + head * INDEX_CHANNELS, scale, fp8_b128::Level(nullptr),
                             [=](int i) { return from[i]; });
#ifndef MUTANT_QUERY_SCALE_DROPPED
    head_weights[head] *= fp8_b128::Rule::decode(scale, fp8_b128::Level(nullptr));
#endif
}

// A head of a query, rotated, as the bfloat16 numbers that its MXFP4 codes stand for.
extern "C" __global__ void __launch_bounds__(128)
    decode_step_index_query_index_mxfp4(const float *query, bf16 *coded, float *, int heads) {
    __shared__ float values[INDEX_CHANNELS];
    __shared__ u8 codes[INDEX_CHANNELS / 2];
    __shared__ mxfp4::Stored scales[INDEX_CHANNELS / mxfp4::width];
    const size_t head = (size_t)blockIdx.y * heads + blockIdx.x;
    const int at = threadIdx.x;
    values[at] = rotated(query[head * INDEX_CHANNELS + at]);
    __syncthreads();
    if (at % mxfp4::width == 0)
        quantize_block<mxfp4>(at, at + mxfp4::width, codes, scales[at / mxfp4::width], mxfp4::Level(nullptr),
                              [&](int i) { return values[i]; });
    __syncthreads();
    const float scale = mxfp4::Rule::decode(scales[at / mxfp4::width], mxfp4::Level(nullptr));
    from_f32(coded[head * INDEX_CHANNELS + at], E2m1::decode(codes[at / 2] >> E2m1::shift(at % 2)) * scale);
}
