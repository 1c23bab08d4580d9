// Weights go from memory to shared memory as codes, and from there into the registers that wgmma takes as A. Two warpgroups have 64
// rows each. A thread block has up to 1024 columns; those of a cluster add their sums in ascending order.
#pragma once

#include "fp4_gemm/decode.cuh"

// Bytes of a slot for the weights of 128 rows and 128 columns.
constexpr int TILE = 9216;

__device__ __forceinline__ float ld_shared_cluster(u32 from) {
    float x;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
    return x;
}

template <class F, int T, class Y>
__device__ void registers(const bf16 *x, const u8 *packed, const u32 *general, const float *w_tensor, Y *y, int B, int N, int K) {
    extern __shared__ __align__(1024) u8 slots[];
    constexpr int SLOT = TILE + T * 256, SLOTS = T == 64 ? 4 : T == 32 ? 6 : 8;
    constexpr int USED = 2 * UNIT_BYTES<F>;
    const int part = blockIdx.x, parts = gridDim.x, n0 = blockIdx.y * 128, b0 = blockIdx.z * T;
    const int all = (K + 127) / 128, count = min(8, all - part * 8), last = columns(K);
    const int group = threadIdx.x / 128, thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    const u8 *from = packed + (size_t(blockIdx.y) * all + part * 8) * USED;
    const bool is_general = same_of_warp(general[blockIdx.y]);
    const u32 base = smem_address(slots);

    auto load = [&](int stage, int slot) {
        const u32 to = base + slot * SLOT;
        for (int i = threadIdx.x; i < USED / 16; i += 256)
            cp_async_16_zfill(to + i * 16, from + size_t(stage) * USED + i * 16, true);
        for (int i = threadIdx.x; i < T * 16; i += 256) {
            const int token = i / 16, chunk = i % 16, col = part * 1024 + stage * 128 + chunk * 8;
            const bool there = b0 + token < B && col < last;
            cp_async_16_zfill(to + TILE + chunk / 8 * T * 128 + token * 128 + ((chunk ^ token) & 7) * 16,
                              there ? x + size_t(b0 + token) * K + col : x, there);
        }
    };
    for (int s = 0; s < SLOTS; s++) {
        if (s < count)
            load(s, s);
        cp_async_commit_group();
    }

    float sums[T / 2];
#pragma unroll
    for (int i = 0; i < T / 2; i++)
        sums[i] = 0.0f;
    u32 a[2][4][4];
    for (int stage = 0; stage < count; stage++) {
        // With eight slots nothing is copied later, and groups that are empty count.
        cp_async_wait_group<SLOTS == 8 ? 7 : SLOTS - 3>();
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        // All are past the products of the stage before the last one.
        if (stage >= 2 && stage - 2 + SLOTS < count) {
#ifdef MUTANT_SLOT_OVERWRITTEN
            load(stage - 2 + SLOTS, (stage - 1) % SLOTS);
#else
            load(stage - 2 + SLOTS, (stage - 2) % SLOTS);
#endif
        }
        cp_async_commit_group();
        const int slot = stage % SLOTS;
        const u8 *const units = slots + slot * SLOT;
        const u64 tokens = wgmma_descriptor(base + slot * SLOT + TILE);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const Packed<F> weights(units + half * UNIT_BYTES<F>);
            // The registers below are free once the products before the last four are done.
            wgmma_wait_group<1>();
            if (is_general)
                decode_chunk<F, true>(a[half], weights);
            else
                decode_chunk<F, false>(a[half], weights);
            wgmma_fence();
#pragma unroll
            for (int step = 0; step < 4; step++)
                Step<Bf16, T>::registers(sums, a[half][step], tokens + half * T * 8 + step * 2);
            wgmma_commit_group();
        }
        wgmma_wait_group<0>();
    }

    // The sums of a block, [T, 132], in place of the first slots.
    __syncthreads();
    float *mine = (float *)slots;
#pragma unroll
    for (int i = 0; i < T / 2; i++)
        mine[(i / 4 * 8 + 2 * (lane % 4) + i % 2) * 132 + group * 64 + warp * 16 + lane / 4 + i / 2 % 2 * 8] = sums[i];
    cluster_sync();
    const float tensor = *w_tensor;
#ifdef MUTANT_LAST_PART_LOST
    const int added = max(1, parts - 1);
#else
    const int added = parts;
#endif
    for (int i = part * 256 + threadIdx.x; i < T * 128; i += parts * 256) {
        const int token = i / 128, row = i % 128;
        if (b0 + token >= B || n0 + row >= N)
            continue;
        float sum = ld_shared_cluster(map_shared_rank(mine + token * 132 + row, 0));
        for (int p = 1; p < added; p++)
            sum = sum + ld_shared_cluster(map_shared_rank(mine + token * 132 + row, p));
        store(y[size_t(b0 + token) * N + n0 + row], sum, tensor);
    }
    cluster_sync();
}
