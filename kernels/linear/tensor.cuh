// `tensor`: a tile of 64 columns of y and T rows. Weights are rows of the instruction, so that few rows fill it, too. A cluster splits K.
//
// Weights do not depend on the launch before. For few rows, those of the first stages are requested at once; what this launch reads of
// others, and what it writes, comes after the wait.
#pragma once

#include "lib/cluster.cuh"
#include "lib/tma.cuh"
#include "wgmma/early.cuh"
#include "wgmma/widths.cuh"

template <int T, int STAGES, class Y>
__device__ __forceinline__ void tensor(int down, int group, const bf16 *x, const bf16 *w, Y *y, int rows, int groups, int N,
                                       int K) {
    extern __shared__ __align__(1024) u8 stages[];
    constexpr int STEP_COLS = 64, STAGE = (64 + T) * 128;
    // With many stages, products of a step are still under way when those of the next begin.
    constexpr int BEHIND = STAGES >= 10 ? 1 : 0, AHEAD = STAGES - 1 - BEHIND;
    u32 parts, part;
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(parts));
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(part));
    const int n0 = down * 64, b0 = blockIdx.x / parts * T;
    launch_dependent_grids();
    // For few rows, sums of other parts have a place of their own, and a barrier counts their bytes: `launch.shared` in the header.
    constexpr bool COUNTED = T <= 16;
    constexpr int QUADS = T / 8;
    u64 *const arrived = (u64 *)(stages + STAGES * STAGE);
    float4 *const sums_of_parts = (float4 *)(arrived + 2);
    if (COUNTED && parts > 1) {
        if (part == 0 && threadIdx.x == 0) {
            mbarrier_init(arrived, 1);
            fence_mbarrier_init();
            mbarrier_arrive_expect_tx(arrived, (parts - 1) * QUADS * 128 * 16);
        }
        __syncwarp();
        // Nobody stores to a thread block that has not begun.
        cluster_arrive_relaxed();
    }
#ifdef MUTANT_LAST_ROWS_LOST
    rows = rows < ROWS ? rows : rows / ROWS * ROWS;
#endif
#ifdef MUTANT_TAIL_SKIPPED
    const int all = K / STEP_COLS;
#else
    const int all = (K + STEP_COLS - 1) / STEP_COLS;
#endif
    const int share = (all + parts - 1) / parts, begin = share * part;
    const int steps = max(0, min(share, all - begin));
    const u32 base = smem_address(stages);
#ifdef MUTANT_FIRST_GROUP
    const bf16 *const weights = w;
#else
    const bf16 *const weights = w + size_t(group) * N * K;
#endif

    // Rows after the last are zeros, and so are elements.
    const int chunk = threadIdx.x % 8, first = threadIdx.x / 8;
    auto row_of_x = [&](int row) {
#ifdef MUTANT_ROWS_OF_A_GROUP
        return x + (size_t(group) * rows + b0 + row) * K;
#else
        return x + (size_t(b0 + row) * groups + group) * K;
#endif
    };
    const bf16 *const first_weights = weights + size_t(n0 + first) * K + chunk * 8;
    const size_t rows_16 = size_t(16) * K;
    auto load_weights = [&](int step) {
        const u32 at = base + step % STAGES * STAGE + first * 128 + ((chunk ^ first) & 7) * 16;
        const int col = (begin + step) * STEP_COLS;
        const bf16 *from = first_weights + col;
#pragma unroll
        for (int i = 0; i < 4; i++, from += rows_16) {
            const bool there = n0 + first + i * 16 < N && col + chunk * 8 < K;
            cp_async_16_zfill(at + i * 16 * 128, there ? from : weights, there);
        }
    };
    auto load_rows = [&](int step) {
        const u32 at = base + step % STAGES * STAGE + ((chunk ^ first) & 7) * 16;
        const int col = (begin + step) * STEP_COLS + chunk * 8;
#pragma unroll
        for (int row = first; row < T + first; row += 16) {
            if (row < T) {
                const bool there = b0 + row < rows && col < K;
                cp_async_16_zfill(at + (64 + row) * 128, there ? row_of_x(row) + col : x, there);
            }
        }
    };
    if constexpr (T <= 16) {
        for (int step = 0; step < AHEAD; step++) {
            if (step < steps)
                load_weights(step);
            cp_async_commit_group();
        }
        wait_on_dependent_grids();
        EarlyRows<T, AHEAD> early;
        early.load([&](int step, int row, int chunk) {
            const int col = (begin + step) * STEP_COLS + chunk * 8;
            return b0 + row < rows && col < K ? (const uint4 *)(row_of_x(row) + col) : nullptr;
        });
        early.store(stages);
        if (parts > 1)
            cluster_wait();
    } else {
        wait_on_dependent_grids();
        for (int step = 0; step < AHEAD; step++) {
            if (step < steps)
                load_weights(step), load_rows(step);
            cp_async_commit_group();
        }
    }
    float sums[T / 2] = {};
    for (int step = 0; step < steps; step++) {
        cp_async_wait_group<AHEAD - 1>();
        fence_proxy_async_smem();
        __syncthreads();
        const u32 at = base + step % STAGES * STAGE;
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++)
            Step<Bf16, T>::shared(sums, wgmma_descriptor(at) + i * 2, wgmma_descriptor(at + 8192) + i * 2);
        wgmma_commit_group();
        // All warps are past the products of the step before this one, or of the one before that, whose place is free.
#ifdef MUTANT_STAGE_OVERWRITTEN
        const int next = step + STAGES;
#else
        const int next = step + AHEAD;
#endif
        if (next < steps)
            load_weights(next), load_rows(next);
        cp_async_commit_group();
        wgmma_wait_group<BEHIND>();
    }
    wgmma_wait_group<0>();

    // The first thread block adds the sums of all parts, in order.
    if (COUNTED && parts > 1) {
        if (part > 0) {
            const u32 to = map_shared_rank(sums_of_parts + (part - 1) * QUADS * 128 + threadIdx.x, 0);
#pragma unroll
            for (int quad = 0; quad < QUADS; quad++) {
                const float four[4] = {sums[4 * quad], sums[4 * quad + 1], sums[4 * quad + 2], sums[4 * quad + 3]};
                st_async(to + quad * 128 * 16, four, map_shared_rank(arrived, 0));
            }
            return;
        }
#ifndef MUTANT_PARTS_EARLY
        mbarrier_wait_parity(arrived, 0);
#endif
#ifdef MUTANT_LAST_PART_LOST
        parts--;
#endif
        for (int other = 0; other < (int)parts - 1; other++) {
#pragma unroll
            for (int quad = 0; quad < QUADS; quad++) {
                const float4 four = sums_of_parts[(other * QUADS + quad) * 128 + threadIdx.x];
                sums[4 * quad] += four.x, sums[4 * quad + 1] += four.y, sums[4 * quad + 2] += four.z,
                    sums[4 * quad + 3] += four.w;
            }
        }
#ifdef MUTANT_PARTS_EARLY
        mbarrier_wait_parity(arrived, 0);
#endif
    }
    if (!COUNTED && parts > 1) {
        // Sums of other parts take the place of its stages.
        cp_async_wait_group<0>();
        cluster_sync();
        float *const others = (float *)stages;
        if (part > 0) {
            const u32 to = map_shared_rank(others + (part - 1) * (T / 2) * 128 + threadIdx.x, 0);
#pragma unroll
            for (int i = 0; i < T / 2; i++)
                st_shared_cluster(to + i * 128 * 4, sums[i]);
        }
#ifndef MUTANT_PARTS_EARLY
        cluster_sync();
#endif
        if (part > 0) {
#ifdef MUTANT_PARTS_EARLY
            cluster_sync();
#endif
            return;
        }
#ifdef MUTANT_LAST_PART_LOST
        parts--;
#endif
        for (int other = 1; other < parts; other++)
#pragma unroll
            for (int i = 0; i < T / 2; i++)
                sums[i] += others[((other - 1) * (T / 2) + i) * 128 + threadIdx.x];
#ifdef MUTANT_PARTS_EARLY
        cluster_sync();
#endif
    }
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < T / 2; i++) {
        const int column = n0 + warp * 16 + lane / 4 + i / 2 % 2 * 8, row = b0 + i / 4 * 8 + 2 * (lane % 4) + i % 2;
        if (column < N && row < rows)
            from_f32(y[(size_t(row) * groups + group) * N + column], sums[i]);
    }
}

// Whether a multiprocessor need not have more than `each` thread blocks, of all parts of so many tiles.
__device__ __forceinline__ bool fits(int tiles, int each) {
    u32 parts;
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(parts));
    return tiles * (int)parts <= 132 * each;
}

// Many stages where a multiprocessor has one thread block, few where it has four.
template <class Y>
__device__ __forceinline__ void tensor(int down, int group, bool alone, const bf16 *x, const bf16 *w, Y *y, int rows, int groups,
                                       int N, int K) {
    if (rows <= 8)
        alone ? tensor<8, 11>(down, group, x, w, y, rows, groups, N, K) : tensor<8, 6>(down, group, x, w, y, rows, groups, N, K);
    else if (rows <= 16)
        alone ? tensor<16, 11>(down, group, x, w, y, rows, groups, N, K)
              : tensor<16, 5>(down, group, x, w, y, rows, groups, N, K);
    else if (rows <= 32)
        alone ? tensor<32, 12>(down, group, x, w, y, rows, groups, N, K)
              : tensor<32, 4>(down, group, x, w, y, rows, groups, N, K);
    else
        alone ? tensor<64, 10>(down, group, x, w, y, rows, groups, N, K)
              : tensor<64, 3>(down, group, x, w, y, rows, groups, N, K);
}
