// The inverse of 1 + a, a [64, 64] strictly lower triangular, in shared memory.
#pragma once

#include "tiles.cuh"

constexpr int PITCH = 72; // of rows of matrices [64, 64] in f32

// c [16, 16] += left · right, in f32 read as TF32, both with rows of PITCH.
__device__ __forceinline__ void multiply_squares(float (&c)[2][4], const float *left, const float *right) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int k = 0; k < 16; k += 8) {
        const float *row = left + g * PITCH + k + t;
        const float l[4] = {row[0], row[8 * PITCH], row[4], row[8 * PITCH + 4]};
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const float *column = right + (k + t) * PITCH + n * 8 + g;
            multiply_tf32(c[n], l, column[0], column[4 * PITCH]);
        }
    }
}

__device__ __forceinline__ void keep_square(float *to, const float (&c)[2][4], float sign) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < 2; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[(g + i / 2 * 8) * PITCH + n * 8 + 2 * t + i % 2] = sign * c[n][i];
    }
}

// x ← (1 + a)⁻¹, both [64, 64] lower triangles of which those of a have no diagonal. By four warps, of those that come.
__device__ __forceinline__ void invert(const float *a, float *x) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const auto square = [](int row, int column) { return row * 16 * PITCH + column * 16; };
    // Squares of 16 on the diagonal: each column by a thread, downwards.
    if (warp < 4 && lane < 16) {
        float column[16];
#pragma unroll
        for (int i = 0; i < 16; i++) {
            column[i] = i == lane;
#pragma unroll
            for (int j = 0; j < i; j++) {
                const float4 *row = (const float4 *)(a + square(warp, warp) + i * PITCH);
                const float4 four = row[j / 4];
                const float entry = j % 4 == 0 ? four.x : j % 4 == 1 ? four.y : j % 4 == 2 ? four.z : four.w;
                column[i] = fmaf(-entry, column[j], column[i]);
            }
            x[square(warp, warp) + i * PITCH + lane] = column[i];
        }
    }
    __syncthreads();
    // Of (P 0, A Q) the lower left of the inverse is −Q⁻¹ A P⁻¹: first with squares of 16,
    if (warp < 2) {
        const int column = 2 * warp, row = column + 1;
        float sum[2][4] = {}, block[2][4] = {}, *to = x + square(row, column);
        multiply_squares(sum, a + square(row, column), x + square(column, column));
        keep_square(to, sum, 1.0f);
        __syncwarp();
        multiply_squares(block, x + square(row, row), to);
        __syncwarp();
        keep_square(to, block, -1.0f);
    }
    __syncthreads();
    // then of 32, a square of 16 of them by each warp.
    const int row = 2 + warp / 2, column = warp % 2;
    float sum[2][4] = {}, block[2][4] = {};
    if (warp < 4) {
        for (int m = column; m < 2; m++)
            multiply_squares(sum, a + square(row, m), x + square(m, column));
        keep_square(x + square(row, column), sum, 1.0f);
    }
    __syncthreads();
    if (warp < 4)
        for (int m = 2; m <= row; m++)
            multiply_squares(block, x + square(row, m), x + square(m, column));
    __syncthreads();
    if (warp < 4)
        keep_square(x + square(row, column), block, -1.0f);
    __syncthreads();
}
