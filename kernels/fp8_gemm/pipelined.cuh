// `pipelined`: a tile of 64 weights and T tokens for a thread block of 128 threads. Copies of the next blocks of 128 columns are under
// way while tensor cores sum one.
//
// Weights do not depend on the launch before. For few tokens, those of the first stages are requested at once; what this launch reads of
// others, and what it writes, comes after the wait.
#pragma once

#include "lib/tma.cuh"
#include "wgmma/early.cuh"
#include "wgmma/widths.cuh"

template <int T, int STAGES, class Y>
__device__ void pipelined(int down, const u8 *x, const float *x_scale, const u8 *w, const float *w_scale, Y *y, int B, int N,
                          int K) {
    extern __shared__ __align__(1024) u8 stages[];
    constexpr int STAGE = (64 + T) * 128, AHEAD = STAGES - 1;
    const int n0 = down * 64, b0 = blockIdx.x * T, all = (K + 127) / 128;
#ifdef MUTANT_TAIL_SKIPPED
    const int blocks = K / 128;
#else
    const int blocks = all;
#endif
    const u32 base = smem_address(stages);
    launch_dependent_grids();

    // Rows after the last are zeros, and so are columns.
    const int chunk = threadIdx.x % 8, first = threadIdx.x / 8;
    const u8 *const first_weights = w + size_t(n0 + first) * K + chunk * 16;
    const size_t rows_16 = size_t(16) * K;
    auto load_weights = [&](int block) {
        const u32 at = base + block % STAGES * STAGE + first * 128 + ((chunk ^ first) & 7) * 16;
        const int col = block * 128;
        const u8 *from = first_weights + col;
#pragma unroll
        for (int i = 0; i < 4; i++, from += rows_16) {
            const bool there = n0 + first + i * 16 < N && col + chunk * 16 < K;
            cp_async_16_zfill(at + i * 16 * 128, there ? from : w, there);
        }
    };
    auto load_tokens = [&](int block) {
        const u32 at = base + block % STAGES * STAGE + ((chunk ^ first) & 7) * 16;
        const int col = block * 128 + chunk * 16;
#pragma unroll
        for (int row = first; row < T + first; row += 16) {
            if (row < T) {
                const bool there = b0 + row < B && col < K;
                cp_async_16_zfill(at + (64 + row) * 128, there ? x + size_t(b0 + row) * K + col : x, there);
            }
        }
    };

    // The products of scales, a row for each block.
    float *scales = (float *)(stages + STAGES * STAGE);
    auto load_scales = [&] {
        for (int i = threadIdx.x; i < T * all; i += 128) {
            const int token = b0 + i % T, block = i / T;
#ifdef MUTANT_NEIGHBOURS_SCALE
            const float weights = w_scale[n0 / 128 * all + min(block + 1, all - 1)];
#else
            const float weights = w_scale[n0 / 128 * all + block];
#endif
            scales[i] = token < B ? __ldcg(x_scale + size_t(token) * all + block) * weights : 0.0f;
        }
    };

    if constexpr (T <= 16) {
        for (int s = 0; s < AHEAD; s++) {
            if (s < blocks)
                load_weights(s);
            cp_async_commit_group();
        }
        wait_on_dependent_grids();
        EarlyRows<T, AHEAD> early;
        early.load([&](int block, int row, int chunk) {
            const int col = block * 128 + chunk * 16;
            const bool there = b0 + row < B && col < K;
            return there ? (const uint4 *)(x + size_t(b0 + row) * K + col) : nullptr;
        });
        load_scales();
        early.store(stages);
    } else {
        wait_on_dependent_grids();
        for (int s = 0; s < AHEAD; s++) {
            if (s < blocks)
                load_weights(s), load_tokens(s);
            cp_async_commit_group();
        }
        load_scales();
    }

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float acc[T / 2], sums[T / 2];
#pragma unroll
    for (int i = 0; i < T / 2; i++)
        acc[i] = 0.0f;
    for (int block = 0; block < blocks; block++) {
        cp_async_wait_group<AHEAD - 1>();
        fence_proxy_async_smem();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < T / 2; i++)
            sums[i] = 0.0f;
        const u32 at = base + block % STAGES * STAGE;
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; step++)
            Step<Fp8, T>::shared(sums, wgmma_descriptor(at) + step * 2, wgmma_descriptor(at + 8192) + step * 2);
        wgmma_commit_group();
        // All warps are past the products of the block before this one, whose place is free.
#ifdef MUTANT_STAGE_OVERWRITTEN
        const int next = block + STAGES;
#else
        const int next = block + AHEAD;
#endif
        if (next < blocks)
            load_weights(next), load_tokens(next);
        cp_async_commit_group();
        wgmma_wait_group<0>();
        const float2 *of_block = (const float2 *)(scales + block * T) + lane % 4;
#pragma unroll
        for (int i = 0; i < T / 2; i++) {
            const float2 pair = of_block[i / 4 * 4];
            const float scale = i % 2 ? pair.y : pair.x;
#ifdef MUTANT_ROUNDED_TWICE
            acc[i] = acc[i] + sums[i] * scale;
#else
            acc[i] = __fmaf_rn(scale, sums[i], acc[i]);
#endif
        }
    }
#pragma unroll
    for (int i = 0; i < T / 2; i++) {
        const int row = n0 + warp * 16 + lane / 4 + i / 2 % 2 * 8, token = b0 + i / 4 * 8 + 2 * (lane % 4) + i % 2;
        if (row < N && token < B)
            from_f32(y[size_t(token) * N + row], acc[i]);
    }
}

// Tile `down` of weights, of `tiles` in all. With six stages four thread blocks fit a multiprocessor, with eight three: `launch.shared`
// in the header.
template <class Y>
__device__ __forceinline__ void pipelined(int down, int tiles, const u8 *x, const float *x_scale, const u8 *w,
                                          const float *w_scale, Y *y, int B, int N, int K) {
    if (B <= 8 && tiles > 396)
        pipelined<8, 6>(down, x, x_scale, w, w_scale, y, B, N, K);
    else if (B <= 8)
        pipelined<8, 8>(down, x, x_scale, w, w_scale, y, B, N, K);
    else if (B <= 16)
        pipelined<16, 8>(down, x, x_scale, w, w_scale, y, B, N, K);
    else if (B <= 32)
        pipelined<32, 8>(down, x, x_scale, w, w_scale, y, B, N, K);
    else
        pipelined<64, 6>(down, x, x_scale, w, w_scale, y, B, N, K);
}
