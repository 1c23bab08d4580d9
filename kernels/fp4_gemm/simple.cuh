// The definition: a warpgroup computes 64 rows of weights by a few tokens. Weights are decoded one by one into a tile of shared memory.
#pragma once

// The weight of a row in a column, of K.
template <class F> __device__ __forceinline__ float weight_at(const u8 *codes, const u8 *scales, size_t row, int col, int K) {
    const int blocks = (K + F::block - 1) / F::block;
    const u32 code = codes[row * (K / 2) + col / 2] >> nibble_of(col) & 15;
    // Three bits of an f32, times 2^126.
    const float value = __uint_as_float((code & 8) << 28 | (code & 7) << 22) * __uint_as_float(0x7e800000);
    return value * F::scale(scales[row * blocks + block_of<F>(col, blocks)]);
}

// The products of 64 rows of weights and TOKENS tokens, of K columns. `weight_of(row, col)` and `token_of(row, col)` give the numbers of
// a tile's row. Parts of 1,024 columns have sums of their own, which are added up in the order of the parts.
template <int TOKENS, class WeightOf, class TokenOf>
__device__ __forceinline__ void add_parts(int K, WeightOf weight_of, TokenOf token_of, float (&total)[TOKENS / 2]) {
    __shared__ __align__(1024) u8 w_tile[64 * 128];
    __shared__ __align__(1024) u8 x_tile[TOKENS * 128];
    const int last = columns(K);
    float sums[TOKENS / 2];
#pragma unroll
    for (int i = 0; i < TOKENS / 2; i++)
        sums[i] = total[i] = 0.0f;
    for (int first = 0; first < last; first += 64) {
        for (int i = threadIdx.x; i < 64 * 64; i += 128) {
            const int row = i / 64, col = first + i % 64, at = swizzle_128b(row, i % 64 / 8) + i % 8 * 2;
            from_f32(*(bf16 *)(w_tile + at), col < K ? weight_of(row, col) : 0.0f);
            if (row < TOKENS)
                *(bf16 *)(x_tile + at) = col < K ? token_of(row, col) : bf16{0};
        }
        fence_proxy_async_smem();
        __syncthreads();
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; step++)
            Step<Bf16, TOKENS>::shared(sums, wgmma_descriptor(smem_address(w_tile)) + step * 2,
                                       wgmma_descriptor(smem_address(x_tile)) + step * 2);
        wgmma_commit_group();
        wgmma_wait_group<0>();
        __syncthreads();
        if ((first + 64) % 1024 == 0 || first + 64 >= last) {
#ifdef MUTANT_LAST_PART_LOST
            if (first >= 1024 && first + 64 >= last)
                break;
#endif
#pragma unroll
            for (int i = 0; i < TOKENS / 2; i++) {
                total[i] = first < 1024 ? sums[i] : total[i] + sums[i];
                sums[i] = 0.0f;
            }
        }
    }
}

template <class F, class Y>
__device__ void simple(const bf16 *x, const u8 *w, const u8 *w_scale, const float *w_tensor, Y *y, int B, int N, int K) {
    const int n0 = blockIdx.y * 64, b0 = blockIdx.x * 64;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const auto weight_of = [&](int row, int col) { return n0 + row < N ? weight_at<F>(w, w_scale, n0 + row, col, K) : 0.0f; };
    const auto token_of = [&](int row, int col) { return b0 + row < B ? x[size_t(b0 + row) * K + col] : bf16{0}; };
    float total[32];
    add_parts<64>(K, weight_of, token_of, total);
    const float tensor = *w_tensor;
#pragma unroll
    for (int i = 0; i < 32; i++) {
        const int row = n0 + warp * 16 + lane / 4 + i / 2 % 2 * 8, token = b0 + i / 4 * 8 + 2 * (lane % 4) + i % 2;
        if (row < N && token < B)
            store(y[size_t(token) * N + row], total[i], tensor);
    }
}
