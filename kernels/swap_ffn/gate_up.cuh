// The first product of a step of the FFN and its epilogue, h = silu(gate) · up: 128 rows and 128 columns of h for each CTA. Gate and
// up are interleaved as columns of one product, eight of each in turn.
#pragma once

#include "swap_ffn/mainloop.cuh"

// Adds the partials of Σ x² of a row, over the four lanes that have the row.
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

// The first product reads n in tiles, Σ x² of rows and packed weights, with their scales if they have any, and writes h in tiles.
struct GateUpArgs {
    const unsigned char *n, *weights;
    Sums sums;
    const float *gate_scale, *up_scale;
    unsigned char *h;
    float eps;
};

// h of a thread's part of eight columns, in the place of the gates.
__device__ __forceinline__ void activate_sums(float (&gate)[4], const float (&up)[4], const float (&factors)[2], float2 w1,
                                              float2 w3) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        gate[2 * i] *= factors[i] * w1.x, gate[2 * i + 1] *= factors[i] * w1.y;
        silu_pair(gate[2 * i], gate[2 * i + 1]);
        gate[2 * i] *= up[2 * i] * factors[i] * w3.x, gate[2 * i + 1] *= up[2 * i + 1] * factors[i] * w3.y;
    }
}

template <class T> constexpr int UP_COUNT = WIDTH * T::bytes / 128;

template <class T> __device__ __forceinline__ Pipeline<T, GATE_UP_COLUMNS> up_pipeline(SharedStorage<T> &smem) {
    return {smem.pipeline, &smem.up};
}

// All threads load, before a barrier, the scales of the only tile that a CTA has of the first product.
template <class T> __device__ __forceinline__ void gate_up_scales(SharedStorage<T> &smem, GateUpArgs args, int tile) {
    constexpr int COLUMNS = GATE_UP_COLUMNS / 2;
    if (T::bytes == 1 && threadIdx.x < COLUMNS)
        smem.gate_scale[threadIdx.x] = args.gate_scale[tile * COLUMNS + threadIdx.x],
        smem.up_scale[threadIdx.x] = args.up_scale[tile * COLUMNS + threadIdx.x];
}

// The producer thread calls it.
template <class T, class Ready>
__device__ __forceinline__ void gate_up_producer(SharedStorage<T> &smem, GateUpArgs args, u32 begin, int block, int tile,
                                                 Prefetch prefetch, Ready ready) {
    const auto a_ready = [&] {
        ready();
        mbarrier_arrive(&smem.n_ready);
        if (T::bytes == 1) {
            fence_proxy_async();
            mbarrier_arrive_expect_tx(&smem.exponents_full, EXPONENTS);
            tma_load_1d(smem.exponents(begin / UP_COUNT<T> & 1),
                        exponents_of((unsigned char *)args.n, args.sums.rows, WIDTH, block), EXPONENTS, &smem.exponents_full);
        }
    };
    producer_mainloop<UP_COUNT<T>>(
        up_pipeline(smem), begin, args.n + (size_t)block * TILE_ROWS * WIDTH * T::bytes, nullptr,
        args.weights + (size_t)tile * UP_COUNT<T> * GATE_UP_COLUMNS * 128, ResidentA{}, prefetch, [] {}, a_ready);
}

// The named barrier at which half the columns of a warpgroup's h pass to the warp that stores them.
__device__ __forceinline__ int h_barrier(int half, int group) {
    return 8 + 2 * half + group;
}
constexpr int H_THREADS = 128 + 32;

// The epilogue of a consumer warpgroup, half by half.
template <class T> struct Activation {
    static constexpr bool SCALED = T::bytes == 1;
    SharedStorage<T> &smem;
    float (&c)[2][16][4];
    float factors[2];
    u32 largest[2];
    float *scales;
    int group;
    u32 parity;

    template <int HALF> __device__ __forceinline__ void operator()(Int<HALF>) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        float (&sums)[16][4] = c[HALF];
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int at = lane % 4 * 2 + 64 * HALF + 8 * j;
            const float2 one = make_float2(1, 1);
            activate_sums(sums[2 * j], sums[2 * j + 1], factors, SCALED ? *(const float2 *)(smem.gate_scale + at) : one,
                          SCALED ? *(const float2 *)(smem.up_scale + at) : one);
#pragma unroll
            for (int i = 0; i < 2; i++)
                largest[i] = max(largest[i],
                                 max(__float_as_uint(fabsf(sums[2 * j][2 * i])), __float_as_uint(fabsf(sums[2 * j][2 * i + 1]))));
        }
        // The h that was here before has been stored.
        if (HALF == 0)
            mbarrier_wait_parity(smem.h_stored + group, parity);
        const int matrix_row = warp * WARP_ROWS + lane / 8 % 2 * 8 + lane % 8;
        if constexpr (SCALED) {
            if constexpr (HALF == 1)
                code(matrix_row);
            return;
        }
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            const float (&left)[4] = sums[2 * j], (&right)[4] = sums[2 * j + 2];
            stmatrix_x4(smem_address(smem.h_of(HALF, group) + swizzle_128b(matrix_row, j + lane / 16)),
                        to_bf16x2(left[0], left[1]), to_bf16x2(left[2], left[3]), to_bf16x2(right[0], right[1]),
                        to_bf16x2(right[2], right[3]));
        }
        fence_proxy_async_smem();
        named_barrier_arrive(h_barrier(HALF, group), H_THREADS);
    }

    // Encodes all columns; of each sixteen codes, two of the first eight and two of the second in turn.
    __device__ __forceinline__ void code(int matrix_row) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        float inverse[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float scale = scale_of(lanes_max<4>(largest[i]));
            inverse[i] = 1.0f / scale;
            if (lane % 4 == 0)
                scales[group * 64 + warp * WARP_ROWS + lane / 4 + 8 * i] = scale;
        }
        const auto encode4 = [&](int chunk, int i) {
            const float (&left)[4] = c[chunk / 4][chunk % 4 * 4], (&right)[4] = c[chunk / 4][chunk % 4 * 4 + 2];
            return E4m3::encode2(left[2 * i] * inverse[i], left[2 * i + 1] * inverse[i]) |
                   E4m3::encode2(right[2 * i] * inverse[i], right[2 * i + 1] * inverse[i]) << 16;
        };
#pragma unroll
        for (int chunk = 0; chunk < 8; chunk += 2)
            stmatrix_x4(smem_address(smem.h_of(0, group) + swizzle_128b(matrix_row, chunk + lane / 16)), encode4(chunk, 0),
                        encode4(chunk, 1), encode4(chunk + 1, 0), encode4(chunk + 1, 1));
        fence_proxy_async_smem();
        named_barrier_arrive(h_barrier(0, group), H_THREADS);
    }
};

// The consumer warpgroups call it.
template <class T>
__device__ __forceinline__ void gate_up_consumer(SharedStorage<T> &smem, GateUpArgs args, u32 begin, int block, int tile,
                                                 Counters counters) {
    constexpr bool SCALED = T::bytes == 1;
    const int group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const int in_block = group * 64 + warp * WARP_ROWS + lane / 4, row = block * TILE_ROWS + in_block;
    const u32 phase = begin / UP_COUNT<T> & 1;
    mbarrier_wait_parity(&smem.n_ready, phase);
    float c[2][16][4];
    Activation<T> activation = {smem, c, {}, {}, hidden_scales(args.h, counters.rows, block, tile), group, phase ^ 1};
    float squares[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        squares[i] = squares_of(args.sums, row + 8 * i);
    if (SCALED)
        mbarrier_wait_parity(&smem.exponents_full, phase);
    const u32 *const exponents = (const u32 *)smem.exponents(phase);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        activation.factors[i] = inverse_rms(squares[i], WIDTH, args.eps);
        if (SCALED) {
            const u32 exponent = largest_exponent<WIDTH / 128>(exponents + in_block + 8 * i);
            activation.factors[i] *= power_of(exponent);
            // All CTAs that write it write the same.
            if (lane % 4 == 0)
                row_exponents_of((unsigned char *)args.n, counters.rows, WIDTH)[row + 8 * i] = exponent;
        }
    }
    // The row whose codes this thread aligns to one exponent, which is seldom needed.
    const u32 *const aligned_row = exponents + group * 64 + threadIdx.x % 128 / 2;
    const u32 most = SCALED ? largest_exponent<WIDTH / 128>(aligned_row) * 0x01010101u : 0;
    bool lower = false;
    if (SCALED) {
        u32 below = 0;
#pragma unroll
        for (int i = 0; i < WIDTH / 128; i++)
            below |= most - aligned_row[i * TILE_ROWS];
        lower = named_barrier_any(1 + group, 128, below != 0);
    }
    // ---- mainloop: consumer, with the epilogue in `activation`
    const auto pipeline = up_pipeline(smem);
    consumer_mainloop<UP_COUNT<T>>(
        pipeline, begin, c, group, [&](int, u32 slot) { return pipeline.a(slot); },
        [&](int i, u32 slot) {
            if (SCALED && lower)
                align_exponents(pipeline.a(slot), group, most - aligned_row[i * TILE_ROWS]);
        },
        [](int) {}, [](int, u32) { return make_float2(1, 1); }, activation);
}

// A store warp for each warpgroup copies h to memory; then one thread of it calls `done`.
template <class T, class Done>
__device__ __forceinline__ void gate_up_store(SharedStorage<T> &smem, GateUpArgs args, int group, int block, int tile,
                                              Done done) {
    for (int half = 0; half < T::bytes; half++) {
#ifndef MUTANT_BARRIER_MISSING
        named_barrier_sync(h_barrier(half, group), H_THREADS);
#endif
        if (threadIdx.x % 32 == 0)
            tma_store_1d(args.h + (((size_t)block * UP_PARTS + tile) * T::bytes + half) * TILE + group * PANEL,
                         smem.h_of(half, group), PANEL);
#ifdef MUTANT_BARRIER_MISSING
        named_barrier_sync(h_barrier(half, group), H_THREADS);
#endif
    }
    if (threadIdx.x % 32 == 0) {
        tma_store_wait();
        done();
        mbarrier_arrive(smem.h_stored + group);
    }
    __syncwarp();
}

// The kernel of a single product: a CTA for each tile.
template <class T> __device__ __forceinline__ void gate_up(GateUpArgs args, Counters counters) {
    extern __shared__ __align__(1024) unsigned char smem_bytes[];
    SharedStorage<T> &smem = *(SharedStorage<T> *)smem_bytes;
    const int tile = blockIdx.x % UP_PARTS, block = blockIdx.x / UP_PARTS;
    gate_up_scales(smem, args, tile);
    smem_init(smem);
    launch_dependent_grids();
    if (threadIdx.x < 128) {
        warpgroup_reg_dealloc<40>();
        if (threadIdx.x == 0)
            gate_up_producer(smem, args, 0, block, tile, Prefetch{weights_read_once(counters), MAX_STAGES, MAX_STAGES},
                             wait_on_dependent_grids);
        else if (threadIdx.x / 32 == 1 || threadIdx.x / 32 == 2) {
            wait_on_dependent_grids();
            gate_up_store(smem, args, threadIdx.x / 32 - 1, block, tile, [] {});
        }
    } else {
        warpgroup_reg_alloc<232>();
        wait_on_dependent_grids();
        gate_up_consumer(smem, args, 0, block, tile, counters);
    }
}
