// The second product of a step of the FFN: x = W2 h, or x += W2 h, and what is next made of x. Each of SPLIT thread blocks has
// a part of the hidden numbers for 128 rows and 128 columns; then each adds up 32 of the columns, its own first, which come
// first in its weights, too.
#pragma once

#include "swap_ffn_products.cuh"

constexpr int OWN_COLUMNS = DOWN_COLUMNS / SPLIT, OWN = OWN_COLUMNS / 8;

// Where column `in_tile` of a tile lies among the weights of a split.
__device__ __forceinline__ int split_row(int in_tile, int split) {
    return (in_tile - split * OWN_COLUMNS) & (DOWN_COLUMNS - 1);
}

// Sums that thread blocks leave for each other: for each of them [SPLIT - 1, OWN, 256 threads] times four.
struct Parts {
    float4 *at;

    __device__ __forceinline__ float4 *of(int block, int tile, int split, int part) const {
        return at + (((((size_t)block * DOWN_PARTS + tile) * SPLIT + split) * (SPLIT - 1) + part - 1) * OWN) * 256 + threadIdx.x - 128;
    }
};

__device__ __forceinline__ float4 to_float4(const float (&c)[4]) {
    return make_float4(c[0], c[1], c[2], c[3]);
}

template <class T, int SHARE>
__device__ __forceinline__ void down(const unsigned char *h, const unsigned char *weights, const float *h_scale, const float *w2_scale,
                                     const float *router, const float *g, float *x, float *sums, unsigned char *n, float *n_scale,
                                     Joint joint, Parts parts, int residual) {
    extern __shared__ __align__(1024) unsigned char shared[];
    Ring<DOWN_COLUMNS, DOWN_STAGES> &ring = *(Ring<DOWN_COLUMNS, DOWN_STAGES> *)shared;
    constexpr int COUNT = HIDDEN * T::bytes / 128 / SPLIT;
    constexpr bool SCALED = T::bytes == 1;
    const int split = blockIdx.x / SHARE % SPLIT, tile = blockIdx.x / (SHARE * SPLIT) % DOWN_PARTS;
    const int block = blockIdx.x / (SHARE * SPLIT * DOWN_PARTS) * SHARE + blockIdx.x % SHARE;
    ring_init<SHARE>(ring);
    start_next();
    if (threadIdx.x < 128) {
        registers_less<40>();
        if (threadIdx.x == 0)
            fetch<SHARE>(ring, blockIdx.x % SHARE, h + (size_t)(block * SPLIT + split) * COUNT * TILE,
                         weights + (size_t)(tile * SPLIT + split) * COUNT * DOWN_COLUMNS * 128, COUNT);
    } else {
        registers_more<232>();
        const int group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        const int row = block * TILE_ROWS + group * 64 + warp * WARP_ROWS + lane / 4;
        const int first = tile * DOWN_COLUMNS + split * OWN_COLUMNS + lane % 4 * 2;
        wait_for_last();
        if (SCALED && tile == 0 && split == 0 && lane % 4 < 2)
            *joint.h(row + lane % 4 * 8) = 0;
        float c[DOWN_COLUMNS / 8][4];
        products<T, SHARE>(ring, c, group, COUNT);
#pragma unroll
        for (int part = 1; part < SPLIT; part++)
#pragma unroll
            for (int j = 0; j < OWN; j++)
                parts.of(block, tile, (split + part) % SPLIT, part)[j * 256] = to_float4(c[part * OWN + j]);
        // What is needed then is asked for before the others have come.
        float2 old[OWN][2], weight[OWN], by[SUMS - 1][OWN], scale[OWN];
        const float row_scales[2] = {SCALED ? h_scale[row] : 1.0f, SCALED ? h_scale[row + 8] : 1.0f};
#pragma unroll
        for (int j = 0; j < OWN; j++) {
            const int at = first + 8 * j;
#pragma unroll
            for (int i = 0; i < 2; i++)
                old[j][i] = residual ? *(const float2 *)(x + (size_t)(row + 8 * i) * WIDTH + at) : make_float2(0, 0);
            weight[j] = *(const float2 *)(g + at);
            scale[j] = SCALED ? *(const float2 *)(w2_scale + at) : make_float2(1, 1);
#pragma unroll
            for (int q = 0; q < SUMS - 1; q++)
                by[q][j] = *(const float2 *)(router + q * WIDTH + at);
        }
        meet(joint.splits(row, tile), SPLIT);
#ifdef MUTANT_PLANE_LOST
        for (int part = 1; part < SPLIT - 1; part++)
#else
#pragma unroll
        for (int part = 1; part < SPLIT; part++)
#endif
#pragma unroll
            for (int j = 0; j < OWN; j++) {
                const float4 y = __ldcg(parts.of(block, tile, split, part) + j * 256);
                c[j][0] += y.x, c[j][1] += y.y, c[j][2] += y.z, c[j][3] += y.w;
            }
        float s[2][SUMS] = {};
        u32 amax[2] = {};
#pragma unroll
        for (int j = 0; j < OWN; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float2 y = make_float2(c[j][2 * i], c[j][2 * i + 1]);
                if (SCALED)
                    y.x = y.x * row_scales[i] * scale[j].x, y.y = y.y * row_scales[i] * scale[j].y;
                if (residual)
                    y.x = old[j][i].x + y.x, y.y = old[j][i].y + y.y;
                *(float2 *)(x + (size_t)(row + 8 * i) * WIDTH + first + 8 * j) = y;
                s[i][0] = fmaf(y.x, y.x, fmaf(y.y, y.y, s[i][0]));
#pragma unroll
                for (int q = 0; q < SUMS - 1; q++)
                    s[i][1 + q] = fmaf(y.x, by[q][j].x, fmaf(y.y, by[q][j].y, s[i][1 + q]));
                y.x *= weight[j].x, y.y *= weight[j].y;
                amax[i] = max(amax[i], max(__float_as_uint(fabsf(y.x)), __float_as_uint(fabsf(y.y))));
                c[j][2 * i] = y.x, c[j][2 * i + 1] = y.y;
            }
        float inverse[2] = {1, 1};
        if (SCALED) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const u32 most = lanes_max<4>(amax[i]);
                if (lane % 4 == 0)
                    atomicMax(joint.n(row + 8 * i), most);
            }
            meet(joint.down(row), PARTS);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float scale = scale_of(__ldcg(joint.n(row + 8 * i)));
                inverse[i] = 1.0f / scale;
                if (tile == 0 && split == 0 && lane % 4 == 0)
                    n_scale[row + 8 * i] = scale;
            }
        }
#pragma unroll
        for (int j = 0; j < OWN; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                unsigned char *to = n + activation_byte(row + 8 * i, (first + 8 * j) * T::bytes, WIDTH * T::bytes);
                if (SCALED)
                    *(u16 *)to = (u16)E4m3::encode2(c[j][2 * i] * inverse[i], c[j][2 * i + 1] * inverse[i]);
                else
                    *(u32 *)to = to_bf16x2(c[j][2 * i], c[j][2 * i + 1]);
            }
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int q = 0; q < SUMS; q++) {
                const float sum = lanes_sum<4>(s[i][q]);
                if (lane % 4 == q % 4)
                    sums[((size_t)(row + 8 * i) * SUMS + q) * PARTS + tile * SPLIT + split] = sum;
            }
    }
    // Until the other has come too it may arrive at barriers here.
    if (SHARE > 1)
        cluster_barrier();
}
