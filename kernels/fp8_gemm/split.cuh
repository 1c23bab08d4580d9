// `split`: few tokens and few tiles leave each multiprocessor one thread block, and what takes time is one block of 128 columns after the
// other: a barrier, four instructions and their end are some 350 cycles. The sums of a block do not depend on those of others, only the
// scaled addition has an order. So warpgroups of a cluster take blocks in turn, each with stages of its own, and hand their sums, unscaled,
// to the first thread block, which adds them up in the order that is defined. For two tokens and K = 8192 these are 2 % of what is read of
// weights.
#pragma once

#include "lib/cluster.cuh"
#include "fp8_gemm/pipelined.cuh"

// At most so many tokens; more sums would not fit the shared memory.
constexpr int SPLIT_TOKENS = 2, SPLIT_WARPGROUPS = 4, SPLIT_STAGES = 4, SPLIT_STAGE = 64 * 128;

// The conditions in the headers, where also is how many thread blocks a cluster has.
__device__ __forceinline__ bool few_tokens(int tiles, int B, int K) {
    return B <= SPLIT_TOKENS && tiles <= 132 && K <= 8192;
}

// Barriers are named by constants. A number that is known only at run time makes a thread block have all sixteen.
__device__ __forceinline__ void warpgroup_sync(int group) {
    if (group == 0)
        named_barrier_sync(1, 128);
    else if (group == 1)
        named_barrier_sync(2, 128);
    else if (group == 2)
        named_barrier_sync(3, 128);
    else
        named_barrier_sync(4, 128);
}

// A tile of 64 weights and up to two tokens, for a cluster of thread blocks of four warpgroups. The columns of the instruction that
// belong to no token are not initialised, and their sums are not used.
template <class Y>
__device__ void split_columns(int down, const u8 *x, const float *x_scale, const u8 *w, const float *w_scale, Y *y, int B, int N,
                              int K) {
    extern __shared__ __align__(1024) u8 stages[];
    u32 parts, part;
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(parts));
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(part));
    launch_dependent_grids();
    const int n0 = down * 64, all = (K + 127) / 128, share = (all + (int)parts - 1) / (int)parts, begin = share * (int)part;
    const int own = max(0, min(share, all - begin));
    const int group = threadIdx.x / 128, thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    // Its blocks are every fourth one, beginning with `group`.
    const int blocks = (own - group + SPLIT_WARPGROUPS - 1) / SPLIT_WARPGROUPS;
    u8 *const tokens = stages + SPLIT_WARPGROUPS * SPLIT_STAGES * SPLIT_STAGE;
    // A barrier that counts the sums, sums [all, B, 64], and products of scales [B, all], which the first thread block alone has.
    u64 *const arrived = (u64 *)(tokens + share * 1024);
    float *const sums_of_all = (float *)(arrived + 2), *const scales = sums_of_all + all * B * 64;
    if (parts > 1) {
        if (part == 0 && threadIdx.x == 0) {
            mbarrier_init(arrived, 1);
            fence_mbarrier_init();
            mbarrier_arrive_expect_tx(arrived, all * B * 64 * 4);
        }
        __syncwarp();
        // Nobody stores to a thread block that has not begun.
        cluster_arrive_relaxed();
    }
    const u32 ring = smem_address(stages + group * SPLIT_STAGES * SPLIT_STAGE);

    // Rows after the last are zeros, and so are columns.
    const int chunk = thread % 8, first = thread / 8;
    const u8 *const first_weights = w + size_t(n0 + first) * K + chunk * 16;
    const size_t rows_16 = size_t(16) * K;
    auto load = [&](int i) {
        const u32 at = ring + i % SPLIT_STAGES * SPLIT_STAGE + first * 128 + ((chunk ^ first) & 7) * 16;
        const int col = (begin + group + i * SPLIT_WARPGROUPS) * 128;
        const u8 *from = first_weights + col;
#pragma unroll
        for (int j = 0; j < 4; j++, from += rows_16) {
            const bool there = n0 + first + j * 16 < N && col + chunk * 16 < K;
            cp_async_16_zfill(at + j * 16 * 128, there ? from : w, there);
        }
    };
    for (int i = 0; i < SPLIT_STAGES - 1; i++) {
        if (i < blocks)
            load(i);
        cp_async_commit_group();
    }
    // A thread has one block's scale, and 16 bytes of each token: `few_tokens` limits K.
    const int of_scale = threadIdx.x;
    float weights = 0.0f;
    if (part == 0 && of_scale < all) {
#ifdef MUTANT_NEIGHBOURS_SCALE
        weights = w_scale[n0 / 128 * all + min(of_scale + 1, all - 1)];
#else
        weights = w_scale[n0 / 128 * all + of_scale];
#endif
    }

    wait_on_dependent_grids();
    const int col = begin * 128 + (int)threadIdx.x * 16;
    uint4 bytes[SPLIT_TOKENS];
    float by[SPLIT_TOKENS];
#pragma unroll
    for (int token = 0; token < SPLIT_TOKENS; token++) {
        bytes[token] = make_uint4(0, 0, 0, 0), by[token] = 0.0f;
        if (token < B && (int)threadIdx.x < own * 8 && col < K)
            bytes[token] = __ldcg((const uint4 *)(x + size_t(token) * K + col));
        if (token < B && part == 0 && of_scale < all)
            by[token] = __ldcg(x_scale + token * all + of_scale);
    }
#pragma unroll
    for (int token = 0; token < SPLIT_TOKENS; token++) {
        if (token < B && (int)threadIdx.x < own * 8)
            *(uint4 *)(tokens + threadIdx.x / 8 * 1024 + token * 128 + ((threadIdx.x % 8) ^ token) * 16) = bytes[token];
        if (token < B && part == 0 && of_scale < all)
            scales[token * all + of_scale] = by[token] * weights;
    }
    fence_proxy_async_smem();
    __syncthreads();
    if (parts > 1)
        cluster_wait();

    const u32 to = map_shared_rank(sums_of_all, 0), arrived_there = map_shared_rank(arrived, 0);
    for (int i = 0; i < blocks; i++) {
        cp_async_wait_group<SPLIT_STAGES - 2>();
        fence_proxy_async_smem();
        warpgroup_sync(group);
        const int in_share = group + i * SPLIT_WARPGROUPS;
        const u32 at = ring + i % SPLIT_STAGES * SPLIT_STAGE, of_tokens = smem_address(tokens) + in_share * 1024;
        float sums[4] = {};
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; step++)
            Step<Fp8, 8>::shared(sums, wgmma_descriptor(at) + step * 2, wgmma_descriptor(of_tokens) + step * 2);
        wgmma_commit_group();
        // All warps of the warpgroup are past its products before these, whose place is free.
#ifdef MUTANT_STAGE_OVERWRITTEN
        const int next = i + SPLIT_STAGES;
#else
        const int next = i + SPLIT_STAGES - 1;
#endif
        if (next < blocks)
            load(next);
        cp_async_commit_group();
        wgmma_wait_group<0>();
        // The first of four lanes has the sums of two rows with both tokens.
        if (lane % 4 == 0) {
            const int row = warp * 16 + lane / 4, place = (begin + in_share) * B * 64 + row;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int token = j % 2, at = place + token * 64 + j / 2 * 8;
                if (token >= B)
                    continue;
                if (parts > 1)
                    st_async(to + at * 4, sums[j], arrived_there);
                else
                    sums_of_all[at] = sums[j];
            }
        }
    }
    if (parts == 1)
        __syncthreads();
    const int row = threadIdx.x % 64, token = threadIdx.x / 64;
    if (part > 0 || token >= B)
        return;
    // It has come when all that is counted has.
    if (parts > 1)
        mbarrier_wait_parity(arrived, 0);
#ifdef MUTANT_TAIL_SKIPPED
    const int added = K / 128;
#else
    const int added = all;
#endif
    const float *const of_token = sums_of_all + token * 64 + row, *const scale = scales + token * all;
    float acc = 0.0f;
    auto add = [&](int block) {
#ifdef MUTANT_ROUNDED_TWICE
        acc = acc + of_token[block * B * 64] * scale[block];
#else
        acc = __fmaf_rn(scale[block], of_token[block * B * 64], acc);
#endif
    };
#ifdef MUTANT_SUMS_BY_WARPGROUP
    for (int begin = 0; begin < SPLIT_WARPGROUPS; begin++)
        for (int block = begin; block < added; block += SPLIT_WARPGROUPS)
            add(block);
#else
#pragma unroll 8
    for (int block = 0; block < added; block++)
        add(block);
#endif
    if (n0 + row < N)
        from_f32(y[size_t(token) * N + n0 + row], acc);
}

// Tile `down` of weights, of `tiles` in all.
template <class Y>
__device__ __forceinline__ void split(int down, int tiles, const u8 *x, const float *x_scale, const u8 *w, const float *w_scale,
                                      Y *y, int B, int N, int K) {
    if (few_tokens(tiles, B, K))
        split_columns(down, x, x_scale, w, w_scale, y, B, N, K);
    else
        pipelined(down, tiles, x, x_scale, w, w_scale, y, B, N, K);
}
