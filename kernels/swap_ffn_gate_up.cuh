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

// Sum of the parts of Σ x² of a row.
__device__ __forceinline__ float squares_of(const float *sums, int row) {
    const float4 *parts = (const float4 *)(sums + (size_t)row * SUMS * PARTS);
    const float4 a = parts[0], b = parts[1];
#ifdef MUTANT_TILE_LOST
    return ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + b.z);
#else
    return ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
#endif
}

struct GateUp {
    Ring<GATE_UP_COLUMNS, GATE_UP_STAGES> ring;
    unsigned char h[2 * TILE];
    float scales[2][GATE_UP_COLUMNS / 2]; // of gates and of ups, where they have some
};

// What gates and ups of two rows of a thread are times.
template <class T>
__device__ __forceinline__ void row_factors(float (&factors)[2], int row, const float *sums, const float *n_scale, float eps) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        factors[i] = T::bytes == 1 ? n_scale[row + 8 * i] : 1.0f;
        if (T::bytes == 2 || JOINED<T>)
            factors[i] *= inverse_norm(squares_of(sums, row + 8 * i), WIDTH, eps);
    }
}

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
                                        const float *w1_scale, const float *w3_scale, void *h, float *h_scale, Joint joint, int rows,
                                        float eps) {
    extern __shared__ __align__(1024) unsigned char shared[];
    GateUp &own = *(GateUp *)shared;
    constexpr int COUNT = WIDTH * T::bytes / 128;
    const int blocks = rows / TILE_ROWS;
    // Those that are joined are next to each other.
    const int place = JOINED<T> ? blockIdx.x % (SHARE * UP_PARTS) : blockIdx.x;
    const int block = JOINED<T> ? blockIdx.x / (SHARE * UP_PARTS) * SHARE + place % SHARE : place % blocks;
    const int tile = JOINED<T> ? place / SHARE : place / blocks;
    const Sharing<SHARE> sharing = {block % SHARE, 0, 1};
    ring_init<SHARE>(own.ring);
    start_next();
    if (threadIdx.x < 128) {
        registers_less<40>();
        if (threadIdx.x == 0)
            fetch(own.ring, sharing, n + (size_t)block * COUNT * TILE, weights + (size_t)tile * COUNT * GATE_UP_COLUMNS * 128, COUNT);
    } else {
        registers_more<232>();
        const int group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        const int in_tile = group * 64 + warp * 16 + lane / 4, row = block * TILE_ROWS + in_tile, pair = lane % 4 * 2;
        if (T::bytes == 1) {
            const int at = threadIdx.x % 128;
            own.scales[group][at] = (group ? w3_scale : w1_scale)[tile * 128 + at];
            warps_barrier(3, 256);
        }
        wait_for_last();
        float factors[2];
        row_factors<T>(factors, row, sums, n_scale, eps);
        if (JOINED<T> && tile == 0 && threadIdx.x % 256 < TILE_ROWS)
            *joint.n(block * TILE_ROWS + threadIdx.x % 256) = 0;
        float c[GATE_UP_COLUMNS / 8][4];
        products<T>(own.ring, sharing, c, group, COUNT);
#pragma unroll
        for (int j = 0; j < 16; j++) {
            const float2 one = make_float2(1, 1);
            activate_sums(c[2 * j], c[2 * j + 1], factors, T::bytes == 1 ? *(const float2 *)(own.scales[0] + 8 * j + pair) : one,
                          T::bytes == 1 ? *(const float2 *)(own.scales[1] + 8 * j + pair) : one);
        }
        if constexpr (T::bytes == 2) {
            const int matrix_row = group * 64 + warp * 16 + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
            for (int j = 0; j < 16; j += 2) {
                const int sixteen = j + lane / 16;
                const float(&left)[4] = c[2 * j], (&right)[4] = c[2 * j + 2];
                store_matrices(shared_address(own.h + sixteen / 8 * TILE + tile_byte(matrix_row, sixteen % 8)),
                               to_bf16x2(left[0], left[1]), to_bf16x2(left[2], left[3]), to_bf16x2(right[0], right[1]),
                               to_bf16x2(right[2], right[3]));
            }
        } else if constexpr (JOINED<T>) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                u32 amax = 0;
#pragma unroll
                for (int j = 0; j < 16; j++)
                    amax = max(amax, max(__float_as_uint(fabsf(c[2 * j][2 * i])), __float_as_uint(fabsf(c[2 * j][2 * i + 1]))));
                amax = lanes_max<4>(amax);
                if (lane % 4 == 0)
                    atomicMax(joint.h(row + 8 * i), amax);
            }
            join(joint.up(block), UP_PARTS);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float scale = scale_of(load_acquired(joint.h(row + 8 * i))), inverse = 1.0f / scale;
                if (tile == 0 && lane % 4 == 0)
                    h_scale[row + 8 * i] = scale;
#pragma unroll
                for (int j = 0; j < 16; j++)
                    *(u16 *)(own.h + tile_byte(in_tile + 8 * i, j / 2) + j % 2 * 8 + pair) =
                        (u16)E4m3::encode2(c[2 * j][2 * i] * inverse, c[2 * j][2 * i + 1] * inverse);
            }
        } else {
#pragma unroll
            for (int j = 0; j < 16; j++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    *(float2 *)((float *)h + (size_t)(row + 8 * i) * HIDDEN + tile * 128 + 8 * j + pair) =
                        make_float2(c[2 * j][2 * i], c[2 * j][2 * i + 1]);
        }
        if constexpr (T::bytes == 2 || JOINED<T>) {
            constexpr int TILES = T::bytes; // of 128 columns
            group_publish();
            finish_tile(1 + group);
            if (threadIdx.x % 128 == 0) {
                unsigned char *to = (unsigned char *)h + ((size_t)block * UP_PARTS + tile) * TILES * TILE + group * PANEL;
                for (int i = 0; i < TILES; i++)
                    copy_out(to + i * TILE, own.h + i * TILE + group * PANEL, PANEL);
                copies_out_done();
            }
        }
    }
    // Until the others have come too they may arrive at barriers here.
    if (SHARE > 1)
        cluster_barrier();
}
