// Rows of x from event to event, the swap, and the activation: what the variants of swap_ffn.cu share. Each kernel may be launched
// before the last one has ended, and reads what that wrote only after `wait_on_dependent_grids`.
//
// With x a row of D numbers: n = x / rms(x) · g. Every row has SUMS sums, Σ x² and the five products of the router. Each sum lies
// in memory as PARTS partials, which are added in the same order wherever they are read.
#pragma once

#include "swap_ffn/operands.cuh"

// ---- rows

// Partial sums of rows: Σ x² [rows, PARTS], then the router's [rows, PARTS, 8], of which five count.
struct Sums {
    float *at;
    int rows;

    __device__ __forceinline__ float *squares(int row) const {
        return at + (size_t)row * PARTS;
    }
    __device__ __forceinline__ float *router(int row, int part) const {
        return at + (size_t)rows * PARTS + ((size_t)row * PARTS + part) * 8;
    }

    // Every warp loads and adds all partials of a row.
    __device__ __forceinline__ void load(float (&s)[SUMS], int row) const {
        const int part = threadIdx.x % 32;
        static_assert(PARTS == 32, "a lane has a partial");
        const float4 load_vec4 = *(const float4 *)router(row, part);
        const float parts[SUMS] = {squares(row)[part], load_vec4.x, load_vec4.y, load_vec4.z, load_vec4.w, router(row, part)[4]};
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            s[i] = warp_sum(parts[i]);
    }

    // Writes whole sectors of memory.
    __device__ __forceinline__ void put_router(int row, int part, float4 load_vec4, float fifth) const {
        float4 *const to = (float4 *)router(row, part);
        to[0] = load_vec4, to[1] = make_float4(fifth, 0, 0, 0);
    }

    // PARTS threads write one partial that holds everything, and zeros.
    __device__ __forceinline__ void store_squares(float all, int row, int part) const {
        squares(row)[part] = part == 0 ? all : 0.0f;
    }
    __device__ __forceinline__ void store_router(const float (&s)[SUMS], int row, int part) const {
        const bool first = part == 0;
        put_router(row, part, first ? make_float4(s[1], s[2], s[3], s[4]) : make_float4(0, 0, 0, 0), first ? s[5] : 0.0f);
    }
};

// The source of x: memory, or, at the beginning of a token, FiLM of the input that all cores of the token share.
struct Film {
    const bf16 *x_in;
    const float *scale, *shift;
    int C, begin;

    template <int N, int THREADS>
    __device__ __forceinline__ void load(RowFragment<N, THREADS> &own, float *x, int row, int D) const {
        if (!begin) {
            own.load(x, D);
            return;
        }
        const size_t core = (size_t)(row % C) * D;
        RowFragment<N, THREADS> factor, term;
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

// Loads a row of x, sums it, and writes the operand made of it.
template <int N, int THREADS, class Operand>
__device__ __forceinline__ void prepare_row(Film source, Team<THREADS> team, float *x, const float *router,
                                            const RowFragment<N, THREADS> &weight, Sums sums, Operand operand, int row, int D,
                                            float eps) {
    RowFragment<N, THREADS> own;
    source.load(own, x + (size_t)row * D, row, D);
    float s[SUMS] = {own.dot(own)};
#pragma unroll
    for (int i = 1; i < SUMS; i++) {
        RowFragment<N, THREADS> by;
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

// One row for each CTA.
template <int N, class Operand>
__device__ __forceinline__ void prepare_rows(Film source, Team<ROW_THREADS> team, float *x, const float *router, const float *g,
                                             Sums sums, Operand operand, int D, float eps) {
    RowFragment<N> weight;
    launch_dependent_grids();
    weight.load(g, D);
    wait_on_dependent_grids();
    prepare_row<N>(source, team, x, router, weight, sums, operand, blockIdx.x, D, eps);
}

// ---- the swap

enum Rule { TRANSPOSE, MOVE, LITERAL };

// The map after bank `selected` was swapped in. Lane i is bits 2i and 2i + 1.
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

// The decision of the router for a row.
struct Decision {
    bool gate;
    int bank; // logical

    // Takes the six sums and five biases.
    __device__ __forceinline__ Decision(const float (&sums)[SUMS], const float *bias, int D, float eps) {
        const float norm = inverse_rms(sums[0], D, eps);
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

// The swap reads and changes these.
struct Store {
    float *x;
    unsigned char *ram; // bf16 [rows, BANKS, D]
    u8 *map, *decisions;
    Sums sums;
    const float *bias, *g;
    int D;
    float eps;
};

// Loads the selected bank of a row once the decision is known.
struct LoadedBank {
    template <int N, int THREADS>
    __device__ __forceinline__ void load(RowFragment<N, THREADS> &in, const uint2 *banks, int physical, int D) const {
        in.load((const bf16 *)(banks + (size_t)physical * D / 4), D);
    }
};

// Swaps one row. If the gate is closed, only the decision is written.
template <int N, int THREADS, class Bank, class Operand>
__device__ __forceinline__ void swap(Rule rule, Store store, Team<THREADS> team, int row, int decided,
                                     const RowFragment<N, THREADS> &weight, const Bank &bank, Operand operand) {
    const int D = store.D, rank = threadIdx.x % THREADS;
    float *x = store.x + (size_t)row * D;
    RowFragment<N, THREADS> own;
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
#ifdef MUTANT_BANK_OFFSET_32
    uint2 *banks = (uint2 *)(store.ram + (u32)row * (u32)(BANKS * D * 2));
#else
    uint2 *banks = (uint2 *)(store.ram + (size_t)row * BANKS * D * 2);
#endif
    RowFragment<N, THREADS> in;
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
    // All threads have read the map and the sums.
    if (rank == 0)
        store.map[row] = (u8)swapped(rule, map, decision.bank);
    if (rank < PARTS)
        store.sums.store_squares(team.template sum<1>(0), row, rank);
    write_operand(operand, own, team.template sum<1>(0), weight, row, D, store.eps);
}

// One row for each CTA.
template <int N, class Operand>
__device__ __forceinline__ void swap_row(Rule rule, Store store, Team<ROW_THREADS> team, int event, Operand operand) {
    RowFragment<N> weight;
    launch_dependent_grids();
    weight.load(store.g, store.D);
    wait_on_dependent_grids();
    swap<N>(rule, store, team, blockIdx.x, event * gridDim.x + blockIdx.x, weight, LoadedBank(), operand);
}

// ---- the activation

// h = silu(gate) · up, in f32, of rows [gate, up]; one row for each CTA.
template <class In, class Operand> __device__ __forceinline__ void activate(const In *gate_up, Operand operand, int F) {
    const int row = blockIdx.x;
    launch_dependent_grids();
    wait_on_dependent_grids();
    const In *gate = gate_up + (size_t)row * 2 * F;
    RowFragment<4> h, up;
    h.load(gate, F);
    up.load(gate + F, F);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        h.x[i].x = silu(h.x[i].x) * up.x[i].x, h.x[i].y = silu(h.x[i].y) * up.x[i].y;
        h.x[i].z = silu(h.x[i].z) * up.x[i].z, h.x[i].w = silu(h.x[i].w) * up.x[i].w;
    }
    operand.write(h, row, F);
}
