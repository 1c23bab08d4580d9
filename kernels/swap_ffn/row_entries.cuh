// Entry points that use neither tensor cores nor single steps.
#pragma once

#include "swap_ffn/collapse.cuh"
#include "swap_ffn/simple.cuh"

// ---- rows: start, settle and swap, for each form of operand

#define TEAM                                                  \
    __shared__ float partials[ROW_THREADS / 32 * (SUMS + 1)]; \
    const Team<ROW_THREADS> team = {partials, 0};

#define ROWS(FORM, W, N, ...)                                                                                                    \
    KERNEL(swap_ffn_start_##FORM##_##W, __launch_bounds__(ROW_THREADS, 4))(                                                      \
        const bf16 *x_in, const float *scale, const float *shift, float *x, const float *router, const float *g, float *sums,    \
        unsigned char *n, float *n_scale, int C, int D, int begin, float eps) {                                                  \
        TEAM prepare_rows<N>(Film{x_in, scale, shift, C, begin}, team, x, router, g, Sums{sums, (int)gridDim.x}, __VA_ARGS__, D, \
                             eps);                                                                                               \
    }                                                                                                                            \
    KERNEL(swap_ffn_settle_##FORM##_##W, __launch_bounds__(ROW_THREADS, 4))(                                                     \
        float *x, const float *router, const float *g, float *sums, unsigned char *n, float *n_scale, int D, float eps) {        \
        TEAM prepare_rows<N>(Film{}, team, x, router, g, Sums{sums, (int)gridDim.x}, __VA_ARGS__, D, eps);                       \
    }                                                                                                                            \
    SWAP(FORM, W, N, transpose, TRANSPOSE, __VA_ARGS__)                                                                          \
    SWAP(FORM, W, N, move, MOVE, __VA_ARGS__)                                                                                    \
    SWAP(FORM, W, N, literal, LITERAL, __VA_ARGS__)

#define SWAP(FORM, W, N, L, RULE, ...)                                                                                   \
    KERNEL(swap_ffn_swap_##FORM##_##W##_##L, __launch_bounds__(ROW_THREADS, 4))(                                         \
        float *x, unsigned char *ram, u8 *map, u8 *decisions, int event, float *sums, const float *bias, const float *g, \
        unsigned char *n, float *n_scale, int D, float eps) {                                                            \
        TEAM swap_row<N>(RULE, Store{x, ram, map, decisions, Sums{sums, (int)gridDim.x}, bias, g, D, eps}, team, event,  \
                         __VA_ARGS__);                                                                                   \
    }

ROWS(simple, bf16, 4, Bf16Rows{n})
ROWS(simple, e4m3, 4, E4m3Rows{n, n_scale})
ROWS(rows, bf16, 1, Bf16Rows{n})
ROWS(rows, e4m3, 1, E4m3Rows{n, n_scale})

// ---- activation, between the products

KERNEL(swap_ffn_activate_bf16, __launch_bounds__(ROW_THREADS))(const float *gate_up, unsigned char *h, float *h_scale, int F) {
    activate(gate_up, Bf16Rows{h}, F);
}

KERNEL(swap_ffn_activate_e4m3, __launch_bounds__(ROW_THREADS))(const float *gate_up, unsigned char *h, float *h_scale, int F) {
    activate(gate_up, E4m3Rows{h, h_scale}, F);
}

KERNEL(swap_ffn_activate_bf16_in, __launch_bounds__(ROW_THREADS))(const bf16 *gate_up, unsigned char *h, float *h_scale, int F) {
    activate(gate_up, Bf16Rows{h}, F);
}

// ---- products without tensor cores

#define SIMPLE(W, T)                                                                                                             \
    KERNEL(swap_ffn_gate_up_simple_##W,                                                                                          \
           __launch_bounds__(ROW_THREADS, 4))(const T *n, const T *w1, const T *w3, const float *n_scale, const float *w1_scale, \
                                              const float *w3_scale, float *gate_up, int B, int C, int D, int F) {               \
        simple_gate_up(n, w1, w3, n_scale, w1_scale, w3_scale, gate_up, B * C, D, F);                                            \
    }                                                                                                                            \
    KERNEL(swap_ffn_down_simple_##W, __launch_bounds__(ROW_THREADS, 4))(const T *h, const T *w2, const float *h_scale,           \
                                                                        const float *w2_scale, float *x, int B, int C, int D,    \
                                                                        int F, int residual) {                                   \
        simple_down(h, w2, h_scale, w2_scale, x, B * C, D, F, residual);                                                         \
    }                                                                                                                            \
    KERNEL(swap_ffn_join_##W)(const T *w1, const T *w3, const float *w1_scale, const float *w3_scale, T *w13, float *w13_scale,  \
                              int D, int F) {                                                                                    \
        const bool third = blockIdx.x >= F;                                                                                      \
        const int row = blockIdx.x - (third ? F : 0);                                                                            \
        for (int d = threadIdx.x; d < D; d += blockDim.x)                                                                        \
            w13[(size_t)blockIdx.x * D + d] = (third ? w3 : w1)[(size_t)row * D + d];                                            \
        if (threadIdx.x == 0)                                                                                                    \
            w13_scale[blockIdx.x] = (third ? w3_scale : w1_scale)[row];                                                          \
    }
SIMPLE(bf16, bf16)
SIMPLE(e4m3, u8)

// ---- collapse

KERNEL(swap_ffn_pool, __launch_bounds__(ROW_THREADS))(const float *x, const float *alpha, float *pooled, int C, int D) {
    pool(x, alpha, pooled, C, D);
}

KERNEL(swap_ffn_reduce, __launch_bounds__(ROW_THREADS))(const float *pooled, const bf16 *basis, float *reduced, int D) {
    reduce(pooled, basis, reduced, D);
}

KERNEL(swap_ffn_decode, __launch_bounds__(ROW_THREADS))(const float *reduced, const bf16 *decoder, float *delta, int B, int D) {
    decode(reduced, decoder, delta, B, D);
}
