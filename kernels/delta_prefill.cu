/*
[[variant]]
name = "simple"
doc = "token by token in f32: a thread block for each sequence and head, the state in shared memory, a column of it for each thread"
needs = ["V <= 1024", "(K * V + 3 * K + 64) * 4 <= 232448"]

[[variant.launch]]
entry = "delta_prefill_simple_{gate}_{dtype}"
grid = ["N * HV"]
block = ["ceil(V, 32) * 32"]
shared = "(K * V + 3 * K + 64) * 4"
args = ["q", "k", "v", "g", "beta", "initial", "starts", "o", "final", "N", "H", "HV", "K", "V", "index", "in_vk", "out_vk", "scale"]

[[variant]]
name = "chunks"
doc = """
chunks of 64 on tensor cores: one kernel computes, in parallel, everything that does not depend on states; a second takes \
the states through the chunks, with 64 value channels per thread block, 16 in the registers of each warp"""
arch = "sm_90a"
needs = ["size == 2", "K == 128", "V == 128", "HV == H"]
scratch = [{ name = "left", bytes = "(T / 64 + N) * H * (17408 + 49152 * (G / 128))" }]

[[variant.launch]]
entry = "delta_prefill_chunks_own_{gate}"
grid = ["(T / 64 + N) * H"]
block = [256]
shared = "60416 + 34816 * (G / 128)"
args = ["q", "k", "g", "beta", "starts", "left", "N", "H", "index", "scale"]
bytes = "T * H * (516 + 4 * G) + chunks * H * (17408 + 49152 * (G / 128)) + index * (N + 1)"

[[variant.launch]]
entry = "delta_prefill_chunks_states_{gate}"
grid = ["N * H * 2"]
block = [128]
shared = "3 * (58368 + 16384 * (G / 128)) + 32"
programmatic = true
args = ["q", "k", "v", "initial", "starts", "left", "o", "final", "N", "H", "index", "in_vk", "out_vk"]
bytes = "T * H * (512 + 512 * (G == 1)) + chunks * H * (17408 + 49152 * (G / 128)) + 8 * N * H * K * V + index * (N + 1)"

[[mutant]]
name = "future_seen"
doc = "outputs read tokens of their chunk that come later"
variants = ["chunks"]

[[mutant]]
name = "tail_decayed"
doc = "the state after a chunk that is not full is decayed by what comes after the sequence"
variants = ["chunks"]

[[mutant]]
name = "layout_confused"
doc = "the final state in the layout of the initial one"

[[mutant]]
name = "decay_turned"
doc = "keys decayed from the start of the chunk where they should be to its end, and the other way round"
variants = ["chunks"]

[[mutant]]
name = "barrier_missing"
doc = "keys, queries, norms, sums of decays and products are read before all are there"
variants = ["chunks"]

[[mutant]]
name = "state_rounded"
doc = "the state is rounded to bf16 after each chunk"
variants = ["chunks"]

[[mutant]]
name = "final_rounded"
doc = "the final state is rounded to bf16"
variants = ["chunks"]

[[mutant]]
name = "lanes_of_sequences"
doc = "of sequences beyond a warp's lanes, chunks are taken from the first ones"
variants = ["chunks"]

[[mutant]]
name = "beta_dropped"
doc = "the step of the delta rule is 1"

[[mutant]]
name = "token_offset_32"
doc = "the bytes before the values of a token are counted in 32 bits"

[[mutant]]
name = "state_offset_32"
doc = "the bytes before a state are counted in 32 bits"

[[mutant]]
name = "sequence_crossed"
doc = "the last chunk of a sequence goes on into the next"
variants = ["chunks"]
*/

// reference: reference/ops/linear_attention/recurrent.rs
//
// q, k [T, H, K], v, o [T, HV, V]; log decays g ≤ 0 [T, HV] (gdn) or [T, HV, K] (kda), β [T, HV] in f32; first tokens of the
// sequences and the end, [N + 1]; states [N, HV, K, V], or [N, HV, V, K] where in_vk or out_vk is 1.

#include "delta_prefill/chunk.cuh"
#include "lib/wgmma.cuh"

// The numbers before a state of a sequence and head.
__device__ __forceinline__ size_t state_offset(size_t state, int numbers) {
#ifdef MUTANT_STATE_OFFSET_32
    return state * numbers % (1ull << 30);
#else
    return state * numbers;
#endif
}

// The numbers before the values of a token and head, of `size` bytes each.
__device__ __forceinline__ size_t value_offset(size_t row, int numbers, int size) {
#ifdef MUTANT_TOKEN_OFFSET_32
    return (u32)(row * numbers * size) / size;
#else
    return row * numbers;
#endif
}

// The place of element (k, v) of a state.
__device__ __forceinline__ size_t state_at(int k, int v, int K, int V, int vk) {
    return vk ? (size_t)v * K + k : (size_t)k * V + v;
}

#ifdef MUTANT_LAYOUT_CONFUSED
#define OUT_VK in_vk
#else
#define OUT_VK out_vk
#endif

template <bool CHANNELS, class E>
__device__ __forceinline__ void simple(const E *q, const E *k, const E *v, const float *g, const float *beta,
                                       const float *initial, Sequences sequences, E *o, float *final, int H, int HV, int K, int V,
                                       int in_vk, int out_vk, float scale) {
    extern __shared__ __align__(128) unsigned char smem_bytes[];
    float *state = (float *)smem_bytes, *key = state + K * V, *query = key + K, *decay = query + K, *partials = decay + K;
    const int n = blockIdx.x / HV, head = blockIdx.x % HV, column = threadIdx.x;
    const size_t matrix = state_offset(blockIdx.x, K * V);
    if (column < V) {
        for (int c = 0; c < K; c++)
            state[c * V + column] = initial[matrix + state_at(c, column, K, V, in_vk)];
    }
    for (long long token = sequences.start(n); token < sequences.start(n + 1); token++) {
        const size_t at = (size_t)token * HV + head, shared_at = ((size_t)token * H + head / (HV / H)) * K;
        float squares[2] = {};
        for (int c = threadIdx.x; c < K; c += blockDim.x) {
            key[c] = to_f32(k[shared_at + c]), query[c] = to_f32(q[shared_at + c]);
            decay[c] = expf(CHANNELS ? g[at * K + c] : g[at]);
            squares[0] = fmaf(key[c], key[c], squares[0]), squares[1] = fmaf(query[c], query[c], squares[1]);
        }
        const float key_norm = sqrtf(block_sum(squares[0], partials) + 1e-6f);
        const float query_norm = sqrtf(block_sum(squares[1], partials + 32) + 1e-6f);
        for (int c = threadIdx.x; c < K; c += blockDim.x)
            key[c] /= key_norm, query[c] = query[c] / query_norm * scale;
        __syncthreads();
        if (column < V) {
            float read = 0.0f, out = 0.0f;
            for (int c = 0; c < K; c++) {
                const float s = state[c * V + column] * decay[c];
                state[c * V + column] = s;
                read = fmaf(s, key[c], read);
            }
#ifdef MUTANT_BETA_DROPPED
            const float step = to_f32(v[value_offset(at, V, sizeof(E)) + column]) - read;
#else
            const float step = beta[at] * (to_f32(v[value_offset(at, V, sizeof(E)) + column]) - read);
#endif
            for (int c = 0; c < K; c++) {
                const float s = fmaf(key[c], step, state[c * V + column]);
                state[c * V + column] = s;
                out = fmaf(s, query[c], out);
            }
            from_f32(o[value_offset(at, V, sizeof(E)) + column], out);
        }
        __syncthreads();
    }
    if (column < V) {
        for (int c = 0; c < K; c++)
            final[matrix + state_at(c, column, K, V, OUT_VK)] = state[c * V + column];
    }
}

#define SIMPLE(GATE, CHANNELS, DTYPE, E)                                                                                      \
    KERNEL(delta_prefill_simple_##GATE##_##DTYPE)(const E *q, const E *k, const E *v, const float *g, const float *beta,      \
                                                  const float *initial, const void *starts, E *o, float *final, int N, int H, \
                                                  int HV, int K, int V, int index, int in_vk, int out_vk, float scale) {      \
        simple<CHANNELS>(q, k, v, g, beta, initial, {starts, index, N}, o, final, H, HV, K, V, in_vk, out_vk, scale);         \
    }
SIMPLE(gdn, false, f32, float)
SIMPLE(gdn, false, bf16, bf16)
SIMPLE(kda, true, f32, float)
SIMPLE(kda, true, bf16, bf16)

// ---- second step: states through the chunks
//
// Everything is transposed, Sᵀ [value channels, key channels], so that accumulators are already where the A operand of the next
// product must be. Each warp keeps its 16 value channels from the first chunk to the last.

constexpr int STAGES = 3;

// A stage of the pipeline: the operands of a chunk, and its values.
template <bool CHANNELS> struct Stage {
    ChunkOutput<false> chunk;
    unsigned char k[2 * PANEL], q[2 * PANEL], v[PANEL];

    __device__ __forceinline__ unsigned char *keys() {
        return k;
    }
    __device__ __forceinline__ unsigned char *queries() {
        return q;
    }
    __device__ __forceinline__ unsigned char *keys_until() {
        return k;
    }
};

template <> struct Stage<true> {
    ChunkOutput<true> chunk;
    unsigned char v[PANEL];

    __device__ __forceinline__ unsigned char *keys() {
        return chunk.k;
    }
    __device__ __forceinline__ unsigned char *queries() {
        return chunk.q;
    }
    __device__ __forceinline__ unsigned char *keys_until() {
        return chunk.until;
    }
};

// 128 threads prefetch a chunk into a stage, zeros for tokens that it lacks.
template <bool CHANNELS>
__device__ __forceinline__ void load_stage(Stage<CHANNELS> &stage, u64 *full, const bf16 *q, const bf16 *k, const bf16 *v,
                                           const ChunkOutput<CHANNELS> &output, int tokens, int H) {
    const int thread = threadIdx.x;
    if (thread == 0) {
        mbarrier_arrive_expect_tx(full, sizeof output);
        tma_load_1d(&stage.chunk, &output, sizeof output, full);
    }
#pragma unroll
    for (int i = 0; i < (CHANNELS ? 0 : 8); i++) {
        const int row = i * 8 + thread / 16, to = swizzle_128b(row, thread % 16);
        const size_t from = (row < tokens ? (size_t)row * H * D : 0) + thread % 16 * 8;
        cp_async_16_zfill(smem_address(stage.keys() + to), k + from, row < tokens);
        cp_async_16_zfill(smem_address(stage.queries() + to), q + from, row < tokens);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = i * 16 + thread / 8;
        cp_async_16_zfill(smem_address(stage.v + swizzle_128b(row, thread % 8)),
                          v + (row < tokens ? (size_t)row * H * D : 0) + thread % 8 * 8, row < tokens);
    }
    cp_async_commit_group();
}

// Elements (k, v) and (k + 1, v) of a state, k even.
__device__ __forceinline__ void load_pair(float &first, float &second, const float *state, int k, int v, int vk) {
    if (vk) {
        const float2 both = *(const float2 *)(state + v * D + k);
        first = both.x, second = both.y;
    } else {
        first = state[k * D + v], second = state[(k + 1) * D + v];
    }
}

__device__ __forceinline__ void store_pair(float *state, float first, float second, int k, int v, int vk) {
    if (vk)
        *(float2 *)(state + v * D + k) = make_float2(first, second);
    else
        state[k * D + v] = first, state[(k + 1) * D + v] = second;
}

// c [64, 64] = a [64, 16 STEPS] · tileᵀ, a row of the tile for each column of c, or c += if ACCUMULATE.
template <int STEPS, bool ACCUMULATE = false>
__device__ __forceinline__ void wgmma_tile(float (&c)[8][4], const u32 (&a)[STEPS][4], const unsigned char *tile) {
    const u64 first = wgmma_descriptor(smem_address(tile));
    wgmma_rs<false, ACCUMULATE>(c, a[0], first);
#pragma unroll
    for (int step = 1; step < STEPS; step++)
        wgmma_rs<false>(c, a[step], first + (step / 4 * PANEL + step % 4 * 32) / 16);
    wgmma_commit_group();
}

// 128 threads for 64 value channels of the head and sequence blockIdx.x / 2.
template <bool CHANNELS>
__device__ __forceinline__ void states(const bf16 *q, const bf16 *k, const bf16 *v, const float *initial, Sequences sequences,
                                       const ChunkOutput<CHANNELS> *outputs, bf16 *o, float *final, int H, int in_vk,
                                       int out_vk) {
    extern __shared__ __align__(1024) unsigned char smem_bytes[];
    Stage<CHANNELS> *stages = (Stage<CHANNELS> *)smem_bytes;
    u64 *full = (u64 *)(stages + STAGES);
    // ---- prologue: the initial state to registers, the first stages on their way
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / 4, pair = lane % 4 * 2;
    const int half = blockIdx.x % 2, head = blockIdx.x / 2 % H, n = blockIdx.x / 2 / H;
    const long long start = sequences.start(n), length = sequences.start(n + 1) - start;
    const int chunks = (int)((length + C - 1) / C);
    const size_t first = value_offset((size_t)start * H + head, D, sizeof(bf16));
    const bf16 *values = v + first + half * C;
    outputs += (size_t)sequences.chunks_before(n) * H + head;
    const auto prefetch = [&](int chunk) {
        if (chunk < chunks) {
            const size_t from = (size_t)chunk * C * H * D;
            const int tokens = (int)min((long long)C, length - (long long)chunk * C);
            load_stage<CHANNELS>(stages[chunk % STAGES], full + chunk % STAGES, q + first + from, k + first + from, values + from,
                                 outputs[(size_t)chunk * H], tokens, H);
        } else {
            cp_async_commit_group();
        }
    };
    // A thread has value channels `channel` and the eighth further, with key channels 8 n + pair and the next.
    const int channel = half * C + warp * 16 + row;
    const size_t matrix = state_offset((size_t)n * H + head, D * D);
    float s[2][8][4];
#pragma unroll
    for (int n = 0; n < 16; n++) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            load_pair(s[n / 8][n % 8][2 * i], s[n / 8][n % 8][2 * i + 1], initial + matrix, 8 * n + pair, channel + 8 * i, in_vk);
    }
    const int at = swizzle_128b(lane % 8 + lane / 16 * 8, 2 * warp + lane / 8 % 2);
    if (threadIdx.x < STAGES) {
        mbarrier_init(full + threadIdx.x, 1);
        fence_mbarrier_init();
    }
    __syncthreads();
    wait_on_dependent_grids();
#pragma unroll
    for (int chunk = 0; chunk < STAGES - 1; chunk++)
        prefetch(chunk);
    for (int chunk = 0; chunk < chunks; chunk++) {
        // ---- mainloop: K S and Q S, from the state before the chunk
        mbarrier_wait_parity(full + chunk % STAGES, chunk / STAGES % 2);
        cp_async_wait_group<STAGES - 2>();
        fence_proxy_async_smem();
        __syncthreads();
        Stage<CHANNELS> &stage = stages[chunk % STAGES];
        const float *factors = stage.chunk.factors;
        u32 state_a[8][4];
#pragma unroll
        for (int step = 0; step < 8; step++)
            accumulators_to_a(state_a[step], s[step / 4][step % 4 * 2], s[step / 4][step % 4 * 2 + 1]);
        float r[8][4], out[8][4];
        wgmma_fence();
        wgmma_tile(r, state_a, stage.keys());
        wgmma_tile(out, state_a, stage.queries());
        prefetch(chunk + STAGES - 1);
        u32 words[4][4];
#pragma unroll
        for (int n = 0; n < 4; n++)
            ldmatrix_x4_trans(words[n], smem_address(stage.v + at + n * 16 * 128));
        wgmma_wait_group<1>();
        // V − exp(G) K S
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float2 low = from_bf16x2(words[n / 2][n % 2 * 2]), high = from_bf16x2(words[n / 2][n % 2 * 2 + 1]);
            const float2 a = CHANNELS ? make_float2(1.0f, 1.0f) : *(const float2 *)(factors + 8 * n + pair);
            r[n][0] = fmaf(-a.x, r[n][0], low.x), r[n][1] = fmaf(-a.y, r[n][1], low.y);
            r[n][2] = fmaf(-a.x, r[n][2], high.x), r[n][3] = fmaf(-a.y, r[n][3], high.y);
        }
        u32 operand[4][4];
#pragma unroll
        for (int step = 0; step < 4; step++)
            accumulators_to_a(operand[step], r[2 * step], r[2 * step + 1]);
        // ---- mainloop: N = T (V − exp(G) K S)
        float new_values[8][4];
        wgmma_fence();
        wgmma_tile(new_values, operand, stage.chunk.t);
        // The state and its contribution to the output decay while the product runs.
#pragma unroll
        for (int n = 0; n < 16; n++) {
            const float2 decay = *(const float2 *)(factors + (CHANNELS ? 8 * n + pair : 3 * C));
            float (&x)[4] = s[n / 8][n % 8];
            x[0] *= decay.x, x[1] *= decay.y, x[2] *= decay.x, x[3] *= decay.y;
        }
        wgmma_wait_group<1>();
        if (!CHANNELS) {
#pragma unroll
            for (int n = 0; n < 8; n++) {
                const float2 b = *(const float2 *)(factors + C + 8 * n + pair);
                out[n][0] *= b.x, out[n][1] *= b.y, out[n][2] *= b.x, out[n][3] *= b.y;
            }
        }
        wgmma_wait_group<0>();
#pragma unroll
        for (int step = 0; step < 4; step++)
            accumulators_to_a(operand[step], new_values[2 * step], new_values[2 * step + 1]);
        wgmma_fence();
        // ---- mainloop: O += P N, S += (exp(G_64 − G) K)ᵀ N
        wgmma_tile<4, true>(out, operand, stage.chunk.p);
        u32 until[4][4];
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float2 c = CHANNELS ? make_float2(1.0f, 1.0f) : *(const float2 *)(factors + 2 * C + 8 * n + pair);
            u32(&to)[4] = until[n / 2];
            to[n % 2 * 2] = to_bf16x2(new_values[n][0] * c.x, new_values[n][1] * c.y);
            to[n % 2 * 2 + 1] = to_bf16x2(new_values[n][2] * c.x, new_values[n][3] * c.y);
        }
        wgmma_fence();
        const u64 keys = wgmma_descriptor(smem_address(stage.keys_until()));
#pragma unroll
        for (int step = 0; step < 4; step++) {
            wgmma_rs<true>(s[0], until[step], keys + step * 16 * 128 / 16);
            wgmma_rs<true>(s[1], until[step], keys + (PANEL + step * 16 * 128) / 16);
        }
        wgmma_commit_group();
        // While the product runs, the output replaces the warp's values in shared memory, and goes from there to memory in rows.
        wgmma_wait_group<1>();
#pragma unroll
        for (int n = 0; n < 8; n += 2)
            stmatrix_x4_trans(smem_address(stage.v + at + n * 8 * 128), to_bf16x2(out[n][0], out[n][1]),
                              to_bf16x2(out[n][2], out[n][3]), to_bf16x2(out[n + 1][0], out[n + 1][1]),
                              to_bf16x2(out[n + 1][2], out[n + 1][3]));
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = 16 * i + lane / 2, token = chunk * C + row, chunk_16b = 2 * warp + lane % 2;
            if (token < length)
                *(uint4 *)(o + first + (size_t)token * H * D + half * C + chunk_16b * 8) =
                    *(const uint4 *)(stage.v + swizzle_128b(row, chunk_16b));
        }
        wgmma_wait_group<0>();
#ifdef MUTANT_STATE_ROUNDED
#pragma unroll
        for (int n = 0; n < 16; n++) {
            float (&x)[4] = s[n / 8][n % 8];
            const float2 low = from_bf16x2(to_bf16x2(x[0], x[1])), high = from_bf16x2(to_bf16x2(x[2], x[3]));
            x[0] = low.x, x[1] = low.y, x[2] = high.x, x[3] = high.y;
        }
#endif
    }
#pragma unroll
    for (int n = 0; n < 16; n++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float2 x = make_float2(s[n / 8][n % 8][2 * i], s[n / 8][n % 8][2 * i + 1]);
#ifdef MUTANT_FINAL_ROUNDED
            x = from_bf16x2(to_bf16x2(x.x, x.y));
#endif
            store_pair(final + matrix, x.x, x.y, 8 * n + pair, channel + 8 * i, OUT_VK);
        }
    }
}

#define CHUNKS(GATE, CHANNELS)                                                                                                   \
    KERNEL(delta_prefill_chunks_own_##GATE, __launch_bounds__(THREADS, CHANNELS ? 2 : 3))(                                       \
        const bf16 *q, const bf16 *k, const float *g, const float *beta, const void *starts, ChunkOutput<CHANNELS> *left, int N, \
        int H, int index, float scale) {                                                                                         \
        chunk_outputs<CHANNELS>(q, k, g, beta, {starts, index, N}, left, H, scale);                                              \
    }                                                                                                                            \
    KERNEL(delta_prefill_chunks_states_##GATE, __launch_bounds__(128, 1))(                                                       \
        const bf16 *q, const bf16 *k, const bf16 *v, const float *initial, const void *starts,                                   \
        const ChunkOutput<CHANNELS> *left, bf16 *o, float *final, int N, int H, int index, int in_vk, int out_vk) {              \
        states<CHANNELS>(q, k, v, initial, {starts, index, N}, left, o, final, H, in_vk, out_vk);                                \
    }
// Only sm_90a has wgmma.
#if __CUDA_ARCH__ == 900
CHUNKS(gdn, false)
CHUNKS(kda, true)
#endif
