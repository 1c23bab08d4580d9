// The steps of the swap and the collapse one by one, a kernel for each, as a program of single tensor operations has them. Each
// thread has one element.
#pragma once

#include "swap_ffn/collapse.cuh"
#include "swap_ffn/simple.cuh"

constexpr int ROUTER = 64;

// The number of an element: a row, or one of the few numbers of a row.
__device__ __forceinline__ int element() {
    return blockIdx.x * blockDim.x + threadIdx.x;
}

// An element of rows of so many columns, each row in whole blocks.
struct Place {
    int row, column;
    size_t at;
    bool exists;

    __device__ __forceinline__ explicit Place(int columns) {
        const int blocks = (columns + ROW_THREADS - 1) / ROW_THREADS;
        row = blockIdx.x / blocks, column = blockIdx.x % blocks * ROW_THREADS + threadIdx.x;
        at = (size_t)row * columns + column, exists = column < columns;
    }
};

// One row for each CTA of ROW_THREADS.
__device__ __forceinline__ void norm_of_row(const float *x, float *norm, int D, float eps) {
    __shared__ float partials[32];
    float squares = 0.0f;
    for (int d = threadIdx.x; d < D; d += ROW_THREADS) {
        const float y = x[(size_t)blockIdx.x * D + d];
        squares = fmaf(y, y, squares);
    }
    squares = block_sum(squares, partials);
    if (threadIdx.x == 0)
        norm[blockIdx.x] = inverse_rms(squares, D, eps);
}

// A warp for each row, which has ROUTER numbers.
__device__ __forceinline__ void logit_of_row(const float *z, const float *weight, const float *bias, float *logit, int rows) {
    const int row = element() / 32, lane = threadIdx.x % 32;
    if (row >= rows)
        return;
    float sum = 0.0f;
    for (int i = lane; i < ROUTER; i += 32)
        sum = fmaf(z[(size_t)row * ROUTER + i], weight[i], sum);
    sum = warp_sum(sum);
    if (lane == 0)
        logit[row] = sum + bias[0];
}

__device__ __forceinline__ void bank_of_row(const float *banks, const float *bias, u8 *bank, int rows) {
    const int row = element();
    if (row >= rows)
        return;
    int found = 0;
    float best = banks[row * BANKS] + bias[1];
    for (int i = 1; i < BANKS; i++) {
        const float q = banks[row * BANKS + i] + bias[1 + i];
        if (q > best)
            best = q, found = i;
    }
    bank[row] = (u8)found;
}

// Writes lanes FIRST to LAST of the next map.
template <Rule RULE, int FIRST, int LAST>
__device__ __forceinline__ void next_lanes(const u8 *gate, const u8 *bank, const u8 *physical, const u8 *lanes, u8 *next,
                                           int rows) {
    const int row = element();
    if (row >= rows)
        return;
    lanes += row * BANKS;
    for (int i = FIRST; i <= LAST; i++) {
        u8 lane = lanes[i];
        if (gate[row]) {
            if (i == 0)
                lane = physical[row];
            else if (RULE == TRANSPOSE && i == bank[row])
                lane = lanes[0];
            else if (RULE == MOVE && i <= bank[row])
                lane = lanes[i - 1];
        }
        next[row * BANKS + i] = lane;
    }
}

// The next contents of bank `bank`, for each element of all rows.
__device__ __forceinline__ void next_bank(const u8 *gate, const u8 *physical, const bf16 *ram, const float *x, bf16 *next_ram,
                                          int bank, int rows, int D) {
    const Place place(D);
    if (!place.exists)
        return;
    bf16 next = ram[((size_t)place.row * BANKS + bank) * D + place.column];
    if (gate[place.row] && physical[place.row] == bank)
        from_f32(next, x[place.at]);
    next_ram[(size_t)bank * rows * D + place.at] = next;
}

// The product of one row of the basis, for one k, with the pooled cores; one number for each CTA.
__device__ __forceinline__ void reduce_one(const float *pooled, const bf16 *basis, float *consumer, int D) {
    __shared__ float partials[32];
    const int k = blockIdx.x / REDUCED % COLLAPSE, r = blockIdx.x % REDUCED;
    float sum = 0.0f;
    for (int d = threadIdx.x; d < D; d += ROW_THREADS)
        sum = fmaf(to_f32(basis[((size_t)k * REDUCED + r) * D + d]), pooled[(size_t)(blockIdx.x / REDUCED) * D + d], sum);
    sum = block_sum(sum, partials);
    if (threadIdx.x == 0)
        consumer[blockIdx.x] = sum;
}
