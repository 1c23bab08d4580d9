// The second product of a step of the FFN: x = W2 h, 128 rows and 128 columns of it. Each of the SPLIT thread blocks that share
// them has a part of the hidden numbers; then they add up 32 rows each, in one order.
#pragma once

#include "swap_ffn_products.cuh"

constexpr int PLANE_PITCH = DOWN_COLUMNS + 8; // so that rows of sums lie in different banks

__device__ __forceinline__ void planes_written() {
#ifdef MUTANT_PLANES_EARLY
    if (threadIdx.x > 255)
        __nanosleep(5000);
#else
    cluster_barrier();
#endif
}

// SHARE blocks of rows in a cluster, SPLIT · SHARE thread blocks. But for Fp8, what is next is written too, the sums of the
// rows and the left operand.
template <class T, int SHARE>
__device__ __forceinline__ void down(const unsigned char *h, const unsigned char *weights, const float *h_scale, const float *w2_scale,
                                     const float *router, const float *g, float *x, float *sums, unsigned char *n, float *n_scale,
                                     Joint joint, int rows, int residual) {
    extern __shared__ __align__(1024) unsigned char shared[];
    Ring<DOWN_COLUMNS, DOWN_STAGES> &ring = *(Ring<DOWN_COLUMNS, DOWN_STAGES> *)shared;
    constexpr int COUNT = HIDDEN * T::bytes / 128 / SPLIT;
    const int rank = blockIdx.x % (SPLIT * SHARE), split = rank % SPLIT, cluster = blockIdx.x / (SPLIT * SHARE);
    const int groups = rows / (TILE_ROWS * SHARE);
    const int block = (JOINED<T> ? cluster / DOWN_PARTS : cluster % groups) * SHARE + rank / SPLIT;
    const int tile = JOINED<T> ? cluster % DOWN_PARTS : cluster / groups;
    const Sharing<SHARE> sharing = {rank / SPLIT, split, SPLIT};
    ring_init<SHARE>(ring);
    start_next();
    if (threadIdx.x < 128) {
        registers_less<40>();
        if (threadIdx.x == 0)
            fetch(ring, sharing, h + (size_t)(block * SPLIT + split) * COUNT * TILE,
                  weights + (size_t)(tile * SPLIT + split) * COUNT * DOWN_COLUMNS * 128, COUNT);
        planes_written();
    } else {
        registers_more<232>();
        const int group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        float *plane = (float *)ring.stages;
        wait_for_last();
        if (JOINED<T> && tile == 0 && threadIdx.x - 128 < TILE_ROWS / SPLIT)
            *joint.h(block * TILE_ROWS + split * (TILE_ROWS / SPLIT) + threadIdx.x - 128) = 0;
        {
            float c[DOWN_COLUMNS / 8][4];
            products<T>(ring, sharing, c, group, COUNT);
            // Nobody multiplies what the sums are written over.
            warps_barrier(1, 256);
            float *to = plane + (group * 64 + warp * 16 + lane / 4) * PLANE_PITCH + lane % 4 * 2;
#pragma unroll
            for (int j = 0; j < DOWN_COLUMNS / 8; j++) {
                *(float2 *)(to + 8 * j) = make_float2(c[j][0], c[j][1]);
                *(float2 *)(to + 8 * j + 8 * PLANE_PITCH) = make_float2(c[j][2], c[j][3]);
            }
        }
        planes_written();
        // Eight threads for each row, four numbers in every 32 for each.
        const int in_tile = split * (TILE_ROWS / SPLIT) + (threadIdx.x - 128) / 8, row = block * TILE_ROWS + in_tile;
        const int column = lane % 8 * 4;
        float4 y[4];
#pragma unroll
        for (int s = 0; s < SPLIT; s++) {
#ifdef MUTANT_PLANE_LOST
            if (s == SPLIT - 1)
                continue;
#endif
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float4 part = load_from(plane + in_tile * PLANE_PITCH + column + 32 * i, rank - split + s);
                y[i] = s == 0 ? part : make_float4(y[i].x + part.x, y[i].y + part.y, y[i].z + part.z, y[i].w + part.w);
            }
        }
        float s[SUMS] = {};
        const float scale = T::bytes == 1 ? h_scale[row] : 1.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = tile * DOWN_COLUMNS + column + 32 * i;
            float4 *to = (float4 *)(x + (size_t)row * WIDTH + at);
            if (T::bytes == 1) {
                const float4 by = *(const float4 *)(w2_scale + at);
                y[i] = make_float4(y[i].x * scale * by.x, y[i].y * scale * by.y, y[i].z * scale * by.z, y[i].w * scale * by.w);
            }
            if (residual) {
                const float4 old = *to;
                y[i] = make_float4(old.x + y[i].x, old.y + y[i].y, old.z + y[i].z, old.w + y[i].w);
            }
            *to = y[i];
            if constexpr (T::bytes == 2 || JOINED<T>) {
#pragma unroll
                for (int q = 0; q < SUMS; q++) {
                    const float4 by = q == 0 ? y[i] : *(const float4 *)(router + (q - 1) * WIDTH + at);
                    s[q] = fmaf(y[i].x, by.x, fmaf(y[i].y, by.y, fmaf(y[i].z, by.z, fmaf(y[i].w, by.w, s[q]))));
                }
                const float4 weight = *(const float4 *)(g + at);
                y[i] = make_float4(y[i].x * weight.x, y[i].y * weight.y, y[i].z * weight.z, y[i].w * weight.w);
            }
        }
        if constexpr (T::bytes == 2 || JOINED<T>) {
            float part = 0.0f;
#pragma unroll
            for (int q = 0; q < SUMS; q++) {
                const float sum = lanes_sum<8>(s[q]);
                part = lane % 8 == q ? sum : part;
            }
            if (lane % 8 < SUMS)
                sums[(size_t)row * SUMS * PARTS + lane % 8 * PARTS + tile] = part;
        }
        const int first = tile * DOWN_COLUMNS + column;
        if constexpr (T::bytes == 2) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                *(uint2 *)(n + activation_byte(row, 2 * (first + 32 * i), 2 * WIDTH)) = to_bf16x4(y[i]);
        } else if constexpr (JOINED<T>) {
            u32 amax = 0;
#pragma unroll
            for (int i = 0; i < 4; i++)
                amax = max(max(amax, max(__float_as_uint(fabsf(y[i].x)), __float_as_uint(fabsf(y[i].y)))),
                           max(__float_as_uint(fabsf(y[i].z)), __float_as_uint(fabsf(y[i].w))));
            amax = lanes_max<8>(amax);
            if (lane % 8 == 0)
                atomicMax(joint.n(row), amax);
            join(joint.down(block, split), DOWN_PARTS);
            const float scale = scale_of(load_acquired(joint.n(row))), inverse = 1.0f / scale;
            if (tile == 0 && lane % 8 == 0)
                n_scale[row] = scale;
#pragma unroll
            for (int i = 0; i < 4; i++)
                *(u32 *)(n + activation_byte(row, first + 32 * i, WIDTH)) =
                    E4m3::encode2(y[i].x * inverse, y[i].y * inverse) | E4m3::encode2(y[i].z * inverse, y[i].w * inverse) << 16;
        }
    }
    // What the others read here must stay until they have.
    cluster_barrier();
}

// The same without clusters: each thread block leaves its part in memory, [SPLIT, rows, WIDTH].
template <class T>
__device__ __forceinline__ void down_planes(const unsigned char *h, const unsigned char *weights, float *planes, int rows) {
    extern __shared__ __align__(1024) unsigned char shared[];
    Ring<DOWN_COLUMNS, DOWN_STAGES> &ring = *(Ring<DOWN_COLUMNS, DOWN_STAGES> *)shared;
    constexpr int COUNT = HIDDEN * T::bytes / 128 / SPLIT;
    const int blocks = rows / TILE_ROWS, split = blockIdx.x % SPLIT, block = blockIdx.x / SPLIT % blocks;
    const int tile = blockIdx.x / (SPLIT * blocks);
    const Sharing<1> sharing = {0, 0, 1};
    ring_init<1>(ring);
    start_next();
    if (threadIdx.x < 128) {
        registers_less<40>();
        if (threadIdx.x == 0)
            fetch(ring, sharing, h + (size_t)(block * SPLIT + split) * COUNT * TILE,
                  weights + (size_t)(tile * SPLIT + split) * COUNT * DOWN_COLUMNS * 128, COUNT);
    } else {
        registers_more<232>();
        const int group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        const int row = block * TILE_ROWS + group * 64 + warp * 16 + lane / 4;
        float *to = planes + ((size_t)split * rows + row) * WIDTH + tile * DOWN_COLUMNS + lane % 4 * 2;
        wait_for_last();
        float c[DOWN_COLUMNS / 8][4];
        products<T>(ring, sharing, c, group, COUNT);
#pragma unroll
        for (int j = 0; j < DOWN_COLUMNS / 8; j++) {
            *(float2 *)(to + 8 * j) = make_float2(c[j][0], c[j][1]);
            *(float2 *)(to + 8 * j + 8 * WIDTH) = make_float2(c[j][2], c[j][3]);
        }
    }
}
