// The inverse of 1 + a, for a [64, 64] strictly lower triangular, in shared memory.
#pragma once

#include "lib/mma.cuh"

constexpr int PITCH = 72; // of rows of matrices [64, 64] in f32

// c [16, 16] += left · right, f32 read as TF32, both with rows of PITCH.
__device__ __forceinline__ void mma_blocks(float (&c)[2][4], const float *left, const float *right) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int k = 0; k < 16; k += 8) {
        const float *row = left + g * PITCH + k + t;
        const u32 l[4] = {__float_as_uint(row[0]), __float_as_uint(row[8 * PITCH]), __float_as_uint(row[4]),
                          __float_as_uint(row[8 * PITCH + 4])};
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const float *column = right + (k + t) * PITCH + n * 8 + g;
            mma_m16n8k8_tf32(c[n], l, __float_as_uint(column[0]), __float_as_uint(column[4 * PITCH]));
        }
    }
}

__device__ __forceinline__ void store_block(float *to, const float (&c)[2][4], float sign) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < 2; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[(g + i / 2 * 8) * PITCH + n * 8 + 2 * t + i % 2] = sign * c[n][i];
    }
}

// x ← (1 + a)⁻¹, lower triangles [64, 64]; a has no diagonal. Four of the calling warps do the work.
__device__ __forceinline__ void invert(const float *a, float *x) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const auto block_at = [](int row, int column) { return row * 16 * PITCH + column * 16; };
    // Diagonal blocks of 16 × 16: forward substitution, one column for each thread.
    if (warp < 4 && lane < 16) {
        float column[16];
#pragma unroll
        for (int i = 0; i < 16; i++) {
            column[i] = i == lane;
#pragma unroll
            for (int j = 0; j < i; j++) {
                const float4 *row = (const float4 *)(a + block_at(warp, warp) + i * PITCH);
                const float4 vec4 = row[j / 4];
                const float entry = j % 4 == 0 ? vec4.x : j % 4 == 1 ? vec4.y : j % 4 == 2 ? vec4.z : vec4.w;
                column[i] = fmaf(-entry, column[j], column[i]);
            }
            x[block_at(warp, warp) + i * PITCH + lane] = column[i];
        }
    }
    __syncthreads();
    // The lower left block of the inverse of (P 0, A Q) is −Q⁻¹ A P⁻¹: first with blocks of 16,
    if (warp < 2) {
        const int column = 2 * warp, row = column + 1;
        float sum[2][4] = {}, product[2][4] = {}, *to = x + block_at(row, column);
        mma_blocks(sum, a + block_at(row, column), x + block_at(column, column));
        store_block(to, sum, 1.0f);
        __syncwarp();
        mma_blocks(product, x + block_at(row, row), to);
        __syncwarp();
        store_block(to, product, -1.0f);
    }
    __syncthreads();
    // then with blocks of 32, of which each warp has a block of 16.
    const int row = 2 + warp / 2, column = warp % 2;
    float sum[2][4] = {}, product[2][4] = {};
    if (warp < 4) {
        for (int m = column; m < 2; m++)
            mma_blocks(sum, a + block_at(row, m), x + block_at(m, column));
        store_block(x + block_at(row, column), sum, 1.0f);
    }
    __syncthreads();
    if (warp < 4) {
        for (int m = 2; m <= row; m++)
            mma_blocks(product, x + block_at(row, m), x + block_at(m, column));
    }
    __syncthreads();
    if (warp < 4)
        store_block(x + block_at(row, column), product, -1.0f);
    __syncthreads();
}
