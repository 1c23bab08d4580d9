// A warpgroup computes 64 rows of w by 64 tokens. Weights are decoded by their definition into a tile of shared memory.
#pragma once

template <class F, class Y>
__device__ void simple(const bf16 *x, const u8 *w, const u8 *w_scale, const float *w_tensor, Y *y, int B, int N, int K) {
    __shared__ __align__(1024) u8 w_tile[64 * 128];
    __shared__ __align__(1024) u8 x_tile[64 * 128];
    const int n0 = blockIdx.y * 64, b0 = blockIdx.x * 64, blocks = (K + F::block - 1) / F::block;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, last = columns(K);
    float sums[32], total[32];
#pragma unroll
    for (int i = 0; i < 32; i++)
        sums[i] = total[i] = 0.0f;
    for (int first = 0; first < last; first += 64) {
        for (int i = threadIdx.x; i < 64 * 64; i += 128) {
            const int row = i / 64, col = first + i % 64;
            float weight = 0.0f;
            bf16 token = {0};
            if (n0 + row < N && col < K) {
                const u32 code = w[size_t(n0 + row) * (K / 2) + col / 2] >> nibble_of(col) & 15;
                // Three bits of an f32, times 2^126.
                const float value = __uint_as_float((code & 8) << 28 | (code & 7) << 22) * __uint_as_float(0x7e800000);
                weight = value * F::scale(w_scale[size_t(n0 + row) * blocks + block_of<F>(col, blocks)]);
            }
            if (b0 + row < B && col < K)
                token = x[size_t(b0 + row) * K + col];
            const int at = row * 128 + ((i % 64 / 8 ^ row) & 7) * 16 + i % 8 * 2;
            from_f32(*(bf16 *)(w_tile + at), weight);
            *(bf16 *)(x_tile + at) = token;
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; step++)
            Step<Bf16, 64>::shared(sums, wgmma_descriptor(smem_address(w_tile)) + step * 2,
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
            for (int i = 0; i < 32; i++) {
                total[i] = first < 1024 ? sums[i] : total[i] + sums[i];
                sums[i] = 0.0f;
            }
        }
    }
    const float tensor = *w_tensor;
#pragma unroll
    for (int i = 0; i < 32; i++) {
        const int row = n0 + warp * 16 + lane / 4 + i / 2 % 2 * 8, token = b0 + i / 4 * 8 + 2 * (lane % 4) + i % 2;
        if (row < N && token < B)
            store(y[size_t(token) * N + row], total[i], tensor);
    }
}
