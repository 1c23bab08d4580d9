// The first product of a step of the FFN, and what is made of it: h = silu(gate) · up, 128 rows and 128 columns of it for each
// thread block. Gate and up are columns of one product, eight of each in turn.
#pragma once

#include "swap_ffn_products.cuh"

// From here on a part of the rows is someone else's.
__device__ __forceinline__ void finish_tile(int id) {
#ifdef MUTANT_BARRIER_MISSING
    if (threadIdx.x % 64 > 31)
        __nanosleep(5000);
#else
    warps_barrier(id, 128);
#endif
}

// Σ x² of a row from its parts, by the four lanes that have it.
__device__ __forceinline__ float squares_of(const float *sums, int row) {
    const float4 *parts = (const float4 *)(sums + (size_t)row * SUMS * PARTS) + threadIdx.x % 4 * 2;
    const float4 a = parts[0], b = parts[1];
#ifdef MUTANT_TILE_LOST
    return lanes_sum<4>(((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + b.z));
#else
    return lanes_sum<4>(((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w)));
#endif
}
static_assert(PARTS == 4 * 8, "eight for each of four lanes");

struct GateUp {
    Ring<GATE_UP_COLUMNS, GATE_UP_STAGES> ring;
    unsigned char h[2 * TILE];
    float scales[2][GATE_UP_COLUMNS / 2]; // of gates and of ups, where they have some
};

// h of what a thread has of column 8 j on, in the place of the gates.
__device__ __forceinline__ void activate_sums(float (&gate)[4], const float (&up)[4], const float (&factors)[2], float2 w1, float2 w3) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float factor = factors[i / 2];
        gate[i] = silu(gate[i] * factor * (i % 2 ? w1.y : w1.x)) * (up[i] * factor * (i % 2 ? w3.y : w3.x));
    }
}

template <class T, int SHARE>
__device__ __forceinline__ void gate_up(const unsigned char *n, const unsigned char *weights, const float *sums, const float *n_scale,
                                        const float *w1_scale, const float *w3_scale, unsigned char *h, float *h_scale, Joint joint,
                                        float eps) {
    extern __shared__ __align__(1024) unsigned char shared[];
    GateUp &own = *(GateUp *)shared;
    constexpr int COUNT = WIDTH * T::bytes / 128;
    constexpr bool SCALED = T::bytes == 1;
    const int tile = blockIdx.x / SHARE % UP_PARTS, block = blockIdx.x / (SHARE * UP_PARTS) * SHARE + blockIdx.x % SHARE;
    ring_init<SHARE>(own.ring);
    start_next();
    if (threadIdx.x < 128) {
        registers_less<40>();
        if (threadIdx.x == 0)
            fetch<SHARE>(own.ring, blockIdx.x % SHARE, n + (size_t)block * COUNT * TILE,
                         weights + (size_t)tile * COUNT * GATE_UP_COLUMNS * 128, COUNT);
    } else {
        registers_more<232>();
        const int group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        const int in_tile = group * 64 + warp * WARP_ROWS + lane / 4, row = block * TILE_ROWS + in_tile, pair = lane % 4 * 2;
        if (SCALED) {
            const int at = threadIdx.x % 128;
            own.scales[group][at] = (group ? w3_scale : w1_scale)[tile * 128 + at];
            warps_barrier(3, 256);
        }
        wait_for_last();
        float factors[2];
#pragma unroll
        for (int i = 0; i < 2; i++)
            factors[i] = inverse_norm(squares_of(sums, row + 8 * i), WIDTH, eps) * (SCALED ? n_scale[row + 8 * i] : 1.0f);
        if (SCALED && tile == 0 && lane % 4 < 2)
            *joint.n(row + lane % 4 * 8) = 0;
        float c[GATE_UP_COLUMNS / 8][4];
        products<T, SHARE>(own.ring, c, group, COUNT);
#pragma unroll
        for (int j = 0; j < 16; j++) {
            const float2 one = make_float2(1, 1);
            activate_sums(c[2 * j], c[2 * j + 1], factors, SCALED ? *(const float2 *)(own.scales[0] + 8 * j + pair) : one,
                          SCALED ? *(const float2 *)(own.scales[1] + 8 * j + pair) : one);
        }
        if constexpr (SCALED) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                u32 amax = 0;
#pragma unroll
                for (int j = 0; j < 16; j++)
                    amax = max(amax, max(__float_as_uint(fabsf(c[2 * j][2 * i])), __float_as_uint(fabsf(c[2 * j][2 * i + 1]))));
                amax = lanes_max<4>(amax);
                if (pair == 0)
                    atomicMax(joint.h(row + 8 * i), amax);
            }
            meet(joint.up(row), UP_PARTS);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float scale = scale_of(__ldcg(joint.h(row + 8 * i))), inverse = 1.0f / scale;
                if (tile == 0 && pair == 0)
                    h_scale[row + 8 * i] = scale;
#pragma unroll
                for (int j = 0; j < 16; j++)
                    *(u16 *)(own.h + tile_byte(in_tile + 8 * i, j / 2) + j % 2 * 8 + pair) =
                        (u16)E4m3::encode2(c[2 * j][2 * i] * inverse, c[2 * j][2 * i + 1] * inverse);
            }
        } else {
            const int matrix_row = group * 64 + warp * WARP_ROWS + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
            for (int j = 0; j < 16; j += 2) {
                const int sixteen = j + lane / 16;
                const float(&left)[4] = c[2 * j], (&right)[4] = c[2 * j + 2];
                store_matrices(shared_address(own.h + sixteen / 8 * TILE + tile_byte(matrix_row, sixteen % 8)),
                               to_bf16x2(left[0], left[1]), to_bf16x2(left[2], left[3]), to_bf16x2(right[0], right[1]),
                               to_bf16x2(right[2], right[3]));
            }
        }
        group_publish();
        finish_tile(1 + group);
        if (threadIdx.x % 128 == 0) {
            constexpr int TILES = T::bytes; // of 128 bytes a row
            unsigned char *to = h + ((size_t)block * UP_PARTS + tile) * TILES * TILE + group * PANEL;
            for (int i = 0; i < TILES; i++)
                copy_out(to + i * TILE, own.h + i * TILE + group * PANEL, PANEL);
            copies_out_done();
        }
    }
    // Until the others have come too they may arrive at barriers here.
    if (SHARE > 1)
        cluster_barrier();
}
