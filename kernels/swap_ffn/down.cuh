// The second product of a step of the FFN: x = W2 h, or x += W2 h, and its epilogue, which makes of x what the next kernel reads.
// Split-K: each of SPLIT CTAs multiplies a part of the hidden numbers for 128 rows and 128 columns; then each adds up the
// partials of its share of the columns.
#pragma once

#include "swap_ffn/mainloop.cuh"

constexpr int MAX_SPLIT = 4;
static_assert(PARTS == DOWN_PARTS * MAX_SPLIT, "each CTA that shares rows has a partial of their sums");

// The second product reads h in tiles and packed weights, with their scales if they have any, and writes x, sums and n in tiles.
struct DownArgs {
    unsigned char *h;
    const unsigned char *weights;
    const float *weight_scale, *router, *g;
    float *x;
    Sums sums;
    unsigned char *n;
    float4 *parts;
    int residual;
};

// The permuted place of column `in_tile` among the weights of a split: its own share comes first, then the share of its peer CTA,
// then the two shares that the other pair adds up, in their order.
template <int SPLIT> __device__ __forceinline__ int permute_column(int in_tile, int split) {
    return in_tile ^ split * (DOWN_COLUMNS / SPLIT);
}

// CTAs exchange partials through memory that is filled with a NaN which no sum ever is. A partial is there when it differs: there
// are no counters, whose memory order would cost more than everything else.
constexpr u32 ABSENT = 0xffffffff;

__device__ __forceinline__ void store_partial(float4 *to, const float (&c)[4]) {
    *to = make_float4(c[0], c[1], c[2], c[3]);
}

__device__ __forceinline__ bool is_written(float4 y) {
    return __float_as_uint(y.x) != ABSENT && __float_as_uint(y.y) != ABSENT && __float_as_uint(y.z) != ABSENT &&
           __float_as_uint(y.w) != ABSENT;
}

// A warp waits for N vectors, which lie one for each consumer thread apart, and resets them. If one never comes, a trap is better
// than no end.
template <int N> __device__ __forceinline__ void wait_and_reset_partials(float4 (&y)[N], float4 *from) {
    bool all = false;
    for (u32 polls = 0; !all; polls++) {
        if (polls >> 24)
            __trap();
        all = true;
#pragma unroll
        for (int i = 0; i < N; i++)
            y[i] = ld_relaxed(from + i * 256);
#ifndef MUTANT_JOIN_MISSING
#pragma unroll
        for (int i = 0; i < N; i++)
            all = all && is_written(y[i]);
        all = __all_sync(0xffffffff, all);
#endif
    }
    const float absent = __uint_as_float(ABSENT);
#pragma unroll
    for (int i = 0; i < N; i++)
        from[i * 256] = make_float4(absent, absent, absent, absent);
}

// Transposes a 4 × 4 matrix over four lanes: word c of lane k goes to word k of lane c.
__device__ __forceinline__ uint4 transpose_4x4(u32 (&word)[4]) {
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (k & bit)
                continue;
            const bool upper = threadIdx.x & bit;
            const u32 other = __shfl_xor_sync(0xffffffff, upper ? word[k] : word[k + bit], bit);
            if (upper)
                word[k] = other;
            else
                word[k + bit] = other;
        }
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

// Four lanes write 32 columns of a row of n, from `column` on. Each has two columns of each of four vec8.
template <bool CODES>
__device__ __forceinline__ void write_n(unsigned char *n, int rows, int row, int column, const float2 (&x)[4], u32 before) {
    const int lane = threadIdx.x % 4;
    if constexpr (CODES) {
        u32 largest = 0;
#pragma unroll
        for (int j = 0; j < 4; j++)
            largest = max(largest, max(__float_as_uint(fabsf(x[j].x)), __float_as_uint(fabsf(x[j].y))));
        const u32 exponent = next_exponent(lanes_max<4>(largest), before);
        const float by = inverse_power_of(exponent);
#pragma unroll
        for (int j = 0; j < 4; j += 2)
            *(u32 *)(n + activation_byte(row, column + 8 * j, WIDTH) + 4 * lane) =
                E4m3::encode2(x[j].x * by, x[j].y * by) | E4m3::encode2(x[j + 1].x * by, x[j + 1].y * by) << 16;
        if (lane == 0)
            exponents_of(n, rows, WIDTH, row / TILE_ROWS)[(column / 128 * TILE_ROWS + row % TILE_ROWS) * 4 + column / 32 % 4] =
                exponent;
    } else {
        // Each lane writes one vec8.
        u32 words[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            words[j] = to_bf16x2(x[j].x, x[j].y);
        *(uint4 *)(n + activation_byte(row, (column + 8 * lane) * 2, WIDTH * 2)) = transpose_4x4(words);
    }
}

// The element type of the second product, from that of the first.
template <class T> struct DownElementOf {
    typedef T Type;
};
template <> struct DownElementOf<Fp8> {
    typedef Fp8Scaled Type;
};
template <class T> using DownElement = typename DownElementOf<T>::Type;

template <class T> __device__ __forceinline__ Pipeline<DownElement<T>, DOWN_COLUMNS> down_pipeline(SharedStorage<T> &smem) {
    return {smem.pipeline, &smem.down};
}

template <class T, int SPLIT> constexpr int DOWN_COUNT = HIDDEN * T::bytes / 128 / SPLIT;

// The stages of h that a CTA of the persistent kernel has made itself and still holds.
template <class T, bool RESIDENT> __device__ __forceinline__ ResidentA resident_hidden(int tile) {
    return RESIDENT ? ResidentA{T::bytes * tile, T::bytes} : ResidentA{};
}

// The producer thread calls it.
template <int SPLIT, bool RESIDENT, class T, class WaitSignalled, class Ready>
__device__ __forceinline__ void down_producer(SharedStorage<T> &smem, DownArgs args, u32 begin, int block, int tile, int split,
                                              Prefetch prefetch, WaitSignalled wait_signalled, Ready ready) {
    producer_mainloop<DOWN_COUNT<T, SPLIT>>(
        down_pipeline(smem), begin, args.h + (size_t)(block * SPLIT + split) * TILE_ROWS * HIDDEN / SPLIT * T::bytes,
        T::bytes == 1 ? hidden_scales(args.h, args.sums.rows, block, split * DOWN_COUNT<T, SPLIT>) : nullptr,
        args.weights + (size_t)(tile * SPLIT + split) * DOWN_COUNT<T, SPLIT> * DOWN_COLUMNS * 128,
        resident_hidden<T, RESIDENT>(tile), prefetch, wait_signalled, ready);
}

// The consumer warpgroups call it, when the rows of x are ready. RESIDENT: this CTA made a part of h in the first product and still
// has it in shared memory.
template <int SPLIT, bool RESIDENT, class T>
__device__ __forceinline__ void down_consumer(SharedStorage<T> &smem, DownArgs args, u32 begin, int block, int tile, int split,
                                              int step, bool last, Counters counters) {
    constexpr bool SCALED = T::bytes == 1;
    // A thread's share of the columns, in vec8.
    constexpr int SHARE = DOWN_COLUMNS / SPLIT / 8;
    const int group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const int row = block * TILE_ROWS + group * 64 + warp * WARP_ROWS + lane / 4;
    const int first = tile * DOWN_COLUMNS + split * SHARE * 8 + lane % 4 * 2;
    // The floats of each of two partials that the peer CTA sends.
    constexpr int SENT = 4 * SHARE * 128;
    if (SPLIT > 1 && threadIdx.x % 128 == 0) {
#pragma unroll
        for (int part = 0; part < 2; part++)
            mbarrier_arrive_expect_tx(smem.peer_partials_full[group] + part, SENT * 4);
    }
    // ---- mainloop: consumer
    const ResidentA hidden = resident_hidden<T, RESIDENT>(tile);
    const auto pipeline = down_pipeline(smem);
    float sums[1][16][4];
    float (&c)[16][4] = sums[0];
    consumer_mainloop<DOWN_COUNT<T, SPLIT>>(
        pipeline, begin, sums, group, [&](int i, u32 slot) { return i < hidden.count ? smem.h_of(i, 0) : pipeline.a(slot); },
        [](int, u32) {},
        [&](int i) {
            if (SPLIT > 1 && RESIDENT && i == hidden.count && lane == 0)
                mbarrier_arrive_cluster(map_shared_peer(smem.peer_smem_free + group));
        },
        [&](int i, u32 slot) {
            const int in_split = split * DOWN_COUNT<T, SPLIT> + hidden.first;
            const float *const of =
                (i < hidden.count ? hidden_scales(args.h, counters.rows, block, in_split) : pipeline.scales(slot)) +
                row % TILE_ROWS;
            return make_float2(of[0], of[8]);
        },
        NoOp());
    // ---- split-K: exchange of partials, with the peer through its shared memory, with the other pair through global memory
    // Each column has a weight in n, and factors of the router if the swap follows.
    const auto weight_of = [&](int j) { return *(const float2 *)(args.g + first + 8 * j); };
    const auto weight_scale_of = [&](int j) { return *(const float2 *)(args.weight_scale + first + 8 * j); };
    const auto router_of = [&](int q, int j) { return *(const float2 *)(args.router + q * WIDTH + first + 8 * j); };
    const u8 *const exponents = row_exponents_of(args.n, counters.rows, WIDTH) + row;
    const u32 before[2] = {SCALED ? exponents[0] : 0u, SCALED ? exponents[8] : 0u};
    constexpr bool EARLY = SPLIT > 1; // loads before the wait for partials, when registers are free
    float2 weights[EARLY ? SHARE : 1], scales[EARLY && SCALED ? SHARE : 1], routers[SUMS - 1][EARLY ? SHARE : 1];
    if constexpr (SPLIT > 1) {
        static_assert(SPLIT == 4, "two pairs of peer CTAs");
        const auto place = [&](int part, int j) { return smem.h_of(part, group) + (j * 128 + threadIdx.x % 128) * 16; };
        const u32 to = map_shared_peer(place(0, 0)), peer_full = map_shared_peer(smem.peer_partials_full[group]);
        // First the partials that the peer passes on to the other pair, because their way is longer.
        if (RESIDENT)
            mbarrier_wait_parity(smem.peer_smem_free + group, step & 1);
#pragma unroll
        for (int part = 0; part < 2; part++) {
#pragma unroll
            for (int j = 0; j < SHARE; j++)
                st_async(to + (u32)(place(part, j) - place(0, 0)), c[(part == 0 ? 3 : 1) * SHARE + j], peer_full + part * 8);
        }
#pragma unroll
        for (int j = 0; j < SHARE; j++) {
            weights[j] = weight_of(j);
            if (SCALED)
                scales[SCALED ? j : 0] = weight_scale_of(j);
#pragma unroll
            for (int q = 0; q < SUMS - 1; q++)
                routers[q][j] = last ? router_of(q, j) : make_float2(0, 0);
        }
        const auto part_of = [&](int split) {
            return args.parts + (((size_t)block * DOWN_PARTS + tile) * SPLIT + split) * SHARE * 256 + threadIdx.x - 128;
        };
        const auto add_to = [&](float (&to)[4], float4 y) { to[0] += y.x, to[1] += y.y, to[2] += y.z, to[3] += y.w; };
#pragma unroll
        for (int part = 0; part < 2; part++) {
            mbarrier_wait_parity(smem.peer_partials_full[group] + part, RESIDENT ? step & 1 : 0);
#pragma unroll
            for (int j = 0; j < SHARE; j++) {
                float (&to)[4] = c[(part == 0 ? 2 : 0) * SHARE + j];
                add_to(to, *(const float4 *)place(part, j));
                if (part == 0)
                    store_partial(part_of(split ^ 2) + j * 256, to);
            }
        }
        float4 y[SHARE];
        wait_and_reset_partials<SHARE>(y, part_of(split));
        if (RESIDENT && lane == 0)
            mbarrier_arrive(&smem.partials_read);
#ifndef MUTANT_PLANE_LOST
#pragma unroll
        for (int j = 0; j < SHARE; j++)
            add_to(c[j], y[j]);
#endif
    }
    // ---- epilogue: x, n and the sums of rows
    float s[2][SUMS] = {};
    // Columns of n that are written together: two of each of four vec8.
    float2 n[2][4];
#pragma unroll
    for (int j = 0; j < SHARE; j++) {
        const int at = first + 8 * j;
        const float2 weight = EARLY ? weights[EARLY ? j : 0] : weight_of(j), scale = !SCALED ? make_float2(1, 1)
                                                                                     : EARLY ? scales[EARLY && SCALED ? j : 0]
                                                                                             : weight_scale_of(j);
        float2 by[SUMS - 1];
#pragma unroll
        for (int q = 0; q < SUMS - 1; q++)
            by[q] = EARLY ? routers[q][EARLY ? j : 0] : router_of(q, j);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float2 y = make_float2(c[j][2 * i], c[j][2 * i + 1]);
            float2 *x = (float2 *)(args.x + (size_t)(row + 8 * i) * WIDTH + at);
            if (SCALED)
                y.x *= scale.x, y.y *= scale.y;
#ifdef MUTANT_SQUARES_BEFORE_RESIDUAL
            const float2 squared = y;
#endif
            if (args.residual) {
                const float2 old = *x;
                y.x = old.x + y.x, y.y = old.y + y.y;
            }
            // Only the swap, or the next step of a residual FFN, reads x.
            if (args.residual || last)
                *x = y;
#ifdef MUTANT_SQUARES_BEFORE_RESIDUAL
            s[i][0] = fmaf(squared.x, squared.x, fmaf(squared.y, squared.y, s[i][0]));
#else
            s[i][0] = fmaf(y.x, y.x, fmaf(y.y, y.y, s[i][0]));
#endif
#pragma unroll
            for (int q = 0; q < SUMS - 1; q++)
                s[i][1 + q] = fmaf(y.x, by[q].x, fmaf(y.y, by[q].y, s[i][1 + q]));
            n[i][j % 4] = make_float2(y.x * weight.x, y.y * weight.y);
            if (j % 4 == 3)
                write_n<SCALED>(args.n, counters.rows, row + 8 * i, at - lane % 4 * 2 - 24, n[i], before[i]);
        }
    }
    const int part = (tile * SPLIT + split) * (MAX_SPLIT / SPLIT) + lane % 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        s[i][0] = lanes_sum<4>(s[i][0]);
        if (lane % 4 < MAX_SPLIT / SPLIT)
            args.sums.squares(row + 8 * i)[part] = lane % 4 == 0 ? s[i][0] : 0.0f;
        // The swap that follows needs the products of the router.
        if (last) {
#pragma unroll
            for (int q = 1; q < SUMS; q++) {
                const float all = lanes_sum<4>(s[i][q]);
                s[i][q] = lane % 4 == 0 ? all : 0.0f;
            }
            if (lane % 4 < MAX_SPLIT / SPLIT)
                args.sums.put_router(row + 8 * i, part, make_float4(s[i][1], s[i][2], s[i][3], s[i][4]), s[i][5]);
        }
    }
}

// The kernel of a single product: a CTA for each split of each tile, in clusters of two.
template <class T> __device__ __forceinline__ void down(DownArgs args, Counters counters, int step, bool last) {
    extern __shared__ __align__(1024) unsigned char smem_bytes[];
    SharedStorage<T> &smem = *(SharedStorage<T> *)smem_bytes;
    const int split = blockIdx.x % MAX_SPLIT, tile = blockIdx.x / MAX_SPLIT % DOWN_PARTS,
              block = blockIdx.x / (MAX_SPLIT * DOWN_PARTS);
    smem_init(smem);
    cluster_sync();
    launch_dependent_grids();
    if (threadIdx.x < 128) {
        warpgroup_reg_dealloc<40>();
        if (threadIdx.x == 0)
            down_producer<MAX_SPLIT, false>(
                smem, args, 0, block, tile, split, Prefetch{weights_read_once(counters), MAX_STAGES, MAX_STAGES}, [] {},
                wait_on_dependent_grids);
    } else {
        warpgroup_reg_alloc<232>();
        wait_on_dependent_grids();
        down_consumer<MAX_SPLIT, false>(smem, args, 0, block, tile, split, step, last, counters);
    }
    // A CTA must not exit while its peer still writes to its shared memory.
    cluster_sync();
}
