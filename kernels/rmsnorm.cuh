// RMSNorm of rows: y = w ⊙ x · (mean(x²) + ε)^−½, in f32 and not rounded until it is stored.
#pragma once

#include "common.cuh"

__device__ __forceinline__ float inverse_rms(float sum, int cols, float eps) {
#ifdef MUTANT_NO_EPS
    eps = 0.0f;
#endif
    return __frsqrt_rn(__fdiv_rn(sum, (float)cols) + eps);
}

// (mean(x²) + ε)^−½ of a row by one warp.
template <class T> __device__ float inverse_rms_of(const T *row, int cols, float eps) {
    float sum = 0.0f;
    for (int i = threadIdx.x % 32; i < cols; i += 32) {
        const float x = to_f32(row[i]);
        sum = __fmaf_rn(x, x, sum);
    }
    return inverse_rms(warp_sum(sum), cols, eps);
}

// Eight consecutive weights.
__device__ __forceinline__ void load_weights(const float *weight, int at, float (&out)[8]) {
    const float4 low = __ldg((const float4 *)weight + 2 * at), high = __ldg((const float4 *)weight + 2 * at + 1);
    out[0] = low.x, out[1] = low.y, out[2] = low.z, out[3] = low.w;
    out[4] = high.x, out[5] = high.y, out[6] = high.z, out[7] = high.w;
}

// Rows by thread blocks, `V` eights a thread in registers, the next row loaded while one is worked on. Calls
// emit(state, row, eight, valid, y) for all lanes of a warp together; neighbouring lanes hold neighbouring eights.
// `prepare` makes the state once the first row is on its way.
template <int V, class T, class Prepare, class Emit>
__device__ __forceinline__ void norm_rows(const T *x, const float *weight, float eps, int rows, int cols, Prepare prepare,
                                          Emit emit) {
    __shared__ float room[2][32];
    const int count = cols / 8;
    Eight<T> now[V], next[V];
    const auto load = [&](Eight<T>(&into)[V], int row) {
#pragma unroll
        for (int v = 0; v < V; v++) {
            const int at = v * blockDim.x + threadIdx.x;
            if (row < rows && at < count)
                into[v].load(x, (size_t)row * count + at);
            else
                into[v].zero();
        }
    };
    load(now, blockIdx.x);
    // With one eight they stay in registers, and are on their way together with the row.
    float w[8];
    if (V == 1 && threadIdx.x < count)
        load_weights(weight, threadIdx.x, w);
    const auto state = prepare();
    int turn = 0;
    for (int row = blockIdx.x; row < rows; row += gridDim.x, turn ^= 1) {
        load(next, row + gridDim.x);
        float sum = 0.0f;
#pragma unroll
        for (int v = 0; v < V; v++) {
            float y[8];
            now[v].unpack(y);
#pragma unroll
            for (int i = 0; i < 8; i++)
                sum = __fmaf_rn(y[i], y[i], sum);
        }
        // The room of the turn before may still be read.
        const float scale = inverse_rms(block_sum(sum, room[turn]), cols, eps);
#pragma unroll
        for (int v = 0; v < V; v++) {
            const int at = v * blockDim.x + threadIdx.x;
            if (at - (int)(threadIdx.x % 32) >= count)
                break;
            if (V > 1 && at < count)
                load_weights(weight, at, w);
            float y[8];
            now[v].unpack(y);
#pragma unroll
            for (int i = 0; i < 8; i++)
                y[i] = y[i] * scale * w[i];
#ifdef MUTANT_ROW_INDEX
            emit(state, blockIdx.x, at, at < count, y);
#else
            emit(state, row, at, at < count, y);
#endif
        }
#pragma unroll
        for (int v = 0; v < V; v++)
            now[v] = next[v];
    }
}
