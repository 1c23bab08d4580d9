/*
[[variant]]
name = "simple"
doc = "a block for each value head, a thread for each value channel, as the definition has it; any sizes"

[[variant.launch]]
entry = "delta_decode_simple_{kind}_{layout}_{state}"
grid = ["H * G * ceil(B, 65535)", "min(B, 65535)"]
block = [128]
shared = "12 * K"
args = ["q", "k", "v", "gate", "beta", "a_log", "dt_bias", "indices", "state", "o", "B", "H", "G", "K", "V", "bound"]

[[variant]]
name = "vk"
doc = "[V, K]: 64 rows for each block, in registers; 16 at a time in a warp, whose lanes have their keys"
needs = ["vk == 1", "K == 128", "V % 64 == 0"]

[[variant.launch]]
entry = "delta_decode_vk_{kind}_{state}"
grid = ["V / 64", "H * G * ceil(B, 65535)", "min(B, 65535)"]
block = [128]
args = ["q", "k", "v", "gate", "beta", "a_log", "dt_bias", "indices", "state", "o", "B", "H", "G", "K", "V", "bound"]

[[variant]]
name = "vk_few"
doc = "[V, K], few tokens: 4 rows for each warp"
needs = ["vk == 1", "K == 128", "V % 16 == 0"]

[[variant.launch]]
entry = "delta_decode_vk_few_{kind}_{state}"
grid = ["V / 16", "H * G * ceil(B, 65535)", "min(B, 65535)"]
block = [128]
args = ["q", "k", "v", "gate", "beta", "a_log", "dt_bias", "indices", "state", "o", "B", "H", "G", "K", "V", "bound"]

[[variant]]
name = "kv"
doc = """
[K, V]: 64 columns per thread block, in registers; a lane has the same columns of many rows, so sums go over few lanes, then \
over warps"""
needs = ["vk == 0", "K == 128", "V % 64 == 0", "B <= 65535"]

[[variant.launch]]
entry = "delta_decode_kv_{kind}_{state}"
grid = ["V / 64", "H * G", "B"]
block = [128]
args = ["q", "k", "v", "gate", "beta", "a_log", "dt_bias", "indices", "state", "o", "B", "H", "G", "K", "V", "bound"]

[[variant]]
name = "kv_staged"
doc = "[K, V] of bf16: 128 columns for each block, the state waiting in shared memory"
needs = ["vk == 0", "K == 128", "V % 128 == 0", "size == 2"]

[[variant.launch]]
entry = "delta_decode_kv_staged_{kind}_{state}"
grid = ["V / 128", "H * G * ceil(B, 65535)", "min(B, 65535)"]
block = [128]
args = ["q", "k", "v", "gate", "beta", "a_log", "dt_bias", "indices", "state", "o", "B", "H", "G", "K", "V", "bound"]

[[variant]]
name = "kv_few"
doc = "[K, V], few tokens: 32 columns for each block"
needs = ["vk == 0", "K == 128", "V % 32 == 0"]

[[variant.launch]]
entry = "delta_decode_kv_few_{kind}_{state}"
grid = ["V / 32", "H * G * ceil(B, 65535)", "min(B, 65535)"]
block = [128]
args = ["q", "k", "v", "gate", "beta", "a_log", "dt_bias", "indices", "state", "o", "B", "H", "G", "K", "V", "bound"]

[[mutant]]
name = "layout_confused"
doc = "[K, V] taken for [V, K] and the reverse"
variants = ["simple"]

[[mutant]]
name = "decay_late"
doc = "the state decays after k has read it"
variants = ["simple"]

[[mutant]]
name = "beta_dropped"
doc = "beta is 1"

[[mutant]]
name = "gate_unbiased"
doc = "dt_bias is left out"

[[mutant]]
name = "eps_outside"
doc = "epsilon is added to the norms, not under the root"

[[mutant]]
name = "heads_tiled"
doc = "value head h has key head h % H"

[[mutant]]
name = "skip_ignored"
doc = "an index below 0 is taken for slot 0"

[[mutant]]
name = "update_unread"
doc = "o reads the state before k dᵀ is added"

[[mutant]]
name = "slot_offset_32"
doc = "the bytes before a state in the pool are counted in 32 bits"

[[mutant]]
name = "tokens_beyond_grid"
doc = "tokens beyond the last dimension of the grid are left out"
variants = ["simple", "vk", "vk_few", "kv_staged", "kv_few"]

[[mutant]]
name = "state_truncated"
doc = "a bf16 state is cut, not rounded"

[[mutant]]
name = "rows_exchanged"
doc = "sums of two rows go to each other"
variants = ["vk", "vk_few"]

[[mutant]]
name = "warp_lost"
doc = "the last warp's share of the keys is left out"
variants = ["kv", "kv_staged", "kv_few"]

[[mutant]]
name = "barrier_missing"
doc = "the warps' sums are read before all are there"
variants = ["kv", "kv_staged", "kv_few"]
*/

// reference: reference/ops/linear_attention/recurrent.rs
//
// One token of the gated delta rule (GDN: a decay for each head) and of Kimi delta attention (KDA: one for each key channel):
//
//   S ← α S    d = β (v − Sᵀk)    S ← S + k dᵀ    o = Sᵀq, which is (α S)ᵀq + (k·q) d of the S before
//
// q, k [B, H, K], normalised here, q also scaled by K^-½; v, o [B, H·G, V]; gate [B, H·G] or [B, H·G, K]; beta [B, H·G];
// a_log [H·G]; dt_bias like the gate of a token; state [slots, H·G] matrices K × V or V × K; indices [B], below 0 to skip.

#include "delta_decode/step.cuh"
#include "lib/tma.cuh"

// ---- simple

template <class S> __device__ __forceinline__ void store(S &to, float x) {
    from_f32(to, x);
#ifdef MUTANT_STATE_TRUNCATED
    if (sizeof(S) == 2)
        *(u16 *)&to = __float_as_uint(x) >> 16;
#endif
}

template <class S, bool KDA, bool VK> __device__ void simple(const Step<S> &step, int token, int head) {
    extern __shared__ float smem[];
    __shared__ float partials[2][32];
    const int K = step.K, V = step.V;
    const size_t at = step.at(token, head), key = ((size_t)token * step.H + step.key_head(head)) * K;
    float *q = smem, *k = q + K, *decay = k + K;
    const int slot = step.slot(token);
    if (slot < 0) {
        for (int v = threadIdx.x; v < V; v += blockDim.x)
            step.o[at * V + v].bits = 0;
        return;
    }
    float qq = 0.0f, kk = 0.0f;
    for (int i = threadIdx.x; i < K; i += blockDim.x) {
        q[i] = to_f32(step.q[key + i]), k[i] = to_f32(step.k[key + i]);
        qq = fmaf(q[i], q[i], qq), kk = fmaf(k[i], k[i], kk);
        const float raw = to_f32(step.gate[KDA ? at * K + i : at]), bias = step.dt_bias[KDA ? head * K + i : head];
        decay[i] = step.decay(step.biased(raw, bias), expf(step.a_log[head]));
    }
    qq = inverse_l2_norm(block_sum(qq, partials[0])) / sqrtf(K), kk = inverse_l2_norm(block_sum(kk, partials[1]));
    for (int i = threadIdx.x; i < K; i += blockDim.x)
        q[i] *= qq, k[i] *= kk;
    __syncthreads();
    const float beta = rate(step.beta[at]);
    S *state = step.matrix(slot, head);
    for (int v = threadIdx.x; v < V; v += blockDim.x) {
#ifdef MUTANT_LAYOUT_CONFUSED
        const size_t first = VK ? v : (size_t)v * K, pace = VK ? V : 1;
#else
        const size_t first = VK ? (size_t)v * K : v, pace = VK ? 1 : V;
#endif
        float read = 0.0f, o = 0.0f;
        for (int i = 0; i < K; i++) {
            const float s = to_f32(state[first + i * pace]);
#ifdef MUTANT_DECAY_LATE
            read = fmaf(s, k[i], read);
#else
            read = fmaf(decay[i] * s, k[i], read);
#endif
        }
        const float d = beta * (to_f32(step.v[at * V + v]) - read);
        for (int i = 0; i < K; i++) {
            S &place = state[first + i * pace];
            const float s = decay[i] * to_f32(place);
#ifdef MUTANT_UPDATE_UNREAD
            o = fmaf(s, q[i], o);
#else
            o = fmaf(fmaf(k[i], d, s), q[i], o);
#endif
            store(place, fmaf(k[i], d, s));
        }
        from_f32(step.o[at * V + v], o);
    }
}

// ---- 128 key channels, states read once

// How many bytes further on a thread block asks for the state that another one will load. Memory is read in order then, whatever order
// thread blocks load in: 519 us for 256 sequences in f32 on an H200, 528 without, and 543 if it is asked for 10 MB ahead.
constexpr int AHEAD = 6 << 20;

// Has the L2 cache load rows of a state that a later thread block will need: `rows` from `first` on.
template <class S> __device__ __forceinline__ void prefetch_ahead(const Step<S> &step, int token, int head, int first, int rows) {
    const int heads = step.H * step.G, state = step.V * K * (int)sizeof(S), later = head + AHEAD / state;
    const int then = token + later / heads, slot = then < (int)gridDim.z ? step.slot(then) : -1;
    if (slot >= 0)
        tma_prefetch_l2(step.matrix(slot, later % heads) + first * K, rows * K * (int)sizeof(S));
}

// [V, K]: a group of lanes has the 128 keys of a row of V; a warp has N rows for each such group.
template <class S, bool KDA, int N, bool STREAMING> __device__ __forceinline__ void vk(const Step<S> &step, int token, int head) {
    constexpr int E = 16 / sizeof(S), LANES = K / E, GROUPS = 32 / LANES, ROWS = N * GROUPS, SUM_LANES = LANES / (2 * N);
    const int V = step.V;
    const int lane = threadIdx.x % LANES, group = threadIdx.x % 32 / LANES;
    const int first = (blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * ROWS;
    const size_t at = step.at(token, head), key = ((size_t)token * step.H + step.key_head(head)) * K + lane * E;
    const int slot = step.slot(token);
    // The row whose sums this lane keeps: the products with k in the lower lanes, with q in the upper ones.
    const int row = first + lane % (LANES / 2) / SUM_LANES * GROUPS + group;
    const bool upper = lane >= LANES / 2, writes = upper && lane % SUM_LANES == 0;
    bf16 *o = step.o + at * V + row;
    // All small inputs are loaded before the state, and before the slot is known, so that nothing waits behind the state.
    const auto raw_q = load_packed_bf16<E>(step.q + key), raw_k = load_packed_bf16<E>(step.k + key);
    const bf16 beta = step.beta[at], gate = step.gate[KDA ? 0 : at];
    const auto raw_gate = load_packed_bf16<E>(KDA ? step.gate + at * K + lane * E : step.k + key);
    const float a_log = step.a_log[head], bias = step.dt_bias[KDA ? 0 : head];
    float biases[E];
    if (KDA)
        load(step.dt_bias + head * K + lane * E, biases);
    const bf16 v = step.v[at * V + row];
    if (slot < 0) {
        if (writes)
            o->bits = 0;
        return;
    }
    S *state = step.matrix(slot, head) + (first + group) * K + lane * E;
    uint4 piece[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        piece[i] = load_state<STREAMING>(state + i * GROUPS * K);
    if (!STREAMING && threadIdx.x == 0)
        prefetch_ahead(step, token, head, first, ROWS * (blockDim.x / 32));

    float q[E], k[E], decay[E];
    unpack(raw_q, q), unpack(raw_k, k), unpack(raw_gate, decay);
    const Norms norms(q, k);
    const float factor = expf(a_log), of_head = KDA ? 0.0f : step.decay(step.biased(to_f32(gate), bias), factor);
#pragma unroll
    for (int e = 0; e < E; e++) {
        decay[e] = KDA ? step.decay(step.biased(decay[e], biases[e]), factor) : of_head;
        q[e] *= norms.q, k[e] *= norms.k;
    }

    float sums[2 * N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        float s[E];
        unpack(piece[i], s);
        sums[i] = sums[N + i] = 0.0f;
#pragma unroll
        for (int e = 0; e < E; e++) {
            s[e] *= decay[e];
            sums[i] = fmaf(s[e], k[e], sums[i]), sums[N + i] = fmaf(s[e], q[e], sums[N + i]);
        }
    }
    const float sum = reduce_scatter<2 * N, LANES>(sums);
    float d = rate(beta) * (to_f32(v) - sum);
#ifdef MUTANT_ROWS_EXCHANGED
    d = __shfl_xor_sync(0xffffffff, d, SUM_LANES);
#endif
    const float of_lower = __shfl_xor_sync(0xffffffff, d, LANES / 2);
    if (writes)
        from_f32(*o, output(sum, norms.overlap, of_lower));
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float d_row = __shfl_sync(0xffffffff, d, i * SUM_LANES, LANES);
        float s[E];
        unpack(piece[i], s);
#pragma unroll
        for (int e = 0; e < E; e++)
            s[e] = fmaf(k[e], d_row, s[e] * decay[e]);
        store_state<STREAMING>(state + i * GROUPS * K, pack(s));
    }
}

// [K, V]: `COLUMNS` columns of V for each CTA, whose four warps have 32 keys each. If STAGED, a thread's part of the state waits
// in shared memory, not in registers.
template <class S, bool KDA, int COLUMNS, bool STREAMING, bool STAGED = false>
__device__ __forceinline__ void kv(const Step<S> &step, int token, int head) {
    constexpr int E = 16 / sizeof(S), LANES = COLUMNS / E, GROUPS = 32 / LANES, WARPS = 4, KEYS = K / WARPS, N = KEYS / GROUPS;
    // α k, α q, α and k of every key.
    __shared__ float4 factors[K];
    __shared__ __align__(16) float sums[2][WARPS][COLUMNS];
    __shared__ uint4 staged[STAGED ? N : 1][32 * WARPS];
    const int V = step.V;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / LANES, my_key = warp * KEYS + lane;
    const int col = lane % LANES * E, v0 = blockIdx.x * COLUMNS + col;
    const size_t at = step.at(token, head), key = ((size_t)token * step.H + step.key_head(head)) * K;
    const int slot = step.slot(token);
    const bool writes = threadIdx.x < LANES;
    typename PackedBf16<E>::Type *o = (typename PackedBf16<E>::Type *)(step.o + at * V + v0);
    const uint2 raw_q = load_packed_bf16<4>(step.q + key + 4 * lane), raw_k = load_packed_bf16<4>(step.k + key + 4 * lane);
    const auto raw_v = load_packed_bf16<E>(step.v + at * V + v0);
    const bf16 my_q = step.q[key + my_key], my_k = step.k[key + my_key], raw_gate = step.gate[KDA ? at * K + my_key : at];
    const float bias = step.dt_bias[KDA ? head * K + my_key : head];
    const bf16 raw_beta = step.beta[at];
    const float a_log = step.a_log[head];
    if (slot < 0) {
        if (writes)
            *o = {};
        return;
    }
    S *state = step.matrix(slot, head) + (warp * KEYS + group) * V + v0;
    uint4 piece[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (STAGED)
            cp_async_16_zfill(smem_address(&staged[i][threadIdx.x]), state + i * GROUPS * V, true);
        else
            piece[i] = load_state<STREAMING>(state + i * GROUPS * V);
    }
    if (STAGED)
        cp_async_commit_group();

    float qs[4], ks[4];
    unpack(raw_q, qs), unpack(raw_k, ks);
    const Norms norms(qs, ks);
    const float beta = rate(raw_beta), factor = expf(a_log);
    const float q = to_f32(my_q) * norms.q, k = to_f32(my_k) * norms.k;
    const float decay = step.decay(step.biased(to_f32(raw_gate), bias), factor);
    factors[my_key] = make_float4(k * decay, q * decay, decay, k);
    __syncwarp();
    // Every thread reads only what it copied itself.
    if (STAGED)
        cp_async_wait_group<0>();

    float read[2][E] = {};
#pragma unroll
    for (int i = 0; i < N; i++) {
        float s[E];
        unpack(STAGED ? staged[i][threadIdx.x] : piece[i], s);
        const float2 by = *(const float2 *)&factors[warp * KEYS + i * GROUPS + group];
#pragma unroll
        for (int e = 0; e < E; e++)
            read[0][e] = fmaf(s[e], by.x, read[0][e]), read[1][e] = fmaf(s[e], by.y, read[1][e]);
    }
#pragma unroll
    for (int step = LANES; step < 32; step *= 2) {
#pragma unroll
        for (int e = 0; e < E; e++) {
            read[0][e] += __shfl_xor_sync(0xffffffff, read[0][e], step);
            read[1][e] += __shfl_xor_sync(0xffffffff, read[1][e], step);
        }
    }
#ifdef MUTANT_BARRIER_MISSING
    // Warps are made late; by themselves they seldom are.
    if (warp % 2 == 0)
        __nanosleep(100000);
#endif
    if (group == 0) {
#pragma unroll
        for (int e = 0; e < E; e++)
            sums[0][warp][col + e] = read[0][e], sums[1][warp][col + e] = read[1][e];
    }
#ifndef MUTANT_BARRIER_MISSING
    __syncthreads();
#endif
    auto all = [&](int of, int e) {
        float sum = sums[of][0][col + e];
#ifdef MUTANT_WARP_LOST
        const int warps = WARPS - 1;
#else
        const int warps = WARPS;
#endif
#pragma unroll
        for (int i = 1; i < warps; i++)
            sum += sums[of][i][col + e];
        return sum;
    };
    float d[E], v[E];
    unpack(raw_v, v);
#pragma unroll
    for (int e = 0; e < E; e++)
        d[e] = beta * (v[e] - all(0, e));
    if (writes) {
        u32 out[E / 2];
#pragma unroll
        for (int e = 0; e < E; e += 2)
            out[e / 2] = to_bf16x2(output(all(1, e), norms.overlap, d[e]), output(all(1, e + 1), norms.overlap, d[e + 1]));
        *o = *(typename PackedBf16<E>::Type *)out;
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        float s[E];
        unpack(STAGED ? staged[i][threadIdx.x] : piece[i], s);
        const float4 by = factors[warp * KEYS + i * GROUPS + group];
#pragma unroll
        for (int e = 0; e < E; e++)
            s[e] = fmaf(by.w, d[e], s[e] * by.z);
        store_state<STREAMING>(state + i * GROUPS * V, pack(s));
    }
}

// Tokens are the last dimension of the grid, which has at most 65,535. If FOLDED, the others come with further heads.
template <bool FOLDED, class Of>
__device__ __forceinline__ void for_token(int token, int grid, int B, int head, int heads, Of of) {
    if (FOLDED) {
        while (head >= heads)
            head -= heads, token += grid;
#ifdef MUTANT_TOKENS_BEYOND_GRID
        B = min(B, grid);
#endif
        if (token >= B)
            return;
    }
    of(token, head);
}

#define ENTRY(name, S, THREADS, BLOCKS, FOLDED, TOKENS, HEADS, ...)                                                    \
    KERNEL(delta_decode_##name, __launch_bounds__(THREADS, BLOCKS))(                                                   \
        const bf16 *q, const bf16 *k, const bf16 *v, const bf16 *gate, const bf16 *beta, const float *a_log,           \
        const float *dt_bias, const int *indices, S *state, bf16 *o, int B, int H, int G, int K, int V, float bound) { \
        const Step<S> step = {q, k, v, gate, beta, a_log, dt_bias, indices, state, o, H, G, K, V, bound};              \
        for_token<FOLDED>(blockIdx.TOKENS, gridDim.TOKENS, B, blockIdx.HEADS, H * G,                                   \
                          [&](int token, int head) { __VA_ARGS__(step, token, head); });                               \
    }

#define KIND(kind, KDA, type, S)                                                       \
    ENTRY(simple_##kind##_kv_##type, S, 128, 1, true, y, x, simple<S, KDA, false>)     \
    ENTRY(simple_##kind##_vk_##type, S, 128, 1, true, y, x, simple<S, KDA, true>)      \
    ENTRY(vk_##kind##_##type, S, 128, 4, true, z, y, vk<S, KDA, 4 * sizeof(S), false>) \
    ENTRY(vk_few_##kind##_##type, S, 128, 4, true, z, y, vk<S, KDA, sizeof(S), true>)  \
    ENTRY(kv_##kind##_##type, S, 128, 4, false, z, y, kv<S, KDA, 64, false>)           \
    ENTRY(kv_few_##kind##_##type, S, 128, 4, true, z, y, kv<S, KDA, 32, true>)

KIND(gdn, false, f32, float)
KIND(gdn, false, bf16, bf16)
KIND(kda, true, f32, float)
KIND(kda, true, bf16, bf16)

ENTRY(kv_staged_gdn_bf16, bf16, 128, 5, true, z, y, kv<bf16, false, 128, false, true>)
ENTRY(kv_staged_kda_bf16, bf16, 128, 5, true, z, y, kv<bf16, true, 128, false, true>)
