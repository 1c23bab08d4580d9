// Weights go from memory to shared memory as codes, and from there into the registers that wgmma takes as A. Two warpgroups have 64
// rows each. A thread block has up to 1024 columns, a part; those of a cluster add their sums in ascending order.
#pragma once

#include "fp4_gemm/decode.cuh"

__device__ __forceinline__ float ld_shared_cluster(u32 from) {
    float x;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
    return x;
}

// A part of the columns, of 128 rows and T tokens, in stages of 128 columns. One thread copies weights, in bulk, and all threads copy
// tokens into tiles with the swizzle of `wgmma_descriptor`.
template <class F, int T> struct Part {
    static constexpr int COLUMNS = 128, STAGES = 8;
    // All stages, or as many as leave room for two thread blocks on a multiprocessor.
    static constexpr int SLOTS = T == 64 ? 4 : T == 32 ? 6 : STAGES;
    static constexpr bool WHOLE = SLOTS == STAGES;
    // Stages whose weights are on their way. Copies share the bandwidth: asked for at once, all end late, and nothing is multiplied until
    // then. (32768, 1024), B = 1, MXFP4, takes 7.8 us with one, 6.8, 7.0, 7.4, 7.7 with two to five, and 9.0 with all eight.
    static constexpr int REQUESTED = 2;
    static constexpr int WEIGHTS = 2 * UNIT_BYTES<F>, TOKENS = 9216, SLOT = TOKENS + T * 256;

    u8 *slots;
    u64 *arrived;
    const u8 *packed;
    int count;
    // What this thread copies: 16 bytes of every 16th token.
    const bf16 *from;
    u32 to;
    int token, tokens, col, last, K;

    __device__ __forceinline__ void load_weights(int stage) const {
        u64 *const barrier = arrived + stage % SLOTS;
        mbarrier_arrive_expect_tx(barrier, WEIGHTS);
        tma_load_1d(smem_address(slots + stage % SLOTS * SLOT), packed + size_t(stage) * WEIGHTS, WEIGHTS, smem_address(barrier),
                    evict_first_policy());
    }

    __device__ __forceinline__ void load_tokens(int stage, int slot) const {
        const bool there = col + stage * COLUMNS < last;
#pragma unroll
        for (int i = 0; i < T; i += 16) {
            if (token + i < T)
                cp_async_16_zfill(to + slot * SLOT + i * 128, from + size_t(i) * K + stage * COLUMNS,
                                  there && token + i < tokens);
        }
    }

    // Asks for the first stages; by all threads. x and `tokens` begin with the first token.
    __device__ __forceinline__ Part(u8 *slots, u64 *arrived, const u8 *packed, const bf16 *x, int tokens, int part, int K)
        : slots(slots), arrived(arrived), tokens(tokens), last(columns(K)), K(K) {
        const int all = (K + COLUMNS - 1) / COLUMNS, chunk = threadIdx.x % 16;
        count = min(STAGES, all - part * STAGES);
        this->packed = packed + (size_t(blockIdx.y) * all + part * STAGES) * WEIGHTS;
        token = threadIdx.x / 16, col = part * STAGES * COLUMNS + chunk * 8;
        from = x + size_t(token) * K + col;
        to = smem_address(slots) + TOKENS + chunk / 8 * T * 128 + token * 128 + ((chunk ^ token) & 7) * 16;
        if (threadIdx.x == 0) {
            for (int slot = 0; slot < SLOTS; slot++)
                mbarrier_init(arrived + slot, 1);
            fence_mbarrier_init();
            for (int stage = 0; stage < min(REQUESTED, count); stage++)
                load_weights(stage);
        }
        __syncwarp();
#pragma unroll
        for (int stage = 0; stage < SLOTS; stage++) {
            if (stage < count)
                load_tokens(stage, stage);
            cp_async_commit_group();
        }
    }

    // Returns once the tokens of all stages are there, if all have slots, and barriers are initialised; by all threads.
    __device__ __forceinline__ void begin() const {
        if (WHOLE) {
            cp_async_wait_group<0>();
            fence_proxy_async_smem();
        }
        __syncthreads();
    }

    // Returns once a stage is there; by all threads.
    __device__ __forceinline__ void wait(int stage) const {
        if (!WHOLE) {
            cp_async_wait_group<SLOTS - 3>();
            fence_proxy_async_smem();
            __syncthreads();
            // All are past the products of the stage before the last one.
            const int next = stage - 2 + SLOTS;
            if (stage >= 2 && next < count) {
#ifdef MUTANT_SLOT_OVERWRITTEN
                load_tokens(next, (next + 1) % SLOTS);
#else
                load_tokens(next, next % SLOTS);
#endif
            }
            cp_async_commit_group();
        }
        mbarrier_wait_parity(arrived + stage % SLOTS, stage / SLOTS % 2);
        if (threadIdx.x == 0 && stage + REQUESTED < count)
            load_weights(stage + REQUESTED);
    }

    __device__ __forceinline__ const u8 *weights(int stage, int half) const {
        return slots + stage % SLOTS * SLOT + half * UNIT_BYTES<F>;
    }

    // The products of a whole part with plain scales.
    __device__ __forceinline__ void multiply_whole(float (&sums)[T / 2]) const {
        u32 a[2][4][4];
        const u64 tokens = wgmma_descriptor(smem_address(slots) + TOKENS);
#pragma unroll
        for (int stage = 0; stage < STAGES; stage++) {
            wait(stage);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const Packed<F> packed(weights(stage, half));
                // The registers below are free once the products before the last four are done.
                wgmma_wait_group<1>();
                // It never does, but keeps chunks apart: the compiler would decode them ahead, and lack registers for products that
                // run on.
                if (blockDim.y > 1)
                    asm volatile("brkpt;");
                decode_chunk<F, false>(a[half], packed);
                multiply_chunk<T>(sums, a[half], tokens + stage % SLOTS * (SLOT / 16) + half * T * 8);
            }
        }
        wgmma_wait_group<0>();
    }

    // Those of any part, one chunk after the other: only decoding has a branch.
    __device__ __forceinline__ void multiply_any(float (&sums)[T / 2], bool general) const {
        u32 a[4][4];
        for (int stage = 0; stage < count; stage++) {
            const u64 tokens = wgmma_descriptor(smem_address(slots) + stage % SLOTS * SLOT + TOKENS);
            wait(stage);
            for (int half = 0; half < 2; half++) {
                const Packed<F> packed(weights(stage, half));
                if (general)
                    decode_chunk<F, true>(a, packed);
                else
                    decode_chunk<F, false>(a, packed);
                multiply_chunk<T>(sums, a, tokens + half * T * 8);
                wgmma_wait_group<0>();
            }
        }
    }
};

template <class F, int T, class Y>
__device__ void registers(const bf16 *x, const u8 *packed, const u32 *general, const float *w_tensor, Y *y, int B, int N, int K) {
    extern __shared__ __align__(1024) u8 slots[];
    __shared__ u64 arrived[Part<F, T>::SLOTS];
    const int part = blockIdx.x, parts = gridDim.x, n0 = blockIdx.y * 128, b0 = blockIdx.z * T;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Part<F, T> own(slots, arrived, packed, x + size_t(b0) * K, B - b0, part, K);
    const bool is_general = same_of_warp(general[blockIdx.y]);
    const float tensor = *w_tensor;
    own.begin();
    float sums[T / 2];
#pragma unroll
    for (int i = 0; i < T / 2; i++)
        sums[i] = 0.0f;
    if (own.count == own.STAGES && !is_general)
        own.multiply_whole(sums);
    else
        own.multiply_any(sums, is_general);

    const auto token_of = [&](int i) { return i / 4 * 8 + 2 * (lane % 4) + i % 2; };
    const auto row_of = [&](int i) { return warp * 16 + lane / 4 + i / 2 % 2 * 8; };
    if (parts == 1 && T <= 16) {
#pragma unroll
        for (int i = 0; i < T / 2; i++) {
            const int token = b0 + token_of(i), row = n0 + row_of(i);
            if (token < B && row < N)
                store(y[size_t(token) * N + row], sums[i], tensor);
        }
        return;
    }
    // The sums of a block, [T, 132], in place of the first slots.
    __syncthreads();
    float *mine = (float *)slots;
#pragma unroll
    for (int i = 0; i < T / 2; i++)
        mine[token_of(i) * 132 + row_of(i)] = sums[i];
    cluster_sync();
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
