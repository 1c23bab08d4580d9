// Products without tensor cores, of any shape.
#pragma once

#include "swap_ffn/rows.cuh"

constexpr int SIMPLE_TILE = 64, SIMPLE_DEPTH = 16;

// The value of a stored operand.
__device__ __forceinline__ float value(float x) {
    return x;
}

__device__ __forceinline__ float value(bf16 x) {
    return to_f32(x);
}

__device__ __forceinline__ float value(u8 code) {
    return E4m3::decode(code);
}

// Calls to(row, column, sum) for each element of a [M, K] · b [N, K]ᵀ; a CTA of 256 threads has a tile of 64 × 64.
template <class A, class B, class To>
__device__ __forceinline__ void simple_product(const A *a, const B *b, int M, int N, int K, To to) {
    __shared__ float left[SIMPLE_DEPTH][SIMPLE_TILE + 1], right[SIMPLE_DEPTH][SIMPLE_TILE + 1];
    const int row = blockIdx.y * SIMPLE_TILE, column = blockIdx.x * SIMPLE_TILE;
    const int own_row = threadIdx.x / 16 * 4, own_column = threadIdx.x % 16 * 4;
    float sums[4][4] = {};
    for (int k = 0; k < K; k += SIMPLE_DEPTH) {
        for (int at = threadIdx.x; at < SIMPLE_TILE * SIMPLE_DEPTH; at += ROW_THREADS) {
            const int depth = at % SIMPLE_DEPTH, i = at / SIMPLE_DEPTH;
            const bool valid = k + depth < K;
            left[depth][i] = valid && row + i < M ? value(a[(size_t)(row + i) * K + k + depth]) : 0.0f;
            right[depth][i] = valid && column + i < N ? value(b[(size_t)(column + i) * K + k + depth]) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int depth = 0; depth < SIMPLE_DEPTH; depth++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++)
                    sums[i][j] = fmaf(left[depth][own_row + i], right[depth][own_column + j], sums[i][j]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (row + own_row + i < M && column + own_column + j < N)
                to(row + own_row + i, column + own_column + j, sums[i][j]);
    }
}

// Writes rows [W1 n, W3 n]: the first half if blockIdx.z is 0, the second if it is 1. Operands in E4M3 have a scale for each row.
template <class T>
__device__ __forceinline__ void simple_gate_up(const T *n, const T *w1, const T *w3, const float *n_scale, const float *w1_scale,
                                               const float *w3_scale, float *gate_up, int rows, int D, int F) {
    const bool up = blockIdx.z == 1;
    const float *scale = up ? w3_scale : w1_scale;
    simple_product(n, up ? w3 : w1, rows, F, D, [&](int row, int column, float sum) {
        gate_up[(size_t)row * 2 * F + up * F + column] = sizeof(T) == 1 ? sum * n_scale[row] * scale[column] : sum;
    });
}

// x = W2 h, or x += W2 h.
template <class T>
__device__ __forceinline__ void simple_down(const T *h, const T *w2, const float *h_scale, const float *w2_scale, float *x,
                                            int rows, int D, int F, int residual) {
    simple_product(h, w2, rows, D, F, [&](int row, int column, float sum) {
        float *to = x + (size_t)row * D + column;
        const float y = sizeof(T) == 1 ? sum * h_scale[row] * w2_scale[column] : sum;
        *to = residual ? *to + y : y;
    });
}
