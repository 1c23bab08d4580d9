/*
[[variant]]
name = "simple"
doc = "a warpgroup for each 64 rows of w and 64 rows of x, one block of 128 columns after the other"
arch = "sm_90a"
needs = ["K % 16 == 0"]

[[variant.launch]]
entry = "fp8_gemm_simple_{out}"
grid = ["ceil(B, 64)", "ceil(N, 64)"]
block = [128]
args = ["x", "x_scale", "w", "w_scale", "y", "B", "N", "K"]

[[variant]]
name = "pipelined"
doc = "64 rows of w and 8 to 64 rows of x for a thread block, copies of six to eight blocks of 128 columns under way; scales are multiplied beforehand"
arch = "sm_90a"
needs = ["K % 16 == 0", "K <= 16384"]

[[variant.launch]]
entry = "fp8_gemm_pipelined_{out}"
grid = ["ceil(B, 8 + 8 * (B > 8) + 16 * (B > 16) + 32 * (B > 32))", "ceil(N, 64)"]
block = [128]
shared = "(8 - 2 * (B > 32) - 2 * (B <= 8 && ceil(N, 64) > 396)) * 128 * (72 + 8 * (B > 8) + 16 * (B > 16) + 32 * (B > 32)) + 4 * ceil(K, 128) * (8 + 8 * (B > 8) + 16 * (B > 16) + 32 * (B > 32))"
args = ["x", "x_scale", "w", "w_scale", "y", "B", "N", "K"]

[[variant]]
name = "split"
doc = "as `pipelined`; for at most two tokens and 132 tiles, four warpgroups of up to four thread blocks take blocks of 128 columns in turn, and one of these adds up all their scaled sums in order"
arch = "sm_90a"
needs = ["K % 16 == 0", "K <= 16384"]

# `B <= 2 && ceil(N, 64) <= 132 && K <= 8192` is `few_tokens` of split.cuh.
[[variant.launch]]
entry = "fp8_gemm_split_{out}"
grid = ["ceil(B, 8 + 8 * (B > 8) + 16 * (B > 16) + 32 * (B > 32)) * (1 + (B <= 2 && ceil(N, 64) <= 132 && K <= 8192) * ((ceil(N, 64) <= 66) + 2 * (ceil(N, 64) <= 33)))", "ceil(N, 64)"]
cluster = ["1 + (B <= 2 && ceil(N, 64) <= 132 && K <= 8192) * ((ceil(N, 64) <= 66) + 2 * (ceil(N, 64) <= 33))"]
block = ["128 + 384 * (B <= 2 && ceil(N, 64) <= 132 && K <= 8192)"]
shared = "(1 - (B <= 2 && ceil(N, 64) <= 132 && K <= 8192)) * ((8 - 2 * (B > 32) - 2 * (B <= 8 && ceil(N, 64) > 396)) * 128 * (72 + 8 * (B > 8) + 16 * (B > 16) + 32 * (B > 32)) + 4 * ceil(K, 128) * (8 + 8 * (B > 8) + 16 * (B > 16) + 32 * (B > 32))) + (B <= 2 && ceil(N, 64) <= 132 && K <= 8192) * (131088 + (1024 + 260 * B) * ceil(K, 128))"
args = ["x", "x_scale", "w", "w_scale", "y", "B", "N", "K"]

[[variant]]
name = "warpgroups"
doc = "weights packed beforehand; 32 weights and 64 tokens for a tile, whose weights are columns of the instruction; producer warps copy in bulk, a consumer warpgroup adds the scaled sums of a block during the products of the next"
arch = "sm_90a"
needs = ["K % 16 == 0", "K <= 16384", "N <= 262144", "B <= 64 * 65535"]
scratch = [{ name = "packed", bytes = "ceil(N, 32) * ceil(K, 128) * 4096" }]
prepare = [{ entry = "fp8_gemm_pack", grid = ["ceil(N, 32)", "ceil(K, 128)"], block = [256], args = ["w", "packed", "N", "K"] }]

# Thread blocks share x in pairs if not all of it fits the shared memory of one.
[[variant.launch]]
entry = "fp8_gemm_warpgroups_{out}"
grid = ["ceil(ceil(ceil(N, 32), ceil(ceil(N, 32), sms)), 1 + (ceil(K, 512) * (8 + 8 * (B > 8) + 16 * (B > 16) + 32 * (B > 32)) > 192)) * (1 + (ceil(K, 512) * (8 + 8 * (B > 8) + 16 * (B > 16) + 32 * (B > 32)) > 192))", "ceil(B, 64)"]
cluster = ["1 + (ceil(K, 512) * (8 + 8 * (B > 8) + 16 * (B > 16) + 32 * (B > 32)) > 192)"]
block = [384]
shared = 232448
programmatic = true
args = ["x", "x_scale", "packed", "w_scale", "y", "B", "N", "K"]

[[mutant]]
name = "scales_from_first"
doc = "scales of weights are counted from a thread block's first tile, right only if that is a multiple of four"
variants = ["warpgroups"]

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
variants = ["simple"]

[[mutant]]
name = "scaled_in_turn"
doc = "a sum is multiplied by both scales in turn, and not by their product"
variants = ["simple"]

[[mutant]]
name = "stage_overwritten"
doc = "the copy of a later block begins before the products of the one in its place are done"
variants = ["pipelined", "split", "warpgroups"]

[[mutant]]
name = "sums_by_warpgroup"
doc = "scaled sums are added warpgroup by warpgroup, and not from the first block to the last"
variants = ["split"]

[[mutant]]
name = "warpgroups_exchanged"
doc = "each of two warpgroups stores its sums where those of the other belong"
variants = ["warpgroups"]

[[mutant]]
name = "tokens_of_peer"
doc = "the second thread block of a pair copies the tokens of the first in place of its own"
variants = ["warpgroups"]
*/

// reference: crates/operations/ops/fp8_gemm.rs
//
// x [B, K] and w [N, K] in E4M3, y [B, N] in bfloat16 or f32. In `simple`, `pipelined` and `split` weights are rows of the
// instruction and tokens its columns, so that few tokens fill it, too; in `warpgroups` it is the other way round. The bits are the same, because
// products of factors commute and the order of a sum within an instruction does not matter.

#if __CUDA_ARCH__ == 900
#include "fp8_gemm/split.cuh"
#include "fp8_gemm/warpgroups.cuh"

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

template <class Y>
__device__ void simple(const u8 *x, const float *x_scale, const u8 *w, const float *w_scale, Y *y, int B, int N, int K) {
    __shared__ __align__(1024) u8 w_tile[64 * 128];
    __shared__ __align__(1024) u8 x_tile[64 * 128];
    const int n0 = blockIdx.y * 64, b0 = blockIdx.x * 64, blocks = (K + 127) / 128;
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
        fence_proxy_async_smem();
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
            const float tokens = token < B ? x_scale[size_t(token) * blocks + block] : 0.0f;
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

#define ENTRIES(OUT, Y)                                                                                                         \
    KERNEL(fp8_gemm_simple_##OUT, __launch_bounds__(128))(const u8 *x, const float *x_scale, const u8 *w, const float *w_scale, \
                                                          Y *y, int B, int N, int K) {                                          \
        simple(x, x_scale, w, w_scale, y, B, N, K);                                                                             \
    }                                                                                                                           \
    KERNEL(fp8_gemm_pipelined_##OUT, __launch_bounds__(128))(const u8 *x, const float *x_scale, const u8 *w,                    \
                                                             const float *w_scale, Y *y, int B, int N, int K) {                 \
        pipelined(blockIdx.y, gridDim.y, x, x_scale, w, w_scale, y, B, N, K);                                                   \
    }                                                                                                                           \
    KERNEL(fp8_gemm_split_##OUT, __launch_bounds__(512, 1))(const u8 *x, const float *x_scale, const u8 *w,                     \
                                                            const float *w_scale, Y *y, int B, int N, int K) {                  \
        split(blockIdx.y, gridDim.y, x, x_scale, w, w_scale, y, B, N, K);                                                       \
    }                                                                                                                           \
    KERNEL(fp8_gemm_warpgroups_##OUT, __launch_bounds__(384, 1))(const u8 *x, const float *x_scale, const u8 *packed,           \
                                                                 const float *w_scale, Y *y, int B, int N, int K) {             \
        warpgroups(x, x_scale, packed, w_scale, y, B, N, K);                                                                    \
    }
ENTRIES(bf16, bf16)
ENTRIES(f32, float)

KERNEL(fp8_gemm_pack, __launch_bounds__(256))(const u8 *w, u8 *packed, int N, int K) {
    pack_unit(w, packed, N, K);
}
#endif
