// The first product of a step of the FFN, and what is made of it: h = silu(gate) · up, 128 rows and 128 columns of it for each
// thread block. Gate and up are columns of one product, eight of each in turn.
#pragma once

#include "swap_ffn_products.cuh"

// Σ x² of a row from its parts, by the four lanes that have it.
__device__ __forceinline__ float squares_of(Sums sums, int row) {
    const float4 *parts = (const float4 *)sums.squares(row) + threadIdx.x % 4 * 2;
    const float4 a = parts[0], b = parts[1];
#ifdef MUTANT_TILE_LOST
    return lanes_sum<4>(((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + b.z));
#else
    return lanes_sum<4>(((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w)));
#endif
}
static_assert(PARTS == 4 * 8, "eight for each of four lanes");

// What the first product reads and writes: n in tiles, Σ x² in sums, packed weights, their scales where they have some, and h
// in tiles.
struct GateUpArgs {
    const unsigned char *n, *weights;
    Sums sums;
    const float *gate_scale, *up_scale;
    unsigned char *h;
    float eps;
};

// h of what a thread has of columns 8 j on, in the place of the gates.
__device__ __forceinline__ void activate_sums(float (&gate)[4], const float (&up)[4], const float (&factors)[2], float2 w1, float2 w3) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float factor = factors[i / 2];
        gate[i] = silu(gate[i] * factor * (i % 2 ? w1.y : w1.x)) * (up[i] * factor * (i % 2 ? w3.y : w3.x));
    }
}

template <class T> constexpr int UP_COUNT = WIDTH * T::bytes / 128;

template <class T> __device__ __forceinline__ Ring<T, GATE_UP_COLUMNS> up_ring(Tiles<T> &own) {
    return {own.ring, &own.up};
}

// By the thread that fetches.
template <class T, class Ready>
__device__ __forceinline__ void gate_up_fetch(Tiles<T> &own, GateUpArgs args, u32 begin, int block, int tile, Ready ready) {
    fetch(up_ring(own), begin, args.n + (size_t)block * TILE_ROWS * WIDTH * 2,
                           args.weights + (size_t)tile * UP_COUNT<T> * GATE_UP_COLUMNS * 128, UP_COUNT<T>, ready);
}

// By those that multiply, when the rows are there. Then one thread of each group calls `done`.
template <class T, class Done>
__device__ __forceinline__ void gate_up_multiply(Tiles<T> &own, GateUpArgs args, u32 begin, int block, int tile, int step, Joint joint,
                                                 Done done) {
    constexpr bool SCALED = T::bytes == 1;
    const int group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const int row = block * TILE_ROWS + group * 64 + warp * WARP_ROWS + lane / 4, pair = tile * 128 + lane % 4 * 2;
    float factors[2], inverse[2] = {1, 1};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        factors[i] = inverse_norm(squares_of(args.sums, row + 8 * i), WIDTH, args.eps);
        if (SCALED) {
            const float scale = scale_of(*joint.n_largest(step, row + 8 * i));
            factors[i] *= scale, inverse[i] = 1.0f / scale;
        }
    }
    // Nobody reads it any more, or not yet.
    if (SCALED && tile == 0 && lane % 4 < 2)
        *joint.n_largest(step + 1, row + lane % 4 * 8) = 0;
    float c[GATE_UP_COLUMNS / 8][4];
    products(up_ring(own), begin, c, group, UP_COUNT<T>, inverse);
    u32 largest[2] = {};
#pragma unroll
    for (int j = 0; j < 16; j++) {
        const float2 one = make_float2(1, 1);
        activate_sums(c[2 * j], c[2 * j + 1], factors, SCALED ? *(const float2 *)(args.gate_scale + pair + 8 * j) : one,
                      SCALED ? *(const float2 *)(args.up_scale + pair + 8 * j) : one);
#pragma unroll
        for (int i = 0; i < 2; i++)
            largest[i] = max(largest[i], max(__float_as_uint(fabsf(c[2 * j][2 * i])), __float_as_uint(fabsf(c[2 * j][2 * i + 1]))));
    }
    if (SCALED)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const u32 most = lanes_max<4>(largest[i]);
            if (lane % 4 == 0)
                atomicMax(joint.h_largest(step, row + 8 * i), most);
        }
    // What was there before has been copied.
    warps_barrier(1 + group, 128);
#ifdef MUTANT_BARRIER_MISSING
    if (threadIdx.x % 128 > 63)
        __nanosleep(5000);
#endif
    const int matrix_row = group * 64 + warp * WARP_ROWS + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
    for (int j = 0; j < 16; j += 2) {
        const int sixteen = j + lane / 16;
        const float(&left)[4] = c[2 * j], (&right)[4] = c[2 * j + 2];
        store_matrices(shared_address(own.h + sixteen / 8 * TILE + tile_byte(matrix_row, sixteen % 8)), to_bf16x2(left[0], left[1]),
                       to_bf16x2(left[2], left[3]), to_bf16x2(right[0], right[1]), to_bf16x2(right[2], right[3]));
    }
    group_publish();
#ifndef MUTANT_BARRIER_MISSING
    warps_barrier(1 + group, 128);
#endif
    if (threadIdx.x % 128 == 0) {
        unsigned char *to = args.h + ((size_t)block * UP_PARTS + tile) * 2 * TILE + group * PANEL;
        for (int i = 0; i < 2; i++)
            copy_out(to + i * TILE, own.h + i * TILE + group * PANEL, PANEL);
        copies_out_done();
        done();
    }
}

// A launch of its own: a thread block for each tile.
template <class T> __device__ __forceinline__ void gate_up(GateUpArgs args, Joint joint, int step) {
    extern __shared__ __align__(1024) unsigned char shared[];
    Tiles<T> &own = *(Tiles<T> *)shared;
    const int tile = blockIdx.x % UP_PARTS, block = blockIdx.x / UP_PARTS;
    tiles_init(own);
    start_next();
    if (threadIdx.x < 128) {
        registers_less<40>();
        if (threadIdx.x == 0)
            gate_up_fetch(own, args, 0, block, tile, wait_for_last);
    } else {
        registers_more<232>();
        wait_for_last();
        gate_up_multiply(own, args, 0, block, tile, step, joint, [] {});
    }
}
