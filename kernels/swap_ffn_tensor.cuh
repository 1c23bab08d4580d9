// Weights for the products in tensor cores, and entry points.
#pragma once

#include "swap_ffn_down.cuh"
#include "swap_ffn_gate_up.cuh"

// ---- Weights as the products fetch them, in tiles of ROWS rows and 128 bytes. A thread has 16 bytes.

// Rows of tile t of gate and up: eight of W1 and of W3 in turn, from row 128 t on.
__device__ __forceinline__ void pack_gate_up(const uint4 *w1, const uint4 *w3, uint4 *packed, int row_bytes) {
    const int row = blockIdx.x, in_tile = row % GATE_UP_COLUMNS, tile = row / GATE_UP_COLUMNS;
#ifdef MUTANT_INTERLEAVE_OFF
    const uint4 *from = in_tile / 16 % 2 ? w3 : w1;
    const int at = tile * 128 + in_tile / 32 * 16 + in_tile % 16;
#else
    const uint4 *from = in_tile / 8 % 2 ? w3 : w1;
    const int at = tile * 128 + in_tile / 16 * 8 + in_tile % 8;
#endif
    for (int chunk = threadIdx.x; chunk < row_bytes / 16; chunk += blockDim.x) {
        const size_t to = ((size_t)tile * (row_bytes / 128) + chunk / 8) * GATE_UP_COLUMNS * 128 + tile_byte(in_tile, chunk % 8);
        packed[to / 16] = from[(size_t)at * (row_bytes / 16) + chunk];
    }
}

__device__ __forceinline__ void pack_down(const uint4 *w2, uint4 *packed, int row_bytes) {
    const int row = blockIdx.x, in_tile = row % DOWN_COLUMNS, tile = row / DOWN_COLUMNS;
    for (int chunk = threadIdx.x; chunk < row_bytes / 16; chunk += blockDim.x) {
        const size_t to = ((size_t)tile * (row_bytes / 128) + chunk / 8) * DOWN_COLUMNS * 128 + tile_byte(in_tile, chunk % 8);
        packed[to / 16] = w2[(size_t)row * (row_bytes / 16) + chunk];
    }
}

// ---- Entry points.

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
        gate_up<T, SHARE>(n, packed, sums, n_scale, w1_scale, w3_scale, h, nullptr, Joint{}, B * C, eps);                      \
    }
#define DOWN(SHARE, W, T)                                                                                                      \
    extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS, 1) swap_ffn_down_##SHARE##_##W(                              \
        const unsigned char *h, const unsigned char *packed, const float *h_scale, const float *w2_scale, const float *router, \
        const float *g, float *x, float *sums, unsigned char *n, int B, int C, int residual) {                                 \
        down<T, SHARE>(h, packed, h_scale, w2_scale, router, g, x, sums, n, nullptr, Joint{}, B * C, residual);                \
    }
#define JOINED_PRODUCTS(UP_SHARE, DOWN_SHARE)                                                                                  \
    extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS, 1) swap_ffn_gate_up_joined_##UP_SHARE(                       \
        const unsigned char *n, const unsigned char *packed, const float *sums, const float *n_scale, const float *w1_scale,   \
        const float *w3_scale, void *h, float *h_scale, u32 *joint, int B, int C, float eps) {                                 \
        gate_up<Fp8Joined, UP_SHARE>(n, packed, sums, n_scale, w1_scale, w3_scale, h, h_scale, Joint{joint, B * C}, B * C,     \
                                     eps);                                                                                     \
    }                                                                                                                          \
    extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS, 1) swap_ffn_down_joined_##DOWN_SHARE(                        \
        const unsigned char *h, const unsigned char *packed, const float *h_scale, const float *w2_scale, const float *router, \
        const float *g, float *x, float *sums, unsigned char *n, float *n_scale, u32 *joint, int B, int C, int residual) {     \
        down<Fp8Joined, DOWN_SHARE>(h, packed, h_scale, w2_scale, router, g, x, sums, n, n_scale, Joint{joint, B * C}, B * C,  \
                                    residual);                                                                                 \
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
JOINED_PRODUCTS(2, 1)
JOINED_PRODUCTS(4, 2)

extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS, 1)
    swap_ffn_down_planes(const unsigned char *h, const unsigned char *packed, float *planes, int B, int C) {
    down_planes<Bf16>(h, packed, planes, B * C);
}
#endif

extern "C" __global__ void __launch_bounds__(ROW_THREADS, 4)
    swap_ffn_gather(const float *planes, float *x, const float *router, const float *g, float *sums, unsigned char *n, int D, int residual,
                    float eps) {
    settle<1>(Planes<SPLIT>{planes, residual}, x, router, g, sums, Rounded<true>{n, nullptr}, D, eps);
}

extern "C" __global__ void swap_ffn_clear(u32 *joint, int B, int C) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    start_next();
    wait_for_last();
    if (row < B * C)
        Joint{joint, B * C}.clear(row);
}
