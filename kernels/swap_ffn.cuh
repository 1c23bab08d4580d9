// What variants of swap_ffn.cu share: rows of x from event to event, the swap, and the collapse. Each kernel may be launched
// before the last has ended, reads what that wrote only after `wait_for_last`, and so do all in turn.
//
// With x a row of D numbers: n = x / rms(x) · g; of every row there are SUMS sums, Σ x² and the five products of the router,
// each in PARTS parts in memory, which are added in one order wherever they are read.
#pragma once

#include "formats.cuh"
#include "warpgroups.cuh"

constexpr int ROW_THREADS = 256, SUMS = 6, PARTS = 32, BANKS = 4, COLLAPSE = 8, REDUCED = 224;
constexpr int TILE_ROWS = 128, TILE = TILE_ROWS * 128; // rows of tiles of activations, and bytes

// Byte of an activation in tiles of 128 rows and 128 bytes, those of the same rows next to each other.
__device__ __forceinline__ size_t activation_byte(int row, int byte, int row_bytes) {
    return ((size_t)(row / TILE_ROWS) * (row_bytes / 128) + byte / 128) * TILE + tile_byte(row % TILE_ROWS, byte / 16 % 8) + byte % 16;
}

// x / (1 + e⁻ˣ), to a few units of the last place; powers and reciprocals that are subnormal are 0, as nothing is left of x
// then.
__device__ __forceinline__ float silu(float x) {
    float power, inverse;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -1.4426950408889634f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + power));
    return x * inverse;
}

// That of each of two under one reciprocal, for there are as many instructions for that as for e⁻ˣ; of numbers below −42 a few
// times 10⁻¹⁸ is left, whatever they are.
__device__ __forceinline__ void silu_two(float &x, float &y) {
    const auto one_more = [](float x) {
        float power;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(fminf(x * -1.4426950408889634f, 61.0f)));
        return 1.0f + power;
    };
    const float below_x = one_more(x), below_y = one_more(y);
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(below_x * below_y));
    x *= inverse * below_y, y *= inverse * below_x;
}

// Of a row by its mean square.
__device__ __forceinline__ float inverse_norm(float squares, int D, float eps) {
    return 1.0f / sqrtf(squares / (float)D + eps);
}

// THREADS threads that share a row: a thread block, or warps of one.
template <int THREADS> struct Team {
    static constexpr int WARPS = THREADS / 32;
    float *room; // WARPS * (SUMS + 1) numbers in shared memory
    int barrier;

    // Sums over its warps; `sum` has them from all of it. Once before another barrier.
    template <int N> __device__ __forceinline__ void add(const float (&s)[N]) const {
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float sum = warp_sum(s[i]);
            if (threadIdx.x % 32 == 0)
                room[threadIdx.x % THREADS / 32 * N + i] = sum;
        }
        warps_barrier(barrier, THREADS);
    }

    template <int N> __device__ __forceinline__ float sum(int i) const {
        float sum = room[i];
#pragma unroll
        for (int warp = 1; warp < WARPS; warp++)
            sum += room[warp * N + i];
        return sum;
    }

    __device__ __forceinline__ u32 largest(u32 x) const {
        u32 *const other = (u32 *)room + WARPS * SUMS;
        x = warp_max(x);
        if (threadIdx.x % 32 == 0)
            other[threadIdx.x % THREADS / 32] = x;
        warps_barrier(barrier, THREADS);
#pragma unroll
        for (int warp = 0; warp < WARPS; warp++)
            x = max(x, other[warp]);
        return x;
    }
};

// ---- Operands of the products: a row from a team, of which a thread has N times four numbers.

__device__ __forceinline__ float4 four(const float *from, int at) {
    return ((const float4 *)from)[at];
}

__device__ __forceinline__ float4 four(const bf16 *from, int at) {
    const uint2 in = ((const uint2 *)from)[at];
    return make_float4(__uint_as_float(in.x << 16), __uint_as_float(in.x & 0xffff0000), __uint_as_float(in.y << 16),
                       __uint_as_float(in.y & 0xffff0000));
}

template <int N, int THREADS = ROW_THREADS> struct Fours {
    float4 x[N];

    // Of all fours of the row.
    static __device__ __forceinline__ int at(int i) {
        return threadIdx.x % THREADS + i * THREADS;
    }

    // Zeros beyond the row.
    template <class In> __device__ __forceinline__ void load(const In *row, int columns) {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = at(i) < columns / 4 ? four(row, at(i)) : make_float4(0, 0, 0, 0);
    }

    __device__ __forceinline__ void store(float *row, int columns) const {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (at(i) < columns / 4)
                ((float4 *)row)[at(i)] = x[i];
    }

    __device__ __forceinline__ float dot(const Fours &y) const {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < N; i++)
            sum = fmaf(x[i].x, y.x[i].x, fmaf(x[i].y, y.x[i].y, fmaf(x[i].z, y.x[i].z, fmaf(x[i].w, y.x[i].w, sum))));
        return sum;
    }

    __device__ __forceinline__ void add(const Fours &y) {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = make_float4(x[i].x + y.x[i].x, x[i].y + y.x[i].y, x[i].z + y.x[i].z, x[i].w + y.x[i].w);
    }

    __device__ __forceinline__ void multiply(float factor, const Fours &y) {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = make_float4(x[i].x * factor * y.x[i].x, x[i].y * factor * y.x[i].y, x[i].z * factor * y.x[i].z,
                               x[i].w * factor * y.x[i].w);
    }

    __device__ __forceinline__ u32 amax() const {
        u32 amax = 0;
#pragma unroll
        for (int i = 0; i < N; i++)
            amax = max(max(amax, max(__float_as_uint(fabsf(x[i].x)), __float_as_uint(fabsf(x[i].y)))),
                       max(__float_as_uint(fabsf(x[i].z)), __float_as_uint(fabsf(x[i].w))));
        return amax;
    }
};

__device__ __forceinline__ uint2 to_bf16x4(float4 x) {
    return make_uint2(to_bf16x2(x.x, x.y), to_bf16x2(x.z, x.w));
}

// bf16 in rows.
struct Rounded {
    unsigned char *to;

    // Whether the norm is in the numbers, or left to the products.
    static constexpr bool normed = true;

    template <int N> __device__ __forceinline__ void write(const Fours<N> &n, int row, int columns) const {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (n.at(i) < columns / 4)
                *(uint2 *)(to + ((size_t)row * columns + 4 * n.at(i)) * 2) = to_bf16x4(n.x[i]);
    }
};

// The scale of a row, by which its largest is 448.
__device__ __forceinline__ float scale_of(u32 amax) {
    return amax ? __uint_as_float(amax) / E4m3::max : 1.0f;
}

// E4M3 in rows, each under a scale.
struct Coded {
    unsigned char *to;
    float *scales;

    static constexpr bool normed = true;

    template <int N> __device__ __forceinline__ void write(const Fours<N> &n, int row, int columns) const {
        __shared__ u32 room[ROW_THREADS / 32];
        const float scale = scale_of(block_max(n.amax(), room));
        if (threadIdx.x == 0)
            scales[row] = scale;
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float4 x = n.x[i];
            const u32 codes = E4m3::encode2(x.x / scale, x.y / scale) | E4m3::encode2(x.z / scale, x.w / scale) << 16;
            if (n.at(i) < columns / 4)
                *(u32 *)(to + (size_t)row * columns + 4 * n.at(i)) = codes;
        }
    }
};

// Exponents of MXFP8, E8M0: of the least power of two by which the largest of some numbers is at most 448, from its bits; 255 where
// one is not finite.
__device__ __forceinline__ u32 exponent_of(u32 largest) {
    const int field = largest >> 23;
    return field == 255 ? 255 : max(field - 8 + ((largest & 0x7fffff) > 0x600000), 1);
}

// Its power of two, and by what numbers are multiplied before they are rounded.
__device__ __forceinline__ float power_of(u32 exponent) {
    return __uint_as_float(exponent << 23);
}

__device__ __forceinline__ float inverse_power_of(u32 exponent) {
    return exponent == 255 ? __uint_as_float(0x7fffffff) : __uint_as_float((254 - exponent) << 23);
}

// With room above it: codes of E4M3 are as exact where the largest is 28 as where it is 448.
__device__ __forceinline__ u32 roomy(u32 exponent) {
    return exponent == 255 ? 255 : exponent + 4;
}

// That of some numbers of a row: what the row had `before`, if that suits them, for all columns must have one when they are multiplied.
__device__ __forceinline__ u32 next_exponent(u32 largest, u32 before) {
    const u32 exponent = exponent_of(largest);
    return largest == 0 || (exponent <= before && exponent + 7 >= before) ? before : roomy(exponent);
}

// Where n is in codes, after them: of a block of 128 rows exponents [columns / 128, 128 rows, 4].
__device__ __forceinline__ u8 *exponents_of(unsigned char *n, int rows, int columns, int block) {
    return n + (size_t)rows * columns + (size_t)block * TILE_ROWS * (columns / 32);
}

// And after these, those that rows had when they were last multiplied.
__device__ __forceinline__ u8 *row_exponents_of(unsigned char *n, int rows, int columns) {
    return exponents_of(n, rows, columns, rows / TILE_ROWS);
}

// n in tiles: bf16, or CODES of MXFP8, an exponent for 32 numbers, of each sixteen of them two of the first eight and two of the second
// in turn.
template <bool CODES, int THREADS> struct Tiled {
    unsigned char *to;
    int rows;
    Team<THREADS> team;

    static constexpr bool normed = false;

    template <int N> __device__ __forceinline__ void write(const Fours<N, THREADS> &n, int row, int columns) const {
        if constexpr (CODES) {
            // That of the largest of all of the row is as good.
            const u32 exponent = roomy(exponent_of(team.largest(n.amax())));
            const float by = inverse_power_of(exponent);
#pragma unroll
            for (int i = 0; i < N; i++) {
                if (n.at(i) >= columns / 4)
                    continue;
                const int in_sixteen = n.at(i) % 4;
                unsigned char *const at =
                    to + activation_byte(row, n.at(i) / 4 * 16, columns) + in_sixteen % 2 * 8 + in_sixteen / 2 * 2;
                *(u16 *)at = E4m3::encode2(n.x[i].x * by, n.x[i].y * by);
                *(u16 *)(at + 4) = E4m3::encode2(n.x[i].z * by, n.x[i].w * by);
            }
            const int rank = threadIdx.x % THREADS;
            if (rank < columns / 128)
                ((u32 *)exponents_of(to, rows, columns, row / TILE_ROWS))[rank * TILE_ROWS + row % TILE_ROWS] = exponent * 0x01010101u;
        } else
#pragma unroll
            for (int i = 0; i < N; i++)
                if (n.at(i) < columns / 4)
                    *(uint2 *)(to + activation_byte(row, 8 * n.at(i), 2 * columns)) = to_bf16x4(n.x[i]);
    }
};

template <class Operand, int N, int THREADS>
__device__ __forceinline__ void write_operand(Operand operand, Fours<N, THREADS> &x, float squares, const Fours<N, THREADS> &weight, int row,
                                              int D, float eps) {
    x.multiply(Operand::normed ? inverse_norm(squares, D, eps) : 1.0f, weight);
    operand.write(x, row, D);
}

// ---- Rows.

// Sums of rows: Σ x² [rows, PARTS], then the router's [rows, PARTS, 8], of which five count.
struct Sums {
    float *at;
    int rows;

    __device__ __forceinline__ float *squares(int row) const {
        return at + (size_t)row * PARTS;
    }
    __device__ __forceinline__ float *router(int row, int part) const {
        return at + (size_t)rows * PARTS + ((size_t)row * PARTS + part) * 8;
    }

    // All of a row, by every warp.
    __device__ __forceinline__ void load(float (&s)[SUMS], int row) const {
        const int part = threadIdx.x % 32;
        static_assert(PARTS == 32, "a lane has a part");
        const float4 four = *(const float4 *)router(row, part);
        const float parts[SUMS] = {squares(row)[part], four.x, four.y, four.z, four.w, router(row, part)[4]};
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            s[i] = warp_sum(parts[i]);
    }

    // Whole sectors of memory.
    __device__ __forceinline__ void put_router(int row, int part, float4 four, float fifth) const {
        float4 *const to = (float4 *)router(row, part);
        to[0] = four, to[1] = make_float4(fifth, 0, 0, 0);
    }

    // One part for all, by PARTS threads.
    __device__ __forceinline__ void store_squares(float all, int row, int part) const {
        squares(row)[part] = part == 0 ? all : 0.0f;
    }
    __device__ __forceinline__ void store_router(const float (&s)[SUMS], int row, int part) const {
        const bool first = part == 0;
        put_router(row, part, first ? make_float4(s[1], s[2], s[3], s[4]) : make_float4(0, 0, 0, 0), first ? s[5] : 0.0f);
    }
};

// Where x comes from: of a core from what all cores of a token are given, if that is how it begins; from memory.
struct Film {
    const bf16 *x_in;
    const float *scale, *shift;
    int C, begin;

    template <int N, int THREADS> __device__ __forceinline__ void load(Fours<N, THREADS> &own, float *x, int row, int D) const {
        if (!begin) {
            own.load(x, D);
            return;
        }
        const size_t core = (size_t)(row % C) * D;
        Fours<N, THREADS> factor, term;
        own.load(x_in + (size_t)(row / C) * D, D);
        factor.load(scale + core, D);
        term.load(shift + core, D);
#pragma unroll
        for (int i = 0; i < N; i++)
            own.x[i] = make_float4(own.x[i].x * factor.x[i].x + term.x[i].x, own.x[i].y * factor.x[i].y + term.x[i].y,
                                   own.x[i].z * factor.x[i].z + term.x[i].z, own.x[i].w * factor.x[i].w + term.x[i].w);
        own.store(x, D);
    }
};

// One row: x, its sums, and the operand made of it.
template <int N, int THREADS, class Operand>
__device__ __forceinline__ void settle_row(Film source, Team<THREADS> team, float *x, const float *router, const Fours<N, THREADS> &weight,
                                           Sums sums, Operand operand, int row, int D, float eps) {
    Fours<N, THREADS> own;
    source.load(own, x + (size_t)row * D, row, D);
    float s[SUMS] = {own.dot(own)};
#pragma unroll
    for (int i = 1; i < SUMS; i++) {
        Fours<N, THREADS> by;
        by.load(router + (size_t)(i - 1) * D, D);
        s[i] = own.dot(by);
    }
    team.add(s);
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        s[i] = team.template sum<SUMS>(i);
    if (threadIdx.x % THREADS < PARTS) {
        sums.store_squares(s[0], row, threadIdx.x % THREADS);
        sums.store_router(s, row, threadIdx.x % THREADS);
    }
    write_operand(operand, own, s[0], weight, row, D, eps);
}

// One row a block.
template <int N, class Operand>
__device__ __forceinline__ void settle(Film source, Team<ROW_THREADS> team, float *x, const float *router, const float *g, Sums sums,
                                       Operand operand, int D, float eps) {
    Fours<N> weight;
    start_next();
    weight.load(g, D);
    wait_for_last();
    settle_row<N>(source, team, x, router, weight, sums, operand, blockIdx.x, D, eps);
}

// ---- The swap.

enum Rule { TRANSPOSE, MOVE, LITERAL };

// The map after bank `selected` of it was swapped in. Lane i is bits 2i and 2i + 1.
__device__ __forceinline__ u32 swapped(Rule rule, u32 map, int selected) {
    const u32 physical = map >> 2 * selected & 3;
#ifdef MUTANT_LANE_LITERAL
    return (map & ~3u) | physical;
#endif
    if (rule == TRANSPOSE) {
        const u32 change = physical ^ (map & 3);
        return selected ? map ^ change ^ change << 2 * selected : map;
    }
    if (rule == MOVE) {
        const u32 moved = (1u << 2 * (selected + 1)) - 1;
        return (map & ~moved) | (map << 2 & moved) | physical;
    }
    return (map & ~3u) | physical;
}

// What the router of a row says.
struct Decision {
    bool gate;
    int bank; // logical

    // From the six sums and five biases.
    __device__ __forceinline__ Decision(const float (&sums)[SUMS], const float *bias, int D, float eps) {
        const float norm = inverse_norm(sums[0], D, eps);
        const float l = norm * sums[1] + bias[0];
#ifdef MUTANT_GATE_AT_ZERO
        gate = l >= 0.0f;
#else
        gate = l > 0.0f;
#endif
        float best = norm * sums[2] + bias[1];
        bank = 0;
#pragma unroll
        for (int i = 1; i < BANKS; i++) {
            const float q = norm * sums[2 + i] + bias[1 + i];
#ifdef MUTANT_LAST_BANK
            if (q >= best)
#else
            if (q > best)
#endif
                best = q, bank = i;
        }
    }
};

// What the swap reads and changes.
struct Store {
    float *x;
    unsigned char *ram; // bf16 [rows, BANKS, D]
    u8 *map, *decisions;
    Sums sums;
    const float *bias, *g;
    int D;
    float eps;
};

// A bank of a row, when it is known which.
struct LateBank {
    template <int N, int THREADS> __device__ __forceinline__ void load(Fours<N, THREADS> &in, const uint2 *banks, int physical, int D) const {
        in.load((const bf16 *)(banks + (size_t)physical * D / 4), D);
    }
};

// One row. Where its gate is closed, all but the decision is as it was.
template <int N, int THREADS, class Bank, class Operand>
__device__ __forceinline__ void swap(Rule rule, Store store, Team<THREADS> team, int row, int decided, const Fours<N, THREADS> &weight, const Bank &bank,
                                     Operand operand) {
    const int D = store.D, rank = threadIdx.x % THREADS;
    float *x = store.x + (size_t)row * D;
    Fours<N, THREADS> own;
#ifdef MUTANT_NEIGHBOUR_MAP
    const u32 map = store.map[row ^ 1];
#else
    const u32 map = store.map[row];
#endif
    own.load(x, D);
    float s[SUMS];
    store.sums.load(s, row);
    const Decision decision(s, store.bias, D, store.eps);
    if (rank == 0)
        store.decisions[decided] = decision.gate << 2 | decision.bank;
    if (!decision.gate)
        return;
    const int physical = map >> 2 * decision.bank & 3;
    uint2 *banks = (uint2 *)(store.ram + (size_t)row * BANKS * D * 2);
    Fours<N, THREADS> in;
    bank.load(in, banks, physical, D);
#ifndef MUTANT_NOT_WRITTEN_BACK
#pragma unroll
    for (int i = 0; i < N; i++)
        if (own.at(i) < D / 4)
            banks[(size_t)physical * D / 4 + own.at(i)] = to_bf16x4(own.x[i]);
#endif
    own = in;
    own.store(x, D);
    const float squares[1] = {own.dot(own)};
    team.add(squares);
    // Everyone has read map and sums.
    if (rank == 0)
        store.map[row] = (u8)swapped(rule, map, decision.bank);
    if (rank < PARTS)
        store.sums.store_squares(team.template sum<1>(0), row, rank);
    write_operand(operand, own, team.template sum<1>(0), weight, row, D, store.eps);
}

// One row a block.
template <int N, class Operand>
__device__ __forceinline__ void swap_row(Rule rule, Store store, Team<ROW_THREADS> team, int event, Operand operand) {
    Fours<N> weight;
    start_next();
    weight.load(store.g, store.D);
    wait_for_last();
    swap<N>(rule, store, team, blockIdx.x, event * gridDim.x + blockIdx.x, weight, LateBank(), operand);
}

// ---- What is made of the sums of W1 n and W3 n.

// h = silu(gate) · up, in f32, of rows [gate, up]: one row a block.
template <class In, class Operand> __device__ __forceinline__ void activate(const In *gate_up, Operand operand, int F) {
    const int row = blockIdx.x;
    start_next();
    wait_for_last();
    const In *gate = gate_up + (size_t)row * 2 * F;
    Fours<4> h, up;
    h.load(gate, F);
    up.load(gate + F, F);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        h.x[i].x = silu(h.x[i].x) * up.x[i].x, h.x[i].y = silu(h.x[i].y) * up.x[i].y;
        h.x[i].z = silu(h.x[i].z) * up.x[i].z, h.x[i].w = silu(h.x[i].w) * up.x[i].w;
    }
    operand.write(h, row, F);
}
