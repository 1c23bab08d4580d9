// The end of a token in swap_ffn.cu: the collapse pools, reduces and decodes the cores.
#pragma once

#include "swap_ffn/rows.cuh"
#include "lib/vec.cuh"

// ---- B tokens: pooled [B, COLLAPSE, D] over the cores, reduced to [B, REDUCED], decoded to [B, D]

// Eight columns of a token for each CTA.
__device__ __forceinline__ void pool(const float *x, const float *alpha, float *pooled, int C, int D) {
    __shared__ float partials[ROW_THREADS / 32][4][2 * COLLAPSE];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, pair = lane % 4;
    const int token = blockIdx.x / (D / 8), column = blockIdx.x % (D / 8) * 8;
    launch_dependent_grids();
    wait_on_dependent_grids();
    float s[2 * COLLAPSE] = {};
#ifdef MUTANT_CORES_BY_64
    const int cores = C / 64 * 64;
#else
    const int cores = C;
#endif
    for (int core = threadIdx.x / 4; core < cores; core += ROW_THREADS / 4) {
        const float2 two = *(const float2 *)(x + ((size_t)token * C + core) * D + column + 2 * pair);
        static_assert(COLLAPSE == 8, "two vectors");
        const float4 low = ((const float4 *)alpha)[2 * core], high = ((const float4 *)alpha)[2 * core + 1];
        const float a[COLLAPSE] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int k = 0; k < COLLAPSE; k++)
            s[2 * k] = fmaf(a[k], two.x, s[2 * k]), s[2 * k + 1] = fmaf(a[k], two.y, s[2 * k + 1]);
    }
#pragma unroll
    for (int i = 0; i < 2 * COLLAPSE; i++) {
#pragma unroll
        for (int step = 4; step < 32; step *= 2)
            s[i] += __shfl_xor_sync(0xffffffff, s[i], step);
        if (lane < 4)
            partials[warp][pair][i] = s[i];
    }
    __syncthreads();
    if (threadIdx.x < 8 * COLLAPSE) {
        const int k = threadIdx.x / 8, c = threadIdx.x % 8;
        float sum = 0.0f;
        for (int w = 0; w < ROW_THREADS / 32; w++)
            sum += partials[w][c / 2][2 * k + c % 2];
        pooled[((size_t)token * COLLAPSE + k) * D + column + c] = sum;
    }
}

// One number for each CTA.
__device__ __forceinline__ void reduce(const float *pooled, const bf16 *basis, float *reduced, int D) {
    __shared__ float partials[32];
    constexpr int N = 4;
    const int token = blockIdx.x / REDUCED, r = blockIdx.x % REDUCED, vectors = COLLAPSE * D / 8;
    launch_dependent_grids();
    float sum = 0.0f;
    for (int first = threadIdx.x; first < vectors; first += N * ROW_THREADS) {
        // The basis does not depend on the last launch.
        Vec8<bf16> b[N];
#pragma unroll
        for (int n = 0; n < N; n++) {
            const int at = first + n * ROW_THREADS, k = at / (D / 8), vector = at % (D / 8);
            b[n].zero();
            if (at < vectors)
                b[n].load(basis, ((size_t)k * REDUCED + r) * (D / 8) + vector, NoHint());
        }
        if (first < N * ROW_THREADS)
            wait_on_dependent_grids();
#pragma unroll
        for (int n = 0; n < N; n++) {
            const int at = first + n * ROW_THREADS;
            if (at >= vectors)
                continue;
            float x[8];
            b[n].unpack(x);
            const float4 *p = (const float4 *)(pooled + (size_t)token * COLLAPSE * D + 8 * at);
            const float4 low = p[0], high = p[1];
            const float by[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
            for (int i = 0; i < 8; i++)
                sum = fmaf(x[i], by[i], sum);
        }
    }
    // A thread without a vector must not end before the last launch either.
    wait_on_dependent_grids();
    sum = block_sum(sum, partials);
    if (threadIdx.x == 0)
        reduced[blockIdx.x] = silu(sum);
}

// One number for each warp.
__device__ __forceinline__ void decode(const float *reduced, const bf16 *decoder, float *delta, int B, int D) {
    const int at = blockIdx.x * (ROW_THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    static_assert(REDUCED % 32 == 0, "lanes have as many each");
    float weights[REDUCED / 32];
    launch_dependent_grids();
#pragma unroll
    for (int i = 0; i < REDUCED / 32; i++)
        weights[i] = at < B * D ? to_f32(decoder[(size_t)(at % D) * REDUCED + lane + 32 * i]) : 0.0f;
    wait_on_dependent_grids();
    if (at >= B * D)
        return;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < REDUCED / 32; i++)
        sum = fmaf(weights[i], reduced[at / D * REDUCED + lane + 32 * i], sum);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0)
        delta[at] = sum;
}
