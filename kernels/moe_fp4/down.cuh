// The second product of all experts, and the sum of a row's experts.
#pragma once

#include "moe_fp4/pipeline.cuh"

// parts [B, K + 1, D].
template <class F> __device__ __forceinline__ void down(const Operands &operands, const float *tensors, float *parts, int D) {
    extern __shared__ __align__(1024) u8 shared[];
    __shared__ u64 barriers[2 * STAGES];
    const Ring ring(shared, barriers);
    if (threadIdx.x == CONSUMERS)
        produce<F, true>(operands, ring);
    if (threadIdx.x >= CONSUMERS)
        return;
    wait_on_dependent_grids();
    launch_dependent_grids();
    const auto scale = [&](int expert) { return tensors[expert]; };
    consume<F>(operands, ring, scale, [&](int4 tile, float tensor, int block, int token, int2 entry, float upper, float lower) {
        const int channel = block * 128 + row_of_thread();
        if (channel < D)
            parts[size_t(entry.x) * D + channel] = upper * tensor;
        if (channel + 8 < D)
            parts[size_t(entry.x) * D + channel + 8] = lower * tensor;
    });
}

// The slots of a row that have an expert, in the order in which they are added, before that of the shared expert, and their number.
// By all threads.
__device__ __forceinline__ int slots_of_row(const int *experts, int K, int (&slots)[257]) {
    __shared__ int chosen[256];
    const int slot = threadIdx.x;
    const int expert = slot < K ? expert_of(ld_relaxed((const u32 *)experts + slot)) : -1;
    chosen[slot] = expert;
    const int sent = __syncthreads_count(expert >= 0);
    if (expert >= 0)
        slots[rank_of(chosen, slot, K)] = slot;
    if (slot == 0)
        slots[sent] = K;
    __syncthreads();
    return sent;
}

// A thread for a channel of a row. What lies between the products is 0 where no expert is; nobody reads it.
//
// Experts are read before the launch before this one has ended: those who wrote them had ended when it let this one start.
template <class Y>
__device__ __forceinline__ void sum(const float *parts, const int *experts, const float *weights, Y *y, bf16 *hidden, int B,
                                    int K, int D, int I) {
    __shared__ int slots[257];
    constexpr int AT_ONCE = 8; // parts that are asked for before the first is added
    const int channel = blockIdx.x * 256 + threadIdx.x;
    launch_dependent_grids();
    for (int row = blockIdx.y; row < rows_of_y(B); row += gridDim.y) {
        const int *const own = experts + size_t(row) * K;
        const int sent = slots_of_row(own, K, slots);
        if (row == int(blockIdx.y))
            wait_on_dependent_grids();
        if (channel < D) {
            float sum = 0.0f;
            for (int first = 0; first <= sent; first += AT_ONCE) {
                float some[AT_ONCE];
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++)
                    some[i] = parts[(size_t(row) * (K + 1) + slots[min(first + i, sent)]) * D + channel];
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++)
                    if (first + i <= sent)
                        sum += some[i] * late_weight(weights + size_t(row) * K, slots[first + i], K);
            }
            from_f32(y[size_t(row) * D + channel], sum);
        }
        for (int slot = 0; hidden != nullptr && slot < K; slot++)
            if (expert_of(own[slot]) < 0)
                for (int unit = channel; unit < I; unit += gridDim.x * 256)
                    hidden[(size_t(row) * (K + 1) + slot) * I + unit] = {0};
        __syncthreads();
    }
}
