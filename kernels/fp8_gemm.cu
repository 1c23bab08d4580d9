/*
[[variant]]
name = "simple"
doc = "a warpgroup for each 64 rows of w and 64 rows of x, one block of 128 columns after the other"
arch = "sm_90a"
needs = ["K % 16 == 0"]

[[variant.launch]]
entry = "fp8_gemm_simple"
grid = ["ceil(N, 64)", "ceil(B, 64)"]
block = [128]
args = ["x", "x_scale", "w", "w_scale", "y", "B", "N", "K"]

[[mutant]]
name = "neighbours_scale"
doc = "weights have the scale of the next block of columns"

[[mutant]]
name = "tail_skipped"
doc = "columns after the last whole block of 128 are left out"

[[mutant]]
name = "rounded_twice"
doc = "scaling and adding round separately"

[[mutant]]
name = "promoted_late"
doc = "tensor cores sum on through two blocks"

[[mutant]]
name = "scaled_in_turn"
doc = "a sum is multiplied by both scales in turn, and not by their product"
*/

// reference: core/ops/fp8_gemm.rs
//
// x [B, K] and w [N, K] in E4M3, y [B, N] in bfloat16. Weights are rows of the instruction and tokens its columns, so that few
// tokens fill it, too.

#if __CUDA_ARCH__ == 900
#include "wgmma/widths.cuh"

// Copies 128 bytes of each of 64 rows into a tile with the 128-byte swizzle; what lies outside of the matrix is 0.
__device__ void to_tile(u8 *tile, const u8 *from, int first, int rows, int col, int K) {
    for (int i = threadIdx.x; i < 64 * 8; i += 128) {
        const int row = i / 8, chunk = i % 8, at = col + chunk * 16;
        uint4 bytes = make_uint4(0, 0, 0, 0);
        if (first + row < rows && at < K)
            bytes = *(const uint4 *)(from + size_t(first + row) * K + at);
        *(uint4 *)(tile + row * 128 + ((chunk ^ row) & 7) * 16) = bytes;
    }
}

extern "C" __global__ void __launch_bounds__(128)
    fp8_gemm_simple(const u8 *x, const float *x_scale, const u8 *w, const float *w_scale, bf16 *y, int B, int N, int K) {
    __shared__ __align__(1024) u8 w_tile[64 * 128];
    __shared__ __align__(1024) u8 x_tile[64 * 128];
    const int n0 = blockIdx.x * 64, b0 = blockIdx.y * 64, blocks = (K + 127) / 128;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float acc[32], sums[32];
#pragma unroll
    for (int i = 0; i < 32; i++)
        acc[i] = sums[i] = 0.0f;
    for (int block = 0; block < blocks; block++) {
#ifdef MUTANT_TAIL_SKIPPED
        if (block * 128 + 128 > K)
            break;
#endif
        to_tile(w_tile, w, n0, N, block * 128, K);
        to_tile(x_tile, x, b0, B, block * 128, K);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
#ifdef MUTANT_PROMOTED_LATE
        if (block % 2 == 0)
#endif
#pragma unroll
            for (int i = 0; i < 32; i++)
                sums[i] = 0.0f;
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; step++)
            Step<Fp8, 64>::shared(sums, wgmma_descriptor(smem_address(w_tile)) + step * 2,
                                  wgmma_descriptor(smem_address(x_tile)) + step * 2);
        wgmma_commit_group();
        wgmma_wait_group<0>();
        __syncthreads();
#ifdef MUTANT_PROMOTED_LATE
        if (block % 2 == 0 && block + 1 < blocks)
            continue;
#endif
#ifdef MUTANT_NEIGHBOURS_SCALE
        const float weights = w_scale[n0 / 128 * blocks + min(block + 1, blocks - 1)];
#else
        const float weights = w_scale[n0 / 128 * blocks + block];
#endif
#pragma unroll
        for (int i = 0; i < 32; i++) {
            const int token = b0 + i / 4 * 8 + 2 * (lane % 4) + i % 2;
            const float tokens = token < B ? x_scale[token * blocks + block] : 0.0f;
#if defined(MUTANT_ROUNDED_TWICE)
            acc[i] = acc[i] + sums[i] * (tokens * weights);
#elif defined(MUTANT_SCALED_IN_TURN)
            acc[i] = __fmaf_rn(sums[i] * tokens, weights, acc[i]);
#else
            acc[i] = __fmaf_rn(tokens * weights, sums[i], acc[i]);
#endif
        }
    }
#pragma unroll
    for (int i = 0; i < 32; i++) {
        const int row = n0 + warp * 16 + lane / 4 + i / 2 % 2 * 8, token = b0 + i / 4 * 8 + 2 * (lane % 4) + i % 2;
        if (row < N && token < B)
            from_f32(y[size_t(token) * N + row], acc[i]);
    }
}
#endif
