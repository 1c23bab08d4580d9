// A head's whole row at once, in the registers of a block: chunks of T = 32 steps are rows of left sides of products, so that
// what a product gives, and what is scanned, stays in the lanes that have it. With K_j = Σ c b aʲ and x before a chunk:
//
//   e = Σ_s a^(T−1−s) u_s    y_t = Σ_{s≤t} K_{t−s} u_s + Σ_n c b a^(t+1) x    x ← a^T x + e
//
// Which number of a chunk is which column is free, as long as all agree: of every 32 a lane has two times four neighbours.
#pragma once

#include "common.cuh"

// Steps of a chunk, which are as many as states.
constexpr int T = 32;
// Warps of a block, and left sides of 16 chunks that each of them has at a time.
constexpr int WARPS = 4, TILES = 2;

// Which of 32 steps or states is number `i` of the eight in a lane of four.
__device__ __forceinline__ int place(int lane, int i) {
    return 4 * lane + i % 4 + i / 4 * 16;
}

// Eight of 32 numbers in shared memory, of a lane of four.
__device__ __forceinline__ void load_eight(const float *from, int lane, float (&x)[8]) {
    const float4 first = *(const float4 *)(from + 4 * lane), second = *(const float4 *)(from + 16 + 4 * lane);
    x[0] = first.x, x[1] = first.y, x[2] = first.z, x[3] = first.w;
    x[4] = second.x, x[5] = second.y, x[6] = second.z, x[7] = second.w;
}

__device__ __forceinline__ void store_eight(float *to, int lane, const float (&x)[8]) {
    *(float4 *)(to + 4 * lane) = make_float4(x[0], x[1], x[2], x[3]);
    *(float4 *)(to + 16 + 4 * lane) = make_float4(x[4], x[5], x[6], x[7]);
}

// Numbers of a lane, 16 rows of four times 8 columns: two columns of row lane / 4, then of the row 8 below.
typedef float Tile[4][4];

// Eight of the numbers of a lane's row of a tile.
__device__ __forceinline__ float &of_row(Tile &tile, int half, int i) {
    return tile[i / 2][2 * half + i % 2];
}

// Four neighbours of them.
__device__ __forceinline__ float4 four_of_row(Tile &tile, int half, int i) {
    return make_float4(of_row(tile, half, i), of_row(tile, half, i + 1), of_row(tile, half, i + 2), of_row(tile, half, i + 3));
}

__device__ __forceinline__ void set_four_of_row(Tile &tile, int half, int i, float4 x) {
    of_row(tile, half, i) = x.x, of_row(tile, half, i + 1) = x.y;
    of_row(tile, half, i + 2) = x.z, of_row(tile, half, i + 3) = x.w;
}

// A number as two of TF32, of which products read no more bits than those: rounded, and what is left.
__device__ __forceinline__ void two_tf32(float x, u32 &high, u32 &low) {
    high = __float_as_uint(x) + 0x1000 & 0xffffe000;
    low = __float_as_uint(x - __uint_as_float(high));
}

// 16 × 8 numbers as the left side of a product.
struct Left {
    u32 high[4], low[4];

    __device__ __forceinline__ void cut(const float (&x)[4]) {
        two_tf32(x[0], high[0], low[0]), two_tf32(x[2], high[1], low[1]);
        two_tf32(x[1], high[2], low[2]), two_tf32(x[3], high[3], low[3]);
    }
};

// c += a b of 16 × 8 and 8 × 8.
__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Of shared memory, read wherever it is asked for: there are not enough registers to keep it.
__device__ __forceinline__ uint4 load_again(const uint4 *from) {
    uint4 out;
    asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
                 : "r"(shared_address(from)));
    return out;
}

// out[tile] += left[tile] · rights, of its four times 8 columns those from `FIRST` on.
template <int FIRST>
__device__ __forceinline__ void multiply(Tile (&out)[TILES], const Left (&left)[TILES], const uint4 (*rights)[32]) {
    uint4 right[4];
#pragma unroll
    for (int n = FIRST; n < 4; n++)
        right[n] = load_again(&rights[n][threadIdx.x % 32]);
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
                    multiply(out[i][n], left[i].high, right[n].z, right[n].w);
                else
                    multiply(out[i][n], part == 0 ? left[i].low : left[i].high, right[n].x, right[n].y);
            }
        }
    }
}

// What a head's products and scans take, in shared memory.
struct Constants {
    // Right sides of the products for ends, for outputs within a chunk, and for outputs of what was before.
    uint4 rights[3][4][4][32];
    // aʲ and c b a^(j+1) of every state; rows as long as banks want them.
    __align__(16) float powers[T][36];
    __align__(16) float outputs[T][34];
    __align__(16) float kernel[T];
    // a^T, and what decays over as many times the chunks of a lane, 0 to 8.
    __align__(16) float chunk[T];
    __align__(16) float lanes[9][T];
    __align__(16) float totals[2][WARPS][T];
    __align__(16) float carry[2][T];

    // By all threads. `a` and `w`, which is c b, are of state `lane`.
    __device__ __forceinline__ void make(float a, float w) {
        // Powers are products of these: a to the power of 1, 2, 4 and on; that over the chunks of a lane is number `PASSED`.
        constexpr int EACH = T / WARPS, PASSED = 7;
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
        double now = power(warp * EACH, 0);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int j = warp * EACH + i;
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
        const int n = warp % 4, to = place(lane / 8, 2 * n + lane / 4 % 2);
#pragma unroll
        for (int i = 0; i < 48 / WARPS; i++) {
            const int which = i * WARPS / 16, k = i * WARPS / 4 % 4 + warp / 4, from = place(col, 2 * k);
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
            uint4 &right = rights[which][k][n][lane];
            two_tf32(of.x, right.x, right.z), two_tf32(of.y, right.y, right.w);
        }
        __syncthreads();
    }
};

// A lane of four has chunks 2 · TILES · (lane / 4) and on of its warp's.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 3) diagonal_ssm_rows(const float *u, const float *a, const float *b,
                                                                            const float *c, float *y, int S) {
    constexpr int N = T, EACH = 2 * TILES, AT_ONCE = WARPS * 16 * TILES;
    __shared__ Constants constants;
    const int head = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / 4, col = lane % 4;
    const float decay = a[head * N + lane], enters = b[head * N + lane], weighs = c[head * N + lane];
    const int first = warp * 16 * TILES + row * EACH, chunks = S / T;
    const size_t at = (size_t)head * S + 4 * col;

    Tile in[TILES];
    const auto fetch = [&](int piece) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int chunk = piece * AT_ONCE + first + i;
            float4 x[2] = {};
            if (chunk < chunks) {
                const float *from = u + at + (size_t)chunk * T;
                x[0] = __ldcs((const float4 *)from), x[1] = __ldcs((const float4 *)(from + 16));
            }
            set_four_of_row(in[i / 2], i % 2, 0, x[0]), set_four_of_row(in[i / 2], i % 2, 4, x[1]);
        }
    };
    fetch(0);
    constants.make(decay, weight(enters, weighs));

    for (int piece = 0; piece * AT_ONCE < chunks; piece++) {
        Tile state[TILES] = {}, out[TILES] = {};
        Left left[TILES];
#pragma unroll
        for (int k = 0; k < 4; k++) {
#pragma unroll
            for (int i = 0; i < TILES; i++)
                left[i].cut(in[i][k]);
            multiply<0>(state, left, constants.rights[0][k]);
            // What comes in the second half of a chunk is in no output of the first.
            if (k < 2)
                multiply<0>(out, left, constants.rights[1][k]);
            else
                multiply<2>(out, left, constants.rights[1][k]);
        }
        fetch(piece + 1);
        // From ends of chunks to where they start: in a lane, over the lanes of a warp, over warps.
        float x[8] = {}, by[8], last[8];
        load_eight(constants.chunk, col, by);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
#pragma unroll
            for (int n = 0; n < 8; n++)
                x[n] = fmaf(by[n], x[n], of_row(state[i / 2], i % 2, n));
        }
#pragma unroll
        for (int step = 1; step < 8; step *= 2) {
            load_eight(constants.lanes[step], col, last);
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
            store_eight(constants.totals[piece % 2][warp], col, nothing);
#else
            store_eight(constants.totals[piece % 2][warp], col, x);
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
        load_eight(constants.carry[piece % 2], col, start);
        load_eight(constants.lanes[8], col, last);
#pragma unroll 1
        for (int i = 0; i < warp; i++) {
            load_eight(constants.totals[piece % 2][i], col, total);
#pragma unroll
            for (int n = 0; n < 8; n++)
                start[n] = fmaf(last[n], start[n], total[n]);
        }
        load_eight(constants.lanes[row], col, last);
#pragma unroll
        for (int n = 0; n < 8; n++)
            x[n] = fmaf(last[n], start[n], x[n]);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
#pragma unroll
            for (int n = 0; n < 8; n++) {
                float &place = of_row(state[i / 2], i % 2, n);
                const float end = place;
                place = x[n];
                x[n] = fmaf(by[n], x[n], end);
            }
        }
        if (warp == WARPS - 1 && row == 7)
            store_eight(constants.carry[(piece + 1) % 2], col, x);
#pragma unroll
        for (int k = 0; k < 4; k++) {
#pragma unroll
            for (int i = 0; i < TILES; i++)
                left[i].cut(state[i][k]);
            multiply<0>(out, left, constants.rights[2][k]);
        }
#pragma unroll
        for (int i = 0; i < TILES; i++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int chunk = piece * AT_ONCE + first + 2 * i + half;
                float *to = y + at + (size_t)chunk * T;
                if (chunk < chunks) {
                    store_once((float4 *)to, four_of_row(out[i], half, 0));
                    store_once((float4 *)(to + 16), four_of_row(out[i], half, 4));
                }
            }
        }
    }
}
