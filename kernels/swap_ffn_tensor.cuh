// Entry points of the products in tensor cores.
#pragma once

#include "swap_ffn_products.cuh"

#define PACK(W, T)                                                                                                             \
    extern "C" __global__ void swap_ffn_pack_gate_up_##W(const uint4 *w1, const uint4 *w3, uint4 *packed, int D) {             \
        pack_gate_up(w1, w3, packed, D * (int)sizeof(T));                                                                      \
    }                                                                                                                          \
    extern "C" __global__ void swap_ffn_pack_down_##W(const uint4 *w2, uint4 *packed, int F) {                                 \
        pack_down(w2, packed, F * (int)sizeof(T));                                                                             \
    }
PACK(bf16, bf16)
PACK(e4m3, u8)

#define GATE_UP(SHARE, W, T)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS, 1) swap_ffn_gate_up_##SHARE##_##W(                           \
        const unsigned char *n, const unsigned char *packed, const float *sums, const float *n_scale, const float *w1_scale,   \
        const float *w3_scale, void *h, int B, int C, float eps) {                                                             \
        gate_up<T, SHARE>(n, packed, sums, n_scale, w1_scale, w3_scale, h, B * C, eps);                                        \
    }
#define DOWN(SHARE, W, T)                                                                                                      \
    extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS, 1) swap_ffn_down_##SHARE##_##W(                              \
        const unsigned char *h, const unsigned char *packed, const float *h_scale, const float *w2_scale, const float *router, \
        const float *g, float *x, float *sums, unsigned char *n, int B, int C, int residual) {                                 \
        down<T, SHARE>(h, packed, h_scale, w2_scale, router, g, x, sums, n, B * C, residual);                                  \
    }
// No other architecture has these products.
#if __CUDA_ARCH__ == 900
GATE_UP(1, bf16, Bf16)
GATE_UP(2, bf16, Bf16)
GATE_UP(4, bf16, Bf16)
GATE_UP(4, e4m3, Fp8)
DOWN(1, bf16, Bf16)
DOWN(2, bf16, Bf16)
DOWN(2, e4m3, Fp8)
#endif
