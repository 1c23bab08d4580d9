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
    consume<F>(operands, ring, [&](int4 tile, int block, int token, int place, float weight, float upper, float lower) {
        const int channel = block * 128 + row_of_thread();
        const float tensor = tensors[tile.x];
        if (channel < D)
            parts[size_t(place) * D + channel] = upper * tensor;
        if (channel + 8 < D)
            parts[size_t(place) * D + channel + 8] = lower * tensor;
    });
}

// A thread for a channel of a row. What lies between the products is 0 where no expert is; nobody reads it.
template <class Y>
__device__ __forceinline__ void sum(const float *parts, const int *experts, const float *weights, Y *y, bf16 *hidden, int B,
                                    int K, int D, int I) {
    __shared__ int slots[257];
    const int channel = blockIdx.x * 256 + threadIdx.x;
    launch_dependent_grids();
    wait_on_dependent_grids();
    for (int row = blockIdx.y; row < rows_of_y(B); row += gridDim.y) {
        const int *const own = experts + size_t(row) * K;
        const int slot = threadIdx.x;
        const bool added = slot < K && expert_of(own[slot]) >= 0;
        if (added)
            slots[rank_of(own, slot, K)] = slot;
        const int sent = __syncthreads_count(added);
        if (threadIdx.x == 0)
            slots[sent] = K;
        __syncthreads();
        if (channel < D) {
            float sum = 0.0f;
            for (int i = 0; i <= sent; i++) {
                const float part = parts[(size_t(row) * (K + 1) + slots[i]) * D + channel];
                sum += part * late_weight(weights + size_t(row) * K, slots[i], K);
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
