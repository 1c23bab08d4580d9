// Several products of the same x in one launch: a thread block finds its matrix from its tile. Tiles of 64 weights of one matrix follow
// those of the matrix before it, so none has rows of two.
#pragma once

#include "decode_step/operations.cuh"

#if __CUDA_ARCH__ == 900
// A tile, the matrix that it is of, and where its results go.
template <class W, class Y> struct Product {
    int tile;
    const W *w;
    Y *y;
    int N;

    __device__ __forceinline__ static int tiles(int N) {
        return (N + 63) / 64;
    }

    // Goes on to the next matrix, if the tile is not one of this.
    __device__ __forceinline__ bool pass(const W *next_w, Y *next_y, int next_N) {
        if (tile < tiles(N))
            return false;
        tile -= tiles(N), w = next_w, y = next_y, N = next_N;
        return true;
    }

    // The matrix that the tile's rows are counted in.
    __device__ __forceinline__ const W *weights(bool first, int K) const {
#ifdef MUTANT_PRODUCTS_EXCHANGED
        if (!first && (tile | 1) * 64 + 64 <= N)
            return w + ((tile ^ 1) - tile) * 64 * (long long)K;
#endif
        return w;
    }
};

// Codes of x with two matrices; results are those of `fp8_gemm`, bit for bit.
KERNEL(decode_step_products_codes, __launch_bounds__(512, 1))(const u8 *x, const float *x_scale, const u8 *w,
                                                              const float *w_scale, float *y, int N, const u8 *w_1,
                                                              const float *w_scale_1, float *y_1, int N_1, int B, int K) {
    Product<u8, float> product = {(int)blockIdx.y, w, y, N};
    const bool second = product.pass(w_1, y_1, N_1);
    fp8_gemm_file::split(product.tile, gridDim.y, x, x_scale, product.weights(!second, K), second ? w_scale_1 : w_scale,
                         product.y, B, product.N, K);
}

// Few rows leave room for two thread blocks with many stages.
__device__ __forceinline__ void half_product(const Product<bf16, float> &product, bool first, const bf16 *x, int B, int K) {
    linear_file::tensor(product.tile, 0, linear_file::fits(gridDim.y, B <= 8 ? 2 : 1), x, product.weights(first, K), product.y, B,
                        1, product.N, K);
}

// x in bfloat16 with two matrices, and with five.
KERNEL(decode_step_products_2, __launch_bounds__(128))(const bf16 *x, const bf16 *w, float *y, int N, const bf16 *w_1, float *y_1,
                                                       int N_1, int B, int K) {
    Product<bf16, float> product = {(int)blockIdx.y, w, y, N};
    const bool passed = product.pass(w_1, y_1, N_1);
    half_product(product, !passed, x, B, K);
}

KERNEL(decode_step_products_5, __launch_bounds__(128))(const bf16 *x, const bf16 *w, float *y, int N, const bf16 *w_1, float *y_1,
                                                       int N_1, const bf16 *w_2, float *y_2, int N_2, const bf16 *w_3, float *y_3,
                                                       int N_3, const bf16 *w_4, float *y_4, int N_4, int B, int K) {
    Product<bf16, float> product = {(int)blockIdx.y, w, y, N};
    const bool passed = product.pass(w_1, y_1, N_1);
    if (passed && product.pass(w_2, y_2, N_2) && product.pass(w_3, y_3, N_3))
        product.pass(w_4, y_4, N_4);
    half_product(product, !passed, x, B, K);
}
#endif
