// The two products of a step of the FFN in tensor cores, weights read once for all rows. A thread block has two groups of
// warps that multiply, 64 rows of the left operand each, and one that fetches into a ring of STAGES tiles ahead of them.
// Weights are fetched before what the last launch wrote is there. Thread blocks of a cluster that have the same weights
// fetch a part each, for all.
#pragma once

#include "swap_ffn.cuh"

constexpr int WIDTH = 1024, HIDDEN = 4096; // D and F
constexpr int PRODUCT_THREADS = 384, GATE_UP_COLUMNS = 256, GATE_UP_STAGES = 4, DOWN_COLUMNS = 128, DOWN_STAGES = 6, SPLIT = 4;

// A tile of each operand and of each stage, 128 bytes of every row.
template <int COLUMNS, int STAGES> struct Ring {
    struct Stage {
        unsigned char a[TILE], b[COLUMNS * 128];
    };
    Stage stages[STAGES];
    u64 full[STAGES], empty[STAGES];
};

// Thread blocks that have the same weights: this is number `own` of SHARE, whose ranks in the cluster lie `stride` apart.
template <int SHARE> struct Sharing {
    int own, first, stride;

    __device__ __forceinline__ int rank(int i) const {
        return first + i * stride;
    }

    __device__ __forceinline__ u16 mask() const {
        u32 ranks = 0;
#pragma unroll
        for (int i = 0; i < SHARE; i++)
            ranks |= 1u << rank(i);
        return (u16)ranks;
    }
};

// By all threads.
template <int SHARE, int COLUMNS, int STAGES> __device__ __forceinline__ void ring_init(Ring<COLUMNS, STAGES> &ring) {
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < STAGES; slot++) {
            barrier_init(ring.full + slot, 1);
            barrier_init(ring.empty + slot, SHARE * 8);
        }
        barriers_ready();
    }
    cluster_barrier();
}

// By one thread: `count` tiles that lie next to each other.
template <int SHARE, int COLUMNS, int STAGES>
__device__ __forceinline__ void fetch(Ring<COLUMNS, STAGES> &ring, Sharing<SHARE> sharing, const unsigned char *a, const unsigned char *b,
                                      int count) {
    const auto fetch_b = [&](int it) {
        constexpr int PART = COLUMNS * 128 / SHARE;
        const int slot = it % STAGES, part = sharing.own * PART;
        barrier_expect(ring.full + slot, sizeof ring.stages[slot]);
        const unsigned char *from = b + (size_t)it * COLUMNS * 128 + part;
        if (SHARE == 1)
            copy_in(ring.stages[slot].b, from, PART, ring.full + slot);
        else
            copy_in_all(ring.stages[slot].b + part, from, PART, ring.full + slot, sharing.mask());
    };
    const auto fetch_a = [&](int it) {
        const int slot = it % STAGES;
        copy_in(ring.stages[slot].a, a + (size_t)it * TILE, TILE, ring.full + slot);
    };
    const int first = min(count, STAGES);
    for (int it = 0; it < first; it++)
        fetch_b(it);
    wait_for_last();
    fence_copies();
    for (int it = 0; it < first; it++)
        fetch_a(it);
    for (int it = first; it < count; it++) {
        arrival_wait(ring.empty + it % STAGES, (it / STAGES & 1) ^ 1);
        fetch_b(it);
        fetch_a(it);
    }
}

// By a group of four warps, for rows 64·`group` on of the left operand.
template <class T, int SHARE, int COLUMNS, int STAGES>
__device__ __forceinline__ void products(Ring<COLUMNS, STAGES> &ring, Sharing<SHARE> sharing, float (&c)[COLUMNS / 8][4], int group,
                                         int count) {
    const int lane = threadIdx.x % 32;
    const auto release = [&](int it) {
        if (lane < SHARE)
            barrier_arrive_at(ring.empty + it % STAGES, sharing.rank(lane));
    };
#pragma unroll 1
    for (int it = 0; it < count; it++) {
        const int slot = it % STAGES;
        arrival_wait(ring.full + slot, it / STAGES & 1);
        const u64 a = group_tile(shared_address(ring.stages[slot].a + group * PANEL)), b = group_tile(shared_address(ring.stages[slot].b));
        group_fence();
#pragma unroll
        for (int step = 0; step < 4; step++)
            group_multiply(typename T::Factor(), c, a + 2 * step, b + 2 * step, it + step);
        group_commit();
        group_wait<1>();
        if (it > 0)
            release(it - 1);
    }
    group_wait<0>();
}

// ---- Largest magnitudes of whole rows, of which thread blocks have a part each: those that share rows wait for each other,
// so all of them must be resident. They come one after the other in the grid.

constexpr int UP_PARTS = HIDDEN / (GATE_UP_COLUMNS / 2), DOWN_PARTS = WIDTH / DOWN_COLUMNS;

// In memory, zeros at first: of h and of n, bits of a magnitude for each row; how many have come, for each block of rows and
// for each SPLIT of one. A product clears the magnitudes of the other.
struct Joint {
    u32 *at;
    int rows;

    __device__ __forceinline__ u32 *h(int row) const {
        return at + row;
    }
    __device__ __forceinline__ u32 *n(int row) const {
        return at + rows + row;
    }
    __device__ __forceinline__ u32 *up(int block) const {
        return at + 2 * rows + block;
    }
    __device__ __forceinline__ u32 *down(int block, int split) const {
        return at + 2 * rows + rows / TILE_ROWS + block * SPLIT + split;
    }

    // All of what belongs to a row, by the row's thread.
    __device__ __forceinline__ void clear(int row) const {
        *h(row) = *n(row) = 0;
        if (row % TILE_ROWS == 0)
            *up(row / TILE_ROWS) = 0;
        if (row % (TILE_ROWS / SPLIT) == 0)
            at[2 * rows + rows / TILE_ROWS + row / (TILE_ROWS / SPLIT)] = 0;
    }
};

// By the 256 threads that multiply, in as many thread blocks as share the count: returns when all of them have come.
__device__ __forceinline__ void join(u32 *count, u32 blocks) {
    warps_barrier(3, 256);
    if (threadIdx.x == 128) {
        __threadfence();
        // Every launch adds as many.
        const u32 all = (atomicAdd(count, 1) / blocks + 1) * blocks;
#ifndef MUTANT_JOIN_MISSING
        // Were they not all resident, an error would be better than no end.
        for (u32 looks = 0; load_acquired(count) < all; looks++)
            if (looks >> 24)
                __trap();
#endif
    }
    warps_barrier(3, 256);
}

// ---- h = silu(gate) · up for 128 rows and 128 columns of h: gate and up are columns of one product, eight of each in turn.

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
};

// How operands come and go.
// Bf16: n without its norm, h in tiles. Fp8: n with its norm and a scale, h in rows of f32. Fp8Joined: n with a scale and
// without its norm, h in tiles under scales of whole rows.
struct Fp8Joined : Fp8 {};

template <class T> constexpr bool JOINED = false;
template <> constexpr bool JOINED<Fp8Joined> = true;

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
        wait_for_last();
        float factors[2];
        row_factors<T>(factors, row, sums, n_scale, eps);
        if (JOINED<T> && tile == 0 && threadIdx.x % 256 < TILE_ROWS)
            *joint.n(block * TILE_ROWS + threadIdx.x % 256) = 0;
        float c[GATE_UP_COLUMNS / 8][4];
        products<T>(own.ring, sharing, c, group, COUNT);
#pragma unroll
        for (int j = 0; j < 16; j++) {
            const int column = tile * 128 + 8 * j + pair;
            const float2 one = make_float2(1, 1);
            activate_sums(c[2 * j], c[2 * j + 1], factors, T::bytes == 1 ? *(const float2 *)(w1_scale + column) : one,
                          T::bytes == 1 ? *(const float2 *)(w3_scale + column) : one);
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

// ---- x = W2 h, of 128 rows and 128 columns. Each of the SPLIT thread blocks that share them has a part of the hidden
// numbers; then they add up 32 rows each, in one order.

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
