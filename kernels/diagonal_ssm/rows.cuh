// A CTA for each head, all in registers: chunks of T = 32 steps are rows of the A operand, so that accumulators and scanned states
// stay in the lanes that have them. With K_j = Σ c b aʲ and x before a chunk:
//
//   e = Σ_s a^(T−1−s) u_s    y_t = Σ_{s≤t} K_{t−s} u_s + Σ_n c b a^(t+1) x    x ← a^T x + e
//
// The order of a chunk's numbers among the columns is free, if all operands agree: of every 32, a lane has two times four
// neighbours.
#pragma once

#include "lib/mma.cuh"

// The steps of a chunk, as many as states.
constexpr int T = 32;
// The warps of a CTA, and the A operands of 16 chunks that each warp has at a time.
constexpr int WARPS = 4, TILES = 2;

// The number, of 32 steps or states, of fragment element `i` of eight in a lane of four.
__device__ __forceinline__ int fragment_column(int lane, int i) {
    return 4 * lane + i % 4 + i / 4 * 16;
}

// Loads a lane's eight of 32 numbers from shared memory.
__device__ __forceinline__ void load_fragment(const float *from, int lane, float (&x)[8]) {
    const float4 first = *(const float4 *)(from + 4 * lane), second = *(const float4 *)(from + 16 + 4 * lane);
    x[0] = first.x, x[1] = first.y, x[2] = first.z, x[3] = first.w;
    x[4] = second.x, x[5] = second.y, x[6] = second.z, x[7] = second.w;
}

__device__ __forceinline__ void store_fragment(float *to, int lane, const float (&x)[8]) {
    *(float4 *)(to + 4 * lane) = make_float4(x[0], x[1], x[2], x[3]);
    *(float4 *)(to + 16 + 4 * lane) = make_float4(x[4], x[5], x[6], x[7]);
}

// A lane's accumulators of 16 rows and four times 8 columns: two columns of row lane / 4, then of the row 8 below.
typedef float Accumulator[4][4];

// Element `i` of eight in a row of the lane.
__device__ __forceinline__ float &row_element(Accumulator &tile, int half, int i) {
    return tile[i / 2][2 * half + i % 2];
}

// Four neighbouring elements.
__device__ __forceinline__ float4 row_vec4(Accumulator &tile, int half, int i) {
    return make_float4(row_element(tile, half, i), row_element(tile, half, i + 1), row_element(tile, half, i + 2),
                       row_element(tile, half, i + 3));
}

__device__ __forceinline__ void set_row_vec4(Accumulator &tile, int half, int i, float4 x) {
    row_element(tile, half, i) = x.x, row_element(tile, half, i + 1) = x.y;
    row_element(tile, half, i + 2) = x.z, row_element(tile, half, i + 3) = x.w;
}

// Splits a number into two TF32 numbers, of which the mma reads no further bits: the rounded one, and the rest.
__device__ __forceinline__ void split_tf32(float x, u32 &high, u32 &low) {
    high = __float_as_uint(x) + 0x1000 & 0xffffe000;
    low = __float_as_uint(x - __uint_as_float(high));
}

// An A operand of 16 × 8, as two TF32 parts.
struct AFragment {
    u32 high[4], low[4];

    __device__ __forceinline__ void split(const float (&x)[4]) {
        split_tf32(x[0], high[0], low[0]), split_tf32(x[2], high[1], low[1]);
        split_tf32(x[1], high[2], low[2]), split_tf32(x[3], high[3], low[3]);
    }
};

// out[tile] += a[tile] · b, for the column blocks of eight from `FIRST` on; three products of TF32 for one of f32.
template <int FIRST>
__device__ __forceinline__ void mma_tiles(Accumulator (&out)[TILES], const AFragment (&a_fragments)[TILES],
                                          const uint4 (*b_fragments)[32]) {
    uint4 b[4];
#pragma unroll
    for (int n = FIRST; n < 4; n++)
        b[n] = ld_shared_volatile(&b_fragments[n][threadIdx.x % 32]);
#pragma unroll
    for (int part = 0; part < 3; part++) {
#pragma unroll
        for (int n = FIRST; n < 4; n++) {
#pragma unroll
            for (int i = 0; i < TILES; i++) {
#ifdef MUTANT_LOW_LOST
                if (part == 0)
                    continue;
#endif
                if (part == 1)
                    mma_m16n8k8_tf32(out[i][n], a_fragments[i].high, b[n].z, b[n].w);
                else
                    mma_m16n8k8_tf32(out[i][n], part == 0 ? a_fragments[i].low : a_fragments[i].high, b[n].x, b[n].y);
            }
        }
    }
}

// Operands and decays of a head, in shared memory.
struct SharedStorage {
    // B operands of the products for final states, for outputs within a chunk, and for outputs of the state before it.
    uint4 b_fragments[3][4][4][32];
    // aʲ and c b a^(j+1) of every state; the pitches avoid bank conflicts.
    __align__(16) float powers[T][36];
    __align__(16) float outputs[T][34];
    __align__(16) float kernel[T];
    // a^T, and the decays over 0 to 8 times the chunks of a lane.
    __align__(16) float chunk[T];
    __align__(16) float lanes[9][T];
    __align__(16) float totals[2][WARPS][T];
    __align__(16) float carry[2][T];

    // All threads call it. `a` and `w`, which is c b, are those of state `lane`.
    __device__ __forceinline__ void make(float a, float w) {
        // Powers are products of these: a to the power of 1, 2, 4 and on; number `PASSED` is the power over the chunks of a lane.
        constexpr int LANE_CHUNKS = T / WARPS, PASSED = 7;
        static_assert(1 << PASSED == 2 * TILES * T, "a lane has as many chunks");
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, col = lane % 4;
        double square[PASSED + 4];
        square[0] = a;
#pragma unroll
        for (int i = 1; i < PASSED + 4; i++)
            square[i] = square[i - 1] * square[i - 1];
        const auto power = [&](int n, int first) {
            double out = 1.0;
#pragma unroll
            for (int i = 0; i < 5; i++) {
                if (i + first < PASSED + 4 && n >> i & 1)
                    out *= square[i + first];
            }
            return out;
        };
        double now = power(warp * LANE_CHUNKS, 0);
#pragma unroll
        for (int i = 0; i < LANE_CHUNKS; i++) {
            const int j = warp * LANE_CHUNKS + i;
            const float sum = warp_sum((float)(w * now));
            powers[j][lane] = (float)now;
            now *= a;
            outputs[j][lane] = (float)(w * now);
            if (lane == 0)
                kernel[j] = sum;
        }
#pragma unroll
        for (int i = 0; i < 9; i += WARPS) {
            if (warp + i < 9)
                lanes[warp + i][lane] = (float)power(warp + i, PASSED);
        }
        if (warp == WARPS - 1) {
#ifdef MUTANT_SEGMENT_POWER
            chunk[lane] = (float)power(T - 1, 0);
#else
            chunk[lane] = (float)square[5];
#endif
            carry[0][lane] = 0.0f;
        }
        __syncthreads();
        const int n = warp % 4, to = fragment_column(lane / 8, 2 * n + lane / 4 % 2);
#pragma unroll
        for (int i = 0; i < 48 / WARPS; i++) {
            const int which = i * WARPS / 16, k = i * WARPS / 4 % 4 + warp / 4, from = fragment_column(col, 2 * k);
            float2 of;
            if (which == 0) {
                of = make_float2(powers[T - 1 - from][to], powers[T - 2 - from][to]);
            } else if (which == 1) {
#ifdef MUTANT_LATER_SEEN
                of = make_float2(kernel[abs(to - from)], kernel[abs(to - from - 1)]);
#else
                of.x = to < from ? 0.0f : kernel[to - from];
                of.y = to <= from ? 0.0f : kernel[to - from - 1];
#endif
            } else {
                of = *(const float2 *)&outputs[to][from];
            }
            uint4 &b = b_fragments[which][k][n][lane];
            split_tf32(of.x, b.x, b.z), split_tf32(of.y, b.y, b.w);
        }
        __syncthreads();
    }
};

// A lane has the chunks of its warp from 2 · TILES · (lane / 4) on.
KERNEL(diagonal_ssm_rows, __launch_bounds__(32 * WARPS, 3))(const float *u, const float *a, const float *b, const float *c,
                                                            float *y, int S) {
    constexpr int N = T, LANE_CHUNKS = 2 * TILES, PIECE_CHUNKS = WARPS * 16 * TILES;
    __shared__ SharedStorage smem;
    const int head = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / 4, col = lane % 4;
    const size_t states = (size_t)head * N + lane;
    const float decay = a[states], b_n = b[states], c_n = c[states];
    const int first = warp * 16 * TILES + row * LANE_CHUNKS, chunks = S / T;
    const size_t at = first_step(head, S) + 4 * col;

    Accumulator in[TILES];
    const auto fetch = [&](int piece) {
#pragma unroll
        for (int i = 0; i < LANE_CHUNKS; i++) {
            const int chunk = piece * PIECE_CHUNKS + first + i;
            float4 x[2] = {};
            if (chunk < chunks) {
                const float *from = u + at + (size_t)chunk * T;
                x[0] = __ldcs((const float4 *)from), x[1] = __ldcs((const float4 *)(from + 16));
            }
            set_row_vec4(in[i / 2], i % 2, 0, x[0]), set_row_vec4(in[i / 2], i % 2, 4, x[1]);
        }
    };
    fetch(0);
    smem.make(decay, weight(b_n, c_n));

    for (int piece = 0; piece * PIECE_CHUNKS < chunks; piece++) {
        // ---- products of the inputs: final states from 0, and outputs within chunks
        Accumulator state[TILES] = {}, out[TILES] = {};
        AFragment a_fragments[TILES];
#pragma unroll
        for (int k = 0; k < 4; k++) {
#pragma unroll
            for (int i = 0; i < TILES; i++)
                a_fragments[i].split(in[i][k]);
            mma_tiles<0>(state, a_fragments, smem.b_fragments[0][k]);
            // Inputs of the second half of a chunk are in no output of the first half.
            if (k < 2)
                mma_tiles<0>(out, a_fragments, smem.b_fragments[1][k]);
            else
                mma_tiles<2>(out, a_fragments, smem.b_fragments[1][k]);
        }
        fetch(piece + 1);
        // ---- scan: from final states of chunks to their initial ones, in a lane, over the lanes of a warp, over warps
        float x[8] = {}, by[8], last[8];
        load_fragment(smem.chunk, col, by);
#pragma unroll
        for (int i = 0; i < LANE_CHUNKS; i++) {
#pragma unroll
            for (int n = 0; n < 8; n++)
                x[n] = fmaf(by[n], x[n], row_element(state[i / 2], i % 2, n));
        }
#pragma unroll
        for (int step = 1; step < 8; step *= 2) {
            load_fragment(smem.lanes[step], col, last);
#pragma unroll
            for (int n = 0; n < 8; n++) {
                const float before = __shfl_up_sync(0xffffffff, x[n], 4 * step);
                x[n] = row >= step ? fmaf(last[n], before, x[n]) : x[n];
            }
        }
#ifdef MUTANT_BARRIER_MISSING
        if (warp % 2 == 0)
            __nanosleep(100000);
#endif
        if (row == 7) {
#ifdef MUTANT_CARRY_LOST
            const float nothing[8] = {};
            store_fragment(smem.totals[piece % 2][warp], col, nothing);
#else
            store_fragment(smem.totals[piece % 2][warp], col, x);
#endif
        }
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float before = __shfl_up_sync(0xffffffff, x[n], 4);
            x[n] = row > 0 ? before : 0.0f;
        }
#ifndef MUTANT_BARRIER_MISSING
        __syncthreads();
#endif
        float start[8], total[8];
        load_fragment(smem.carry[piece % 2], col, start);
        load_fragment(smem.lanes[8], col, last);
#pragma unroll 1
        for (int i = 0; i < warp; i++) {
            load_fragment(smem.totals[piece % 2][i], col, total);
#pragma unroll
            for (int n = 0; n < 8; n++)
                start[n] = fmaf(last[n], start[n], total[n]);
        }
        load_fragment(smem.lanes[row], col, last);
#pragma unroll
        for (int n = 0; n < 8; n++)
            x[n] = fmaf(last[n], start[n], x[n]);
#pragma unroll
        for (int i = 0; i < LANE_CHUNKS; i++) {
#pragma unroll
            for (int n = 0; n < 8; n++) {
                float &element = row_element(state[i / 2], i % 2, n);
                const float end = element;
                element = x[n];
                x[n] = fmaf(by[n], x[n], end);
            }
        }
        // ---- products of the initial states
        if (warp == WARPS - 1 && row == 7) {
#ifdef MUTANT_CARRY_ROUNDED
#pragma unroll
            for (int n = 0; n < 8; n++)
                x[n] = __uint_as_float(to_bf16x2(x[n], 0.0f) << 16);
#endif
            store_fragment(smem.carry[(piece + 1) % 2], col, x);
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
#pragma unroll
            for (int i = 0; i < TILES; i++)
                a_fragments[i].split(state[i][k]);
            mma_tiles<0>(out, a_fragments, smem.b_fragments[2][k]);
        }
        // ---- epilogue: outputs to memory
#pragma unroll
        for (int i = 0; i < TILES; i++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int chunk = piece * PIECE_CHUNKS + first + 2 * i + half;
                float *to = y + at + (size_t)chunk * T;
                if (chunk < chunks) {
                    st_global_cs((float4 *)to, row_vec4(out[i], half, 0));
                    st_global_cs((float4 *)(to + 16), row_vec4(out[i], half, 4));
                }
            }
        }
    }
}
