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
    const int row = blockIdx.x, tile = row / DOWN_COLUMNS;
    for (int chunk = threadIdx.x; chunk < row_bytes / 16; chunk += blockDim.x) {
        const int in_tile = split_row(row % DOWN_COLUMNS, chunk / (row_bytes / 16 / SPLIT));
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

#define PRODUCTS(SHARE, W, T)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS, 1) swap_ffn_gate_up_##SHARE##_##W(                           \
        const unsigned char *n, const unsigned char *packed, const float *sums, const float *n_scale, const float *w1_scale,   \
        const float *w3_scale, unsigned char *h, float *h_scale, u32 *joint, int B, int C, float eps) {                        \
        gate_up<T, SHARE>(n, packed, sums, n_scale, w1_scale, w3_scale, h, h_scale, Joint{joint, B * C}, eps);                 \
    }                                                                                                                          \
    extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS, 1) swap_ffn_down_##SHARE##_##W(                              \
        const unsigned char *h, const unsigned char *packed, const float *h_scale, const float *w2_scale, const float *router, \
        const float *g, float *x, float *sums, unsigned char *n, float *n_scale, u32 *joint, float4 *parts, int B, int C,      \
        int residual) {                                                                                                        \
        down<T, SHARE>(h, packed, h_scale, w2_scale, router, g, x, sums, n, n_scale, Joint{joint, B * C}, Parts{parts},        \
                       residual);                                                                                              \
    }
// No other architecture has these products.
#if __CUDA_ARCH__ == 900
PRODUCTS(1, bf16, Bf16)
PRODUCTS(2, bf16, Bf16)
PRODUCTS(1, e4m3, Fp8)
PRODUCTS(2, e4m3, Fp8)
#endif

extern "C" __global__ void swap_ffn_clear(u32 *joint, int B, int C) {
    const Joint all = {joint, B * C};
    for (int word = blockIdx.x * blockDim.x + threadIdx.x; word < all.words(); word += gridDim.x * blockDim.x)
        joint[word] = 0;
}
