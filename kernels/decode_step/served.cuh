// What a step does where all products but attention's take bfloat16, besides the operations.
#pragma once

#include "decode_step/entries.cuh"
#include "decode_step/products.cuh"
#include "decode_step/row_mix.cuh"

// Keeps [groups, B, cols] at a site, [runs, layers, B, groups · cols].
KERNEL(decode_step_tap_groups, __launch_bounds__(128))(const u32 *from, u32 *to, const int *clock, int layer, int layers,
                                                       int runs, int cols) {
    const int row = blockIdx.x, rows = gridDim.x, group = blockIdx.y, run = min(*clock, runs - 1);
    from += ((size_t)group * rows + row) * cols;
    to += ((((size_t)run * layers + layer) * rows + row) * gridDim.y + group) * cols;
    for (int col = threadIdx.x; col < cols; col += blockDim.x)
        to[col] = from[col];
}

#if __CUDA_ARCH__ == 900
#include "decode_step/routed.cuh"

// The products of each group's rows, x [groups, B, K], with its weights, y [groups, B, N].
KERNEL(decode_step_groups, __launch_bounds__(512, 1))(const u8 *x, const float *x_scale, const u8 *w, const float *w_scale,
                                                      float *y, int B, int N, int K) {
    const size_t group = blockIdx.z, across = (K + 127) / 128, down = (N + 127) / 128;
    x += group * B * K, y += group * B * N;
#ifndef MUTANT_GROUPS_SCALES_SHARED
    x_scale += group * B * across;
#endif
    w += group * N * K, w_scale += group * down * across;
    fp8_gemm_file::split(blockIdx.y, gridDim.y * gridDim.z, x, x_scale, w, w_scale, y, B, N, K);
}
#endif
