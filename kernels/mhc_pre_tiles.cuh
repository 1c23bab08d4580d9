// The mHC pre-block of many tokens: what a block does with a tile of them.
#pragma once
#include "mhc_pre.cuh"

// SPLIT blocks share TOKENS tokens. A warp multiplies them by its part of the block's columns, COLUMNS at a time; STAGES
// such pieces are on their way, those of the next tokens too.
constexpr int TOKENS = 64, COLUMNS = 32, STAGES = 5, WARPS = 8, SPLIT = 16, PIECE = TOKENS * COLUMNS * 2;
constexpr int OWN = K / SPLIT, ROUNDS = OWN / WARPS / COLUMNS, WIDTH = MUS + 1, MIXED = TOKENS / SPLIT;

// Where 8 columns of a token lie in a piece: rotated, so that neither writes nor `ldmatrix` meet in a bank.
__device__ __forceinline__ u32 piece_at(int row, int eight) {
    return row * (COLUMNS * 2) + ((eight ^ row / 2 % 4) * 16);
}

__device__ __forceinline__ void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Takes from two numbers as much as bf16 holds of them. Three times that is all there is.
__device__ __forceinline__ u32 take(float2 &rest) {
    const u32 part = to_bf16x2(rest.x, rest.y);
    rest.x -= __uint_as_float(part << 16), rest.y -= __uint_as_float(part & 0xffff0000);
    return part;
}

// A barrier of the warps that multiply and mix.
__device__ __forceinline__ void workers_wait() {
    asm volatile("bar.sync 1, %0;" ::"n"(WARPS * 32) : "memory");
}

// Waits, as a warp, until all blocks have left their sums of a tile.
__device__ __forceinline__ void wait_for(const u32 *ready) {
    u32 count = 0;
    while (count < SPLIT)
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(ready) : "memory");
    __syncwarp();
}

// Over all columns, the sum for one of WIDTH products of a token. `sums` is [SPLIT, TOKENS, WIDTH], of the tile.
__device__ __forceinline__ float total(const float *sums, int token, int i) {
    float total = 0;
#pragma unroll
    for (int part = 0; part < SPLIT; part++)
#ifdef MUTANT_SHARE_LOST
        if (part < SPLIT - 1)
#endif
            total += __ldcg(sums + (part * TOKENS + token) * WIDTH + i);
    return total;
}

// What the outputs of MIXED tokens are mixed back by.
__device__ __forceinline__ void mix_back(const float *sums, int first, Constants constants, float *post, float *comb) {
    __shared__ float totals[MIXED][WIDTH];
    const int lane = threadIdx.x % 32;
    for (int at = lane; at < MIXED * WIDTH; at += 32)
        totals[at / WIDTH][at % WIDTH] = total(sums, first % TOKENS + at / WIDTH, at % WIDTH);
    __syncwarp();
    const int token = lane % MIXED;
    const float inverse = rsqrtf(totals[token][MUS] / K + constants.norm_eps);
    const auto mu = [&](int i) { return totals[token][i] * inverse; };
    if (lane < MIXED)
        make_comb(mu, constants, comb + (first + token) * STREAMS * STREAMS);
    else if (lane < 2 * MIXED)
        make_post(mu, constants, post + (first + token) * STREAMS);
    __syncwarp();
}

// MIXED tokens, two at a time, each by half of the warps; the streams come out of the cache.
__device__ __forceinline__ void mix(const bf16 *x, const float *sums, int first, Constants constants, const float *weight,
                                    bf16 *y) {
    constexpr int EACH = WARPS / 2, PIECES = DIM / 8 / 32 / EACH;
    __shared__ float squares_of[MIXED][EACH];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, eight = warp % EACH * 32 + lane;
#pragma unroll 1
    for (int own = warp / EACH; own < MIXED; own += 2) {
        const int token = first + own;
#ifdef MUTANT_WEIGHTS_OF_FIRST_TOKEN
        const int row = 0;
#else
        const int row = token % TOKENS;
#endif
        Eight<bf16> in[PIECES][STREAMS];
#pragma unroll
        for (int c = 0; c < PIECES; c++)
#pragma unroll
            for (int i = 0; i < STREAMS; i++)
                in[c][i].load(x + (size_t)token * K + i * DIM, c * EACH * 32 + eight);
        // Lanes 0 … 3 have a weight each, and lane 4 the square of v.
        const float sum = total(sums, row, lane < STREAMS ? lane : MUS);
        const float inverse = rsqrtf(__shfl_sync(~0u, sum, STREAMS) / K + constants.norm_eps);
        const float pre = lane < STREAMS ? sigmoid(logit(sum * inverse, lane, constants)) + constants.eps : 0;
        float u[PIECES][8] = {}, squares = 0;
#pragma unroll
        for (int i = 0; i < STREAMS; i++) {
            const float weight = __shfl_sync(~0u, pre, i);
#pragma unroll
            for (int c = 0; c < PIECES; c++) {
                float v[8];
                in[c][i].unpack(v);
#pragma unroll
                for (int j = 0; j < 8; j++)
                    u[c][j] = fmaf(weight, v[j], u[c][j]);
            }
        }
#pragma unroll
        for (int c = 0; c < PIECES; c++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                squares = fmaf(u[c][j], u[c][j], squares);
        squares = warp_sum(squares);
        if (lane == 0)
            squares_of[own][warp % EACH] = squares;
        workers_wait();
        squares = 0;
        for (int i = 0; i < EACH; i++)
            squares += squares_of[own][i];
        const float norm = rsqrtf(squares / DIM + constants.norm_eps);
#pragma unroll
        for (int c = 0; c < PIECES; c++) {
            const float4 *w = (const float4 *)weight + 2 * (c * EACH * 32 + eight);
            const float4 low = __ldg(w), high = __ldg(w + 1);
            const float ws[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
            for (int j = 0; j < 8; j++)
                u[c][j] *= norm * ws[j];
            Eight<bf16>::store(y + (size_t)token * DIM, c * EACH * 32 + eight, u[c]);
        }
    }
}
