// Weights go from memory to shared memory as codes, and from there into the registers that wgmma takes as A. Two warpgroups have 64
// rows each. A thread block has up to 1024 columns; those of a cluster add their sums in ascending order.
#pragma once

// Bytes of the codes of 128 rows and 128 columns; scales follow, and then tokens.
constexpr int CODES = 8192, TILE = 9216;

// A word has the codes of a thread for one wgmma: registers 0 to 3 of A are nibbles 0 to 3 (low half) and 4 to 7 (high half). A thread's
// 16 bytes are four steps; 128 threads lie side by side. What lies outside of the matrix is 0.
template <class F> __device__ void pack(const u8 *w, const u8 *w_scale, u8 *packed, int N, int K) {
    const int n0 = blockIdx.y * 128, k0 = blockIdx.x * 128, blocks = (K + F::block - 1) / F::block;
    u8 *tile = packed + (size_t(blockIdx.y) * gridDim.x + blockIdx.x) * TILE;
    for (int i = threadIdx.x; i < CODES / 4; i += 256) {
        const int step = i / 512 % 2 * 4 + i % 4, thread = i / 4 % 128, lane = thread % 32;
        const int top = n0 + i / 1024 * 64 + thread / 32 * 16 + lane / 4;
        u32 word = 0;
        for (int nibble = 0; nibble < 8; nibble++) {
            const int row = top + nibble % 2 * 8;
            const int col = k0 + step * 16 + nibble / 2 % 2 * 8 + lane % 4 * 2 + nibble / 4;
            if (row < N && col < K)
                word |= u32(w[size_t(row) * (K / 2) + col / 2] >> nibble_of(col) & 15) << nibble * 4;
        }
        ((u32 *)tile)[i] = word;
    }
    constexpr int of_row = 128 / F::block;
    for (int i = threadIdx.x; i < TILE - CODES; i += 256) {
        const int row = n0 + i / of_row, col = k0 + i % of_row * F::block;
        tile[CODES + i] = i < 128 * of_row && row < N && col < K ? w_scale[size_t(row) * blocks + block_of<F>(col, blocks)] : 0;
    }
}

__device__ __forceinline__ u32 multiply_bf16x2(u32 a, u32 b) {
    u32 out;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    return out;
}

// Both codes of a register, times 2^126, then times the scale: each multiplication is exact.
__device__ __forceinline__ u32 decode(u32 word, int nibble, u32 scale) {
    const u32 codes = word >> nibble * 4;
    return multiply_bf16x2(multiply_bf16x2(codes << 12 & 0x80008000 | codes << 6 & 0x01c001c0, 0x7e807e80), scale);
}

__device__ __forceinline__ float ld_shared_cluster(u32 from) {
    float x;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
    return x;
}

template <class F, int T, class Y>
__device__ void registers(const bf16 *x, const u8 *packed, const float *w_tensor, Y *y, int B, int N, int K) {
    extern __shared__ __align__(1024) u8 slots[];
    constexpr int SLOT = TILE + T * 256, SLOTS = T == 64 ? 4 : T == 32 ? 6 : 8;
    constexpr int USED = CODES + 128 * (128 / F::block);
    const int part = blockIdx.x, parts = gridDim.x, n0 = blockIdx.y * 128, b0 = blockIdx.z * T;
    const int all = (K + 127) / 128, count = min(8, all - part * 8), last = columns(K);
    const int group = threadIdx.x / 128, thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    const u8 *from = packed + (size_t(blockIdx.y) * all + part * 8) * TILE;
    const u32 base = smem_address(slots);

    auto load = [&](int stage, int slot) {
        const u32 to = base + slot * SLOT;
        for (int i = threadIdx.x; i < USED / 16; i += 256)
            cp_async_16_zfill(to + i * 16, from + size_t(stage) * TILE + i * 16, true);
        for (int i = threadIdx.x; i < T * 16; i += 256) {
            const int token = i / 16, chunk = i % 16, col = part * 1024 + stage * 128 + chunk * 8;
            const bool there = b0 + token < B && col < last;
            cp_async_16_zfill(to + TILE + chunk / 8 * T * 128 + token * 128 + ((chunk ^ token) & 7) * 16,
                              there ? x + size_t(b0 + token) * K + col : x, there);
        }
    };
    for (int s = 0; s < SLOTS; s++) {
        if (s < count)
            load(s, s);
        cp_async_commit_group();
    }

    float sums[T / 2];
#pragma unroll
    for (int i = 0; i < T / 2; i++)
        sums[i] = 0.0f;
    u32 a[2][4][4];
    for (int stage = 0; stage < count; stage++) {
        // With eight slots nothing is copied later, and groups that are empty count.
        cp_async_wait_group<SLOTS == 8 ? 7 : SLOTS - 3>();
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        // All are past the products of the stage before the last one.
        if (stage >= 2 && stage - 2 + SLOTS < count) {
#ifdef MUTANT_SLOT_OVERWRITTEN
            load(stage - 2 + SLOTS, (stage - 1) % SLOTS);
#else
            load(stage - 2 + SLOTS, (stage - 2) % SLOTS);
#endif
        }
        cp_async_commit_group();
        const int slot = stage % SLOTS;
        const u8 *codes = slots + slot * SLOT, *scales = codes + CODES;
        const int row = group * 64 + warp * 16 + lane / 4;
        const u64 tokens = wgmma_descriptor(base + slot * SLOT + TILE);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint4 four = ((const uint4 *)codes)[(group * 2 + half) * 128 + thread];
            const u32 words[4] = {four.x, four.y, four.z, four.w};
            // Scales of these 64 columns, of both rows.
            constexpr int of_half = 64 / F::block;
            u32 of_rows[2][of_half];
#pragma unroll
            for (int i = 0; i < 2 * of_half; i++) {
                const float scale = F::scale(scales[(row + i % 2 * 8) * 2 * of_half + half * of_half + i / 2]);
                of_rows[i % 2][i / 2] = to_bf16x2(scale, scale);
            }
            // The registers below are free once the products before the last four are done.
            wgmma_wait_group<1>();
#pragma unroll
            for (int step = 0; step < 4; step++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    a[half][step][i] = decode(words[step], i, of_rows[i % 2][step * 16 / F::block]);
            wgmma_fence();
#pragma unroll
            for (int step = 0; step < 4; step++)
                Step<Bf16, T>::registers(sums, a[half][step], tokens + half * T * 8 + step * 2);
            wgmma_commit_group();
        }
        wgmma_wait_group<0>();
    }

    // The sums of a block, [T, 132], in place of the first slots.
    __syncthreads();
    float *mine = (float *)slots;
#pragma unroll
    for (int i = 0; i < T / 2; i++)
        mine[(i / 4 * 8 + 2 * (lane % 4) + i % 2) * 132 + group * 64 + warp * 16 + lane / 4 + i / 2 % 2 * 8] = sums[i];
    cluster_sync();
    const float tensor = *w_tensor;
#ifdef MUTANT_LAST_PART_LOST
    const int added = max(1, parts - 1);
#else
    const int added = parts;
#endif
    for (int i = part * 256 + threadIdx.x; i < T * 128; i += parts * 256) {
        const int token = i / 128, row = i % 128;
        if (b0 + token >= B || n0 + row >= N)
            continue;
        float sum = ld_shared_cluster(map_shared_rank(mine + token * 132 + row, 0));
        for (int p = 1; p < added; p++)
            sum = sum + ld_shared_cluster(map_shared_rank(mine + token * 132 + row, p));
        store(y[size_t(b0 + token) * N + n0 + row], sum, tensor);
    }
    cluster_sync();
}
