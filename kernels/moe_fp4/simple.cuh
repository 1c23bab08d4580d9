// A warpgroup computes 64 rows of a matrix by one token, which is the first of eight columns of the instruction; the others are
// zeros. Weights are decoded as in the definition of `fp4_gemm`.
#pragma once

// The matrices [rows, cols] of all experts.
struct Matrices {
    const u8 *codes, *scales;
    int rows, cols;
};

// The products of 64 rows of an expert's matrix and a token, of which row_of(0 ... 63) gives the numbers, or -1. Of the sums of a
// thread, 0 and 2 belong to the token if lane % 4 == 0: those of row 16 · warp + lane / 4 and of the eighth below.
template <class F, class RowOf>
__device__ __forceinline__ void simple_products(const Matrices &matrices, int expert, const bf16 *token, RowOf row_of,
                                                float (&total)[4]) {
    const size_t first_row = size_t(expert) * matrices.rows;
    const auto weight_of = [&](int row_of_tile, int col) {
        const int row = row_of(row_of_tile);
        return row < 0 ? 0.0f : weight_at<F>(matrices.codes, matrices.scales, first_row + row, col, matrices.cols);
    };
    const auto token_of = [&](int row, int col) { return row == 0 ? token[col] : bf16{0}; };
    add_parts<8>(matrices.cols, weight_of, token_of, total);
}

// A block has 32 numbers between the products; a warp has eight, whose rows of gate and of up lie one below the other.
template <class F>
__device__ void simple_hidden(const bf16 *x, const int *experts, const float *weights, const Matrices &matrices,
                              const float *tensors, bf16 *hidden, int B, int E, int K, int I, float limit) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const auto unit_of = [&](int row) { return int(blockIdx.x) * 32 + row / 16 * 8 + row % 8; };
    const auto row_of = [&](int row) { return unit_of(row) < I ? row / 8 % 2 * I + unit_of(row) : -1; };
    const int unit = unit_of(warp * 16 + lane / 4);
    for (int place = blockIdx.y; place < B * (K + 1); place += gridDim.y) {
        const int row = place / (K + 1), slot = place % (K + 1);
        const int expert = slot == K ? E : expert_of(experts[size_t(row) * K + slot]);
        float out = 0.0f;
        if (expert >= 0) {
            float sums[4];
            simple_products<F>(matrices, expert, x + size_t(row) * matrices.cols, row_of, sums);
            const float2 tensor = gate_up_tensors(tensors, expert);
            const float weight = slot == K ? 1.0f : weights[size_t(row) * K + slot];
            out = activate(sums[0] * tensor.x, sums[2] * tensor.y, limit, weight, slot == K);
        }
        if (lane % 4 == 0 && unit < I)
            from_f32(hidden[size_t(place) * I + unit], out);
    }
}

template <class F, class Y>
__device__ void simple_down(const bf16 *hidden, const int *experts, const float *weights, const Matrices &matrices,
                            const float *tensors, Y *y, int B, int E, int K) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, D = matrices.rows, I = matrices.cols;
    const auto row_of = [&](int row) {
        const int channel = blockIdx.x * 64 + row;
        return channel < D ? channel : -1;
    };
    for (int row = blockIdx.y; row < rows_of_y(B); row += gridDim.y) {
        const int *const own = experts + size_t(row) * K;
        float sums[2] = {0.0f, 0.0f};
        for (int rank = 0, slot = 0; slot <= K; rank++) {
            // The slot of this rank; the shared expert's after all others.
            for (slot = 0; slot < K && (expert_of(own[slot]) < 0 || rank_of(own, slot, K) != rank);)
                slot++;
            const int expert = slot == K ? E : expert_of(own[slot]);
            float product[4];
            simple_products<F>(matrices, expert, hidden + (size_t(row) * (K + 1) + slot) * I, row_of, product);
            const float weight = late_weight(weights + size_t(row) * K, slot, K);
            sums[0] += product[0] * tensors[expert] * weight, sums[1] += product[2] * tensors[expert] * weight;
            if (slot == K)
                break;
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int channel = row_of(warp * 16 + lane / 4 + 8 * h);
            if (lane % 4 == 0 && channel >= 0)
                from_f32(y[size_t(row) * D + channel], sums[h]);
        }
    }
}
