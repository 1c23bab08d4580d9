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
            group_multiply(T(), c, a + 2 * step, b + 2 * step, it + step);
        group_commit();
        group_wait<1>();
        if (it > 0)
            release(it - 1);
    }
    group_wait<0>();
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

// bf16: the left operand has no norm in it yet, h is written in tiles. E4M3: both have scales, h is written in rows of f32.
template <class T, int SHARE>
__device__ __forceinline__ void gate_up(const unsigned char *n, const unsigned char *weights, const float *sums, const float *n_scale,
                                        const float *w1_scale, const float *w3_scale, void *h, int rows, float eps) {
    extern __shared__ __align__(1024) unsigned char shared[];
    // Tiles must not begin anywhere else.
    GateUp &own = *(GateUp *)shared;
    constexpr int COUNT = WIDTH * T::bytes / 128;
    const int blocks = rows / TILE_ROWS, block = blockIdx.x % blocks, tile = blockIdx.x / blocks;
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
        const int first = group * 64 + warp * 16; // row of the warp
        wait_for_last();
        float factors[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = block * TILE_ROWS + first + lane / 4 + 8 * i;
            factors[i] = T::bytes == 1 ? n_scale[row] : inverse_norm(squares_of(sums, row), WIDTH, eps);
        }
        float c[GATE_UP_COLUMNS / 8][4];
        products<T>(own.ring, sharing, c, group, COUNT);
        if constexpr (T::bytes == 1) {
            float *to = (float *)h + (size_t)(block * TILE_ROWS + first + lane / 4) * HIDDEN + tile * 128 + lane % 4 * 2;
#pragma unroll
            for (int j = 0; j < 16; j++) {
                const int column = tile * 128 + 8 * j + lane % 4 * 2;
                const float2 gate = *(const float2 *)(w1_scale + column), up = *(const float2 *)(w3_scale + column);
#pragma unroll
                for (int i = 0; i < 2; i++)
                    *(float2 *)(to + 8 * j + (size_t)i * 8 * HIDDEN) =
                        make_float2(silu(c[2 * j][2 * i] * factors[i] * gate.x) * (c[2 * j + 1][2 * i] * factors[i] * up.x),
                                    silu(c[2 * j][2 * i + 1] * factors[i] * gate.y) * (c[2 * j + 1][2 * i + 1] * factors[i] * up.y));
            }
        } else {
            const int row = first + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
            for (int j = 0; j < 16; j += 2) {
                u32 out[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float(&gate)[4] = c[2 * (j + i / 2)], (&up)[4] = c[2 * (j + i / 2) + 1];
                    const int at = i % 2 * 2;
                    const float factor = factors[i % 2];
                    out[i] = to_bf16x2(silu(gate[at] * factor) * (up[at] * factor), silu(gate[at + 1] * factor) * (up[at + 1] * factor));
                }
                const int sixteen = j + lane / 16;
                store_matrices(shared_address(own.h + sixteen / 8 * TILE + tile_byte(row, sixteen % 8)), out[0], out[1], out[2], out[3]);
            }
            group_publish();
            finish_tile(1 + group);
            if (threadIdx.x % 128 == 0) {
                unsigned char *to = (unsigned char *)h + ((size_t)block * (HIDDEN * 2 / 128) + 2 * tile) * TILE + group * PANEL;
                for (int i = 0; i < 2; i++)
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

// SHARE blocks of rows in a cluster, SPLIT · SHARE thread blocks. bf16: what is next is written too, the sums of the rows
// and the left operand.
template <class T, int SHARE>
__device__ __forceinline__ void down(const unsigned char *h, const unsigned char *weights, const float *h_scale, const float *w2_scale,
                                     const float *router, const float *g, float *x, float *sums, unsigned char *n, int rows,
                                     int residual) {
    extern __shared__ __align__(1024) unsigned char shared[];
    Ring<DOWN_COLUMNS, DOWN_STAGES> &ring = *(Ring<DOWN_COLUMNS, DOWN_STAGES> *)shared;
    constexpr int COUNT = HIDDEN * T::bytes / 128 / SPLIT;
    const int rank = blockIdx.x % (SPLIT * SHARE), split = rank % SPLIT, cluster = blockIdx.x / (SPLIT * SHARE);
    const int groups = rows / (TILE_ROWS * SHARE);
    const int block = cluster % groups * SHARE + rank / SPLIT, tile = cluster / groups;
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
            if constexpr (T::bytes == 2) {
                const float4 weight = *(const float4 *)(g + at);
                *(uint2 *)(n + activation_byte(row, 2 * at, 2 * WIDTH)) =
                    to_bf16x4(make_float4(y[i].x * weight.x, y[i].y * weight.y, y[i].z * weight.z, y[i].w * weight.w));
#pragma unroll
                for (int q = 0; q < SUMS; q++) {
                    const float4 by = q == 0 ? y[i] : *(const float4 *)(router + (q - 1) * WIDTH + at);
                    s[q] = fmaf(y[i].x, by.x, fmaf(y[i].y, by.y, fmaf(y[i].z, by.z, fmaf(y[i].w, by.w, s[q]))));
                }
            }
        }
        if constexpr (T::bytes == 2) {
            float part = 0.0f;
#pragma unroll
            for (int q = 0; q < SUMS; q++) {
                const float sum = lanes_sum<8>(s[q]);
                part = lane % 8 == q ? sum : part;
            }
            if (lane % 8 < SUMS)
                sums[(size_t)row * SUMS * PARTS + lane % 8 * PARTS + tile] = part;
        }
    }
    // What the others read here must stay until they have.
    cluster_barrier();
}

// ---- Weights as the products fetch them, in tiles of ROWS rows and 128 bytes. A thread has 16 bytes.

// Rows of tile t of gate and up: eight of W1 and of W3 in turn, from row 128 t on.
__device__ __forceinline__ void pack_gate_up(const uint4 *w1, const uint4 *w3, uint4 *packed, int row_bytes) {
    const int row = blockIdx.x, in_tile = row % GATE_UP_COLUMNS, tile = row / GATE_UP_COLUMNS;
#ifdef MUTANT_INTERLEAVE_OFF
    const uint4 *from = in_tile / 16 % 2 ? w3 : w1;
    const int at = tile * 128 + in_tile / 32 * 16 + in_tile % 16;
#else
    const uint4 *from = in_tile / 8 % 2 ? w3 : w1;
    const int at = tile * 128 + in_tile / 16 * 8 + in_tile % 8;
#endif
    for (int chunk = threadIdx.x; chunk < row_bytes / 16; chunk += blockDim.x) {
        const size_t to = ((size_t)tile * (row_bytes / 128) + chunk / 8) * GATE_UP_COLUMNS * 128 + tile_byte(in_tile, chunk % 8);
        packed[to / 16] = from[(size_t)at * (row_bytes / 16) + chunk];
    }
}

__device__ __forceinline__ void pack_down(const uint4 *w2, uint4 *packed, int row_bytes) {
    const int row = blockIdx.x, in_tile = row % DOWN_COLUMNS, tile = row / DOWN_COLUMNS;
    for (int chunk = threadIdx.x; chunk < row_bytes / 16; chunk += blockDim.x) {
        const size_t to = ((size_t)tile * (row_bytes / 128) + chunk / 8) * DOWN_COLUMNS * 128 + tile_byte(in_tile, chunk % 8);
        packed[to / 16] = w2[(size_t)row * (row_bytes / 16) + chunk];
    }
}
