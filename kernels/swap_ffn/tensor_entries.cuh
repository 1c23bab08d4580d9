// Packing of weights for the tensor cores, and entry points.
#pragma once

#include "swap_ffn/events.cuh"
#include "swap_ffn/row_entries.cuh"

// ---- weights in swizzled tiles of 128 bytes of each row; a thread has 16 bytes

// Permutes sixteen codes as those of activations are: two of the first eight and two of the second in turn.
__device__ __forceinline__ uint4 as_codes(uint4 in) {
    return make_uint4(__byte_perm(in.x, in.z, 0x5410), __byte_perm(in.x, in.z, 0x7632), __byte_perm(in.y, in.w, 0x5410),
                      __byte_perm(in.y, in.w, 0x7632));
}

// Rows of tile t of gate and up: eight of W1 and eight of W3 in turn, from row 128 t on.
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
        const size_t to =
            ((size_t)tile * (row_bytes / 128) + chunk / 8) * GATE_UP_COLUMNS * 128 + swizzle_128b(in_tile, chunk % 8);
        const uint4 in = from[(size_t)at * (row_bytes / 16) + chunk];
        packed[to / 16] = row_bytes > WIDTH ? in : as_codes(in);
    }
}

// Splits of a row have their columns permuted, the split's own share first.
template <int SPLIT> __device__ __forceinline__ void pack_down(const uint4 *w2, uint4 *packed, int row_bytes) {
    const int row = blockIdx.x, tile = row / DOWN_COLUMNS;
    for (int chunk = threadIdx.x; chunk < row_bytes / 16; chunk += blockDim.x) {
        const int in_tile = permute_column<SPLIT>(row % DOWN_COLUMNS, chunk / (row_bytes / 16 / SPLIT));
        const size_t to = ((size_t)tile * (row_bytes / 128) + chunk / 8) * DOWN_COLUMNS * 128 + swizzle_128b(in_tile, chunk % 8);
        const uint4 in = w2[(size_t)row * (row_bytes / 16) + chunk];
        packed[to / 16] = row_bytes > HIDDEN ? in : as_codes(in);
    }
}

// ---- entry points

// Marks all partials, 4 KB for each row, as absent, and clears the counters.
KERNEL(swap_ffn_absent)(uint4 *parts, u32 *joint) {
    Counters{joint, (int)gridDim.x}.clear(blockIdx.x);
    parts[(size_t)blockIdx.x * blockDim.x + threadIdx.x] = make_uint4(ABSENT, ABSENT, ABSENT, ABSENT);
}

#define PACK(W, T)                                                                              \
    KERNEL(swap_ffn_pack_gate_up_##W)(const uint4 *w1, const uint4 *w3, uint4 *packed, int D) { \
        pack_gate_up(w1, w3, packed, D * (int)sizeof(T));                                       \
    }                                                                                           \
    KERNEL(swap_ffn_pack_down_1_##W)(const uint4 *w2, uint4 *packed, int F) {                   \
        pack_down<1>(w2, packed, F * (int)sizeof(T));                                           \
    }                                                                                           \
    KERNEL(swap_ffn_pack_down_4_##W)(const uint4 *w2, uint4 *packed, int F) {                   \
        pack_down<4>(w2, packed, F * (int)sizeof(T));                                           \
    }
PACK(bf16, bf16)
PACK(e4m3, u8)

// Row kernels whose operands are swizzled tiles.

#define TILED(W, CODES)                                                                                                       \
    KERNEL(swap_ffn_start_tiles_##W, __launch_bounds__(ROW_THREADS, 4))(                                                      \
        const bf16 *x_in, const float *scale, const float *shift, float *x, const float *router, const float *g, float *sums, \
        unsigned char *n, u32 *joint, int B, int C, int D, int begin, float eps) {                                            \
        TEAM const Counters all = {joint, B * C};                                                                             \
        wait_on_dependent_grids();                                                                                            \
        all.clear(blockIdx.x);                                                                                                \
        const TiledRows<CODES, ROW_THREADS> operand = {n, all.rows, team};                                                    \
        prepare_rows<1>(Film{x_in, scale, shift, C, begin}, team, x, router, g, Sums{sums, B * C}, operand, D, eps);          \
    }                                                                                                                         \
    SWAP_TILED(W, CODES, transpose, TRANSPOSE)                                                                                \
    SWAP_TILED(W, CODES, move, MOVE)                                                                                          \
    SWAP_TILED(W, CODES, literal, LITERAL)

#define SWAP_TILED(W, CODES, L, RULE)                                                                                    \
    KERNEL(swap_ffn_swap_tiles_##W##_##L, __launch_bounds__(ROW_THREADS, 4))(                                            \
        float *x, unsigned char *ram, u8 *map, u8 *decisions, int event, float *sums, const float *bias, const float *g, \
        unsigned char *n, int B, int C, int D, float eps) {                                                              \
        TEAM const TiledRows<CODES, ROW_THREADS> operand = {n, B * C, team};                                             \
        swap_row<1>(RULE, Store{x, ram, map, decisions, Sums{sums, B * C}, bias, g, D, eps}, team, event, operand);      \
    }
TILED(bf16, false)
TILED(e4m3, true)

// One product for each launch, in step j of event e.

#define PRODUCTS(W, T)                                                                                                       \
    KERNEL(swap_ffn_gate_up_##W, __launch_bounds__(PRODUCT_THREADS, 1))(                                                     \
        const unsigned char *n, const unsigned char *packed, float *sums, const float *w1_scale, const float *w3_scale,      \
        unsigned char *h, u32 *joint, int B, int C, float eps) {                                                             \
        gate_up<T>(GateUpArgs{n, packed, {sums, B * C}, w1_scale, w3_scale, h, eps}, Counters{joint, B * C});                \
    }                                                                                                                        \
    KERNEL(swap_ffn_down_##W, __launch_bounds__(PRODUCT_THREADS, 1))(                                                        \
        unsigned char *h, const unsigned char *packed, const float *w2_scale, const float *router, const float *g, float *x, \
        float *sums, unsigned char *n, u32 *joint, float4 *parts, int B, int C, int J, int e, int j, int residual) {         \
        down<T>(DownArgs{h, packed, w2_scale, router, g, x, {sums, B * C}, n, parts, residual}, Counters{joint, B * C},      \
                e * J + j, j == J - 1);                                                                                      \
    }

// The persistent kernel: all events in one launch.

#define EVENTS(SPLIT, W, T)                                                                                                    \
    KERNEL(swap_ffn_events_##SPLIT##_##W, __launch_bounds__(PRODUCT_THREADS, 1))(                                              \
        const bf16 *x_in, const float *scale, const float *shift, float *x, unsigned char *ram, u8 *map, u8 *decisions,        \
        float *sums, const float *bias, const float *router, const float *g, unsigned char *n, const unsigned char *packed_13, \
        const float *w1_scale, const float *w3_scale, unsigned char *h, const unsigned char *packed_2, const float *w2_scale,  \
        u32 *joint, float4 *parts, int B, int C, int D, int begin, int E, int J, int rule, int residual, float eps) {          \
        events<T, SPLIT>(                                                                                                      \
            Film{x_in, scale, shift, C, begin}, (Rule)rule, Store{x, ram, map, decisions, {sums, B * C}, bias, g, D, eps},     \
            GateUpArgs{n, packed_13, {sums, B * C}, w1_scale, w3_scale, h, eps},                                               \
            DownArgs{h, packed_2, w2_scale, router, g, x, {sums, B * C}, n, parts, residual}, Counters{joint, B * C}, E, J);   \
    }

// Only sm_90a has wgmma.
#if __CUDA_ARCH__ == 900
PRODUCTS(bf16, Bf16)
PRODUCTS(e4m3, Fp8)
EVENTS(1, bf16, Bf16)
EVENTS(4, bf16, Bf16)
EVENTS(1, e4m3, Fp8)
EVENTS(4, e4m3, Fp8)
#endif
