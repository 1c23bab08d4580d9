// What compressors of `served` give: a record of the entry that a token completes, and in a sparse layer one of its index key. Beside
// them, in the same launch, heads of index queries become codes.
#pragma once

#include "decode_step/fused.cuh"

namespace entries {

using compressor_file::Four, compressor_file::STAGES;

// An entry goes to its slot, -1 is none; its stages may go nowhere.
template <class R> struct ToRecord {
    const int *slots;
    u8 *pages;
    int slot;

    __device__ __forceinline__ void begin(int row) {
        slot = slots[row];
    }

    __device__ __forceinline__ void none(const compressor_file::Step<float> &step, int row, int stage, int channel) const {
        if (step.stages != nullptr)
            Four::of(0.0f).store(step.stage(row, stage) + channel);
    }

    __device__ __forceinline__ void store(const compressor_file::Step<float> &step, int row, int, int channel,
                                          const Four (&stages)[STAGES]) const {
#pragma unroll
        for (int stage = 0; stage < STAGES && step.stages != nullptr; stage++)
            stages[stage].store(step.stage(row, stage) + channel);
        const Four &last = stages[STAGES - 1];
        const float4 x = make_float4(last.x[0], last.x[1], last.x[2], last.x[3]);
        if constexpr (R::DIM == INDEX_CHANNELS)
            store_record<R>(pages, slot, channel, index_key < R::Element::bits == 4 > (x));
        else
            store_record<R>(pages, slot, channel, to_bf16x4(x));
    }
};

// Asks for what a compressor may read of a row of its state, whatever the position, while the launches before still run: a share of it by
// each of some thread blocks.
__device__ __forceinline__ void request(const compressor_file::Step<float> &step, int row, int share, int shares) {
    const int bytes = step.slots() * step.width() * 4 / shares;
    const size_t first = (size_t)row * step.slots() * step.width() + share * (bytes / 4);
    if (threadIdx.x == 0)
        tma_prefetch_l2(step.ring_kv + first, bytes), tma_prefetch_l2(step.ring_gate + first, bytes);
}

// A compressor's own arguments; `stages` may be null.
#define COMPRESSOR(PREFIX)                                                                                     \
    const float *PREFIX##kv, const float *PREFIX##gate, const float *PREFIX##ape, const float *PREFIX##weight, \
        float *PREFIX##ring_kv, float *PREFIX##ring_gate, float *PREFIX##stages, u8 *PREFIX##pages
#define STEP_OF(PREFIX, RATE, OVERLAP, DIM)                                                                                     \
    compressor_file::Step<float> {                                                                                              \
        PREFIX##kv, PREFIX##gate, PREFIX##ape, PREFIX##weight, cos, sin, position, PREFIX##ring_kv, PREFIX##ring_gate, nullptr, \
            PREFIX##stages, rows, RATE, DIM, rotated, 0, OVERLAP, eps                                                           \
    }

// Of each row, the first thread block has the entry, the second its index key, and each of the others four heads of queries.
#define SPARSE_ENTRY(R, I, CODED)                                                                                               \
    KERNEL(decode_step_sparse_##R##_##I,                                                                                        \
           __launch_bounds__(R::DIM / 4))(COMPRESSOR(), COMPRESSOR(key_), const int *slots, const float *cos, const float *sin, \
                                          const int *position, int rows, int rotated, float eps, float *query, CODED *coded,    \
                                          float *head_weights, const float *cos_t, const float *sin_t, int heads) {             \
        if (blockIdx.x == 0) {                                                                                                  \
            const auto step = STEP_OF(, 4, 1, R::DIM);                                                                          \
            request(step, blockIdx.y, 0, 1);                                                                                    \
            compressor_file::warps(step, ToRecord<R>{slots, pages}, blockIdx.y);                                                \
        } else if (blockIdx.x > 1)                                                                                              \
            index_query(query, coded, head_weights, cos_t, sin_t, heads, rotated, blockIdx.x - 2);                              \
        else if (threadIdx.x < I::DIM / 4) {                                                                                    \
            const auto step = STEP_OF(key_, 4, 1, I::DIM);                                                                      \
            request(step, blockIdx.y, 0, 1);                                                                                    \
            compressor_file::warps(step, ToRecord<I>{slots, key_pages}, blockIdx.y);                                            \
        }                                                                                                                       \
    }
#define RECORD_ENTRIES(R)                                                                                                     \
    SPARSE_ENTRY(R, index_fp8, u32)                                                                                           \
    SPARSE_ENTRY(R, index_mxfp4, uint2)                                                                                       \
    KERNEL(decode_step_heavy_##R, __launch_bounds__(256))(COMPRESSOR(), const int *slots, const float *cos, const float *sin, \
                                                          const int *position, int rows, int rotated, float eps) {            \
        const auto step = STEP_OF(, 128, 0, R::DIM);                                                                          \
        request(step, blockIdx.x / 8, blockIdx.x % 8, 8);                                                                     \
        compressor_file::cluster(step, ToRecord<R>{slots, pages});                                                            \
    }
FOR_RECORDS_ON_TENSOR_CORES(RECORD_ENTRIES)
#undef RECORD_ENTRIES
#undef SPARSE_ENTRY
#undef STEP_OF
#undef COMPRESSOR

} // namespace entries
