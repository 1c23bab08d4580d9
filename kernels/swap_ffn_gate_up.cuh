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

// h of what a thread has of eight columns, in the place of the gates.
__device__ __forceinline__ void activate_sums(float (&gate)[4], const float (&up)[4], const float (&factors)[2], float2 w1, float2 w3) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        gate[2 * i] *= factors[i] * w1.x, gate[2 * i + 1] *= factors[i] * w1.y;
        silu_two(gate[2 * i], gate[2 * i + 1]);
        gate[2 * i] *= up[2 * i] * factors[i] * w3.x, gate[2 * i + 1] *= up[2 * i + 1] * factors[i] * w3.y;
    }
}

template <class T> constexpr int UP_COUNT = WIDTH * T::bytes / 128;

template <class T> __device__ __forceinline__ Ring<T, GATE_UP_COLUMNS> up_ring(Tiles<T> &own) {
    return {own.ring, &own.up};
}

template <class T> __device__ __forceinline__ const unsigned char *up_weights(GateUpArgs args, int tile) {
    return args.weights + (size_t)tile * UP_COUNT<T> * GATE_UP_COLUMNS * 128;
}

// By the thread that fetches.
template <class T, class Ready>
__device__ __forceinline__ void gate_up_fetch(Tiles<T> &own, GateUpArgs args, u32 begin, int block, int tile, Ahead ahead, Ready ready) {
    fetch<UP_COUNT<T>>(up_ring(own), begin, args.n + (size_t)block * TILE_ROWS * WIDTH * 2,
                       up_weights<T>(args, tile), Own{}, ahead, [] {}, ready);
}

// The barrier at which half of the rows of a group meet the warp that copies them.
__device__ __forceinline__ int h_barrier(int half, int group) {
    return 8 + 2 * half + group;
}
constexpr int H_THREADS = 128 + 32;

// What is made of the sums of a group, half by half, by those that multiply.
template <class T> struct Activation {
    static constexpr bool SCALED = T::bytes == 1;
    Tiles<T> &own;
    const GateUpArgs &args;
    const Joint &joint;
    float (&c)[2][16][4];
    float factors[2];
    u32 largest[2];
    int group, row, pair, step; // the first of two rows and of columns of a thread
    u32 parity;

    template <int HALF> __device__ __forceinline__ void operator()(Number<HALF>) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        float(&sums)[16][4] = c[HALF];
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int at = pair + 64 * HALF + 8 * j;
            const float2 one = make_float2(1, 1);
            activate_sums(sums[2 * j], sums[2 * j + 1], factors, SCALED ? *(const float2 *)(args.gate_scale + at) : one,
                          SCALED ? *(const float2 *)(args.up_scale + at) : one);
#pragma unroll
            for (int i = 0; i < 2; i++)
                largest[i] =
                    max(largest[i], max(__float_as_uint(fabsf(sums[2 * j][2 * i])), __float_as_uint(fabsf(sums[2 * j][2 * i + 1]))));
        }
        if (SCALED && HALF == 1)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const u32 most = lanes_max<4>(largest[i]);
                if (lane % 4 == 0)
                    atomicMax(joint.h_largest(step, row + 8 * i), most);
            }
        // What was there before has been copied.
        if (HALF == 0)
            arrival_wait(own.h_copied + group, parity);
        const int matrix_row = warp * WARP_ROWS + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            const float(&left)[4] = sums[2 * j], (&right)[4] = sums[2 * j + 2];
            store_matrices(shared_address(own.h_of(HALF, group) + tile_byte(matrix_row, j + lane / 16)), to_bf16x2(left[0], left[1]),
                           to_bf16x2(left[2], left[3]), to_bf16x2(right[0], right[1]), to_bf16x2(right[2], right[3]));
        }
        group_publish();
        warps_arrive(h_barrier(HALF, group), H_THREADS);
    }
};

// By those that multiply, when the rows are there.
template <class T>
__device__ __forceinline__ void gate_up_multiply(Tiles<T> &own, GateUpArgs args, u32 begin, int block, int tile, int step, Joint joint) {
    constexpr bool SCALED = T::bytes == 1;
    const int group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const int row = block * TILE_ROWS + group * 64 + warp * WARP_ROWS + lane / 4;
    float c[2][16][4], inverse[2] = {1, 1};
    Activation<T> activation = {own,           args, joint, c, {}, {}, group, row, tile * 128 + lane % 4 * 2, step,
                                begin / UP_COUNT<T> & 1 ^ 1};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        activation.factors[i] = inverse_norm(squares_of(args.sums, row + 8 * i), WIDTH, args.eps);
        if (SCALED) {
            const float scale = scale_of(*joint.n_largest(step, row + 8 * i));
            activation.factors[i] *= scale, inverse[i] = 1.0f / scale;
        }
    }
    // Nobody reads it any more, or not yet.
    if (SCALED && tile == 0 && lane % 4 < 2)
        *joint.n_largest(step + 1, row + lane % 4 * 8) = 0;
    const auto ring = up_ring(own);
    products<UP_COUNT<T>>(ring, begin, c, group, inverse, [&](int, u32 slot) { return ring.a(slot); }, [](int) {}, activation);
}

// By a warp for each group: h to memory. Then one thread of it calls `done`.
template <class T, class Done>
__device__ __forceinline__ void gate_up_store(Tiles<T> &own, GateUpArgs args, int group, int block, int tile, Done done) {
    for (int half = 0; half < 2; half++) {
#ifndef MUTANT_BARRIER_MISSING
        warps_barrier(h_barrier(half, group), H_THREADS);
#endif
        if (threadIdx.x % 32 == 0)
            copy_out(args.h + (((size_t)block * UP_PARTS + tile) * 2 + half) * TILE + group * PANEL, own.h_of(half, group), PANEL);
#ifdef MUTANT_BARRIER_MISSING
        warps_barrier(h_barrier(half, group), H_THREADS);
#endif
    }
    if (threadIdx.x % 32 == 0) {
        copies_out_done();
        done();
        barrier_arrive(own.h_copied + group);
    }
    __syncwarp();
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
            gate_up_fetch(own, args, 0, block, tile, Ahead{few(joint), MOST_STAGES, MOST_STAGES}, wait_for_last);
        else if (threadIdx.x / 32 == 1 || threadIdx.x / 32 == 2) {
            wait_for_last();
            gate_up_store(own, args, threadIdx.x / 32 - 1, block, tile, [] {});
        }
    } else {
        registers_more<232>();
        wait_for_last();
        gate_up_multiply(own, args, 0, block, tile, step, joint);
    }
}
