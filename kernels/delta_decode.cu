/*
[[variant]]
name = "simple"
doc = "a block for each value head, a thread for each value channel, as the definition has it; any sizes"

[[variant.launch]]
entry = "delta_decode_simple_{kind}_{layout}_{state}"
grid = ["H * G", "B"]
block = [128]
shared = "12 * K"
args = ["q", "k", "v", "gate", "beta", "a_log", "dt_bias", "indices", "state", "o", "H", "G", "K", "V", "bound"]

[[variant]]
name = "vk"
doc = "[V, K]: 64 rows for each block, in registers; 16 at a time in a warp, whose lanes have their keys"
needs = ["vk == 1", "K == 128", "V % 64 == 0"]

[[variant.launch]]
entry = "delta_decode_vk_{kind}_{state}"
grid = ["V / 64", "H * G", "B"]
block = [128]
args = ["q", "k", "v", "gate", "beta", "a_log", "dt_bias", "indices", "state", "o", "H", "G", "K", "V", "bound"]

[[variant]]
name = "vkn"
doc = "no allocate"
needs = ["vk == 1", "K == 128", "V % 64 == 0"]

[[variant.launch]]
entry = "delta_decode_vkn_{kind}_{state}"
grid = ["V / 64", "H * G", "B"]
block = [128]
args = ["q", "k", "v", "gate", "beta", "a_log", "dt_bias", "indices", "state", "o", "H", "G", "K", "V", "bound"]

[[variant]]
name = "vkw"
doc = "whole head in a block"
needs = ["vk == 1", "K == 128", "V % 128 == 0"]

[[variant.launch]]
entry = "delta_decode_vkw_{kind}_{state}"
grid = ["V / 128", "H * G", "B"]
block = [256]
args = ["q", "k", "v", "gate", "beta", "a_log", "dt_bias", "indices", "state", "o", "H", "G", "K", "V", "bound"]

[[variant]]
name = "vkwn"
doc = "whole head in a block, no allocate"
needs = ["vk == 1", "K == 128", "V % 128 == 0"]

[[variant.launch]]
entry = "delta_decode_vkwn_{kind}_{state}"
grid = ["V / 128", "H * G", "B"]
block = [256]
args = ["q", "k", "v", "gate", "beta", "a_log", "dt_bias", "indices", "state", "o", "H", "G", "K", "V", "bound"]

[[variant]]
name = "vk5"
doc = "bf16: 32 rows a warp"
needs = ["vk == 1", "K == 128", "V % 128 == 0", "size == 2"]

[[variant.launch]]
entry = "delta_decode_vk5_{kind}_{state}"
grid = ["V / 64", "H * G", "B"]
block = [128]
args = ["q", "k", "v", "gate", "beta", "a_log", "dt_bias", "indices", "state", "o", "H", "G", "K", "V", "bound"]

[[variant]]
name = "vk_few"
doc = "[V, K], few tokens: 4 rows for each warp"
needs = ["vk == 1", "K == 128", "V % 16 == 0"]

[[variant.launch]]
entry = "delta_decode_vk_few_{kind}_{state}"
grid = ["V / 16", "H * G", "B"]
block = [128]
args = ["q", "k", "v", "gate", "beta", "a_log", "dt_bias", "indices", "state", "o", "H", "G", "K", "V", "bound"]

[[variant]]
name = "kv"
doc = "[K, V]: 64 columns for each block, in registers; a lane has the same columns of many rows, so sums go over few lanes, then over warps"
needs = ["vk == 0", "K == 128", "V % 64 == 0"]

[[variant.launch]]
entry = "delta_decode_kv_{kind}_{state}"
grid = ["V / 64", "H * G", "B"]
block = [128]
args = ["q", "k", "v", "gate", "beta", "a_log", "dt_bias", "indices", "state", "o", "H", "G", "K", "V", "bound"]

[[variant]]
name = "kvn"
doc = "no allocate"
needs = ["vk == 0", "K == 128", "V % 64 == 0"]

[[variant.launch]]
entry = "delta_decode_kvn_{kind}_{state}"
grid = ["V / 64", "H * G", "B"]
block = [128]
args = ["q", "k", "v", "gate", "beta", "a_log", "dt_bias", "indices", "state", "o", "H", "G", "K", "V", "bound"]

[[variant]]
name = "kvw"
doc = "128 columns"
needs = ["vk == 0", "K == 128", "V % 128 == 0"]

[[variant.launch]]
entry = "delta_decode_kvw_{kind}_{state}"
grid = ["V / 128", "H * G", "B"]
block = [256]
args = ["q", "k", "v", "gate", "beta", "a_log", "dt_bias", "indices", "state", "o", "H", "G", "K", "V", "bound"]

[[variant]]
name = "kvwn"
doc = "128 columns no allocate"
needs = ["vk == 0", "K == 128", "V % 128 == 0"]

[[variant.launch]]
entry = "delta_decode_kvwn_{kind}_{state}"
grid = ["V / 128", "H * G", "B"]
block = [256]
args = ["q", "k", "v", "gate", "beta", "a_log", "dt_bias", "indices", "state", "o", "H", "G", "K", "V", "bound"]

[[variant]]
name = "kv5"
doc = "bf16: 128 columns 4 warps"
needs = ["vk == 0", "K == 128", "V % 128 == 0", "size == 2"]

[[variant.launch]]
entry = "delta_decode_kv5_{kind}_{state}"
grid = ["V / 64", "H * G", "B"]
block = [128]
args = ["q", "k", "v", "gate", "beta", "a_log", "dt_bias", "indices", "state", "o", "H", "G", "K", "V", "bound"]

[[variant]]
name = "kv_few"
doc = "[K, V], few tokens: 32 columns for each block"
needs = ["vk == 0", "K == 128", "V % 32 == 0"]

[[variant.launch]]
entry = "delta_decode_kv_few_{kind}_{state}"
grid = ["V / 32", "H * G", "B"]
block = [128]
args = ["q", "k", "v", "gate", "beta", "a_log", "dt_bias", "indices", "state", "o", "H", "G", "K", "V", "bound"]

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
name = "state_truncated"
doc = "a bf16 state is cut, not rounded"

[[mutant]]
name = "rows_exchanged"
doc = "sums of two rows go to each other"
variants = ["vk", "vkn", "vkw", "vkwn", "vk5", "vk_few"]

[[mutant]]
name = "warp_lost"
doc = "the last warp's share of the keys is left out"
variants = ["kv", "kvn", "kvw", "kvwn", "kv5", "kv_few"]

[[mutant]]
name = "barrier_missing"
doc = "the warps' sums are read before all are there"
variants = ["kv", "kvn", "kvw", "kvwn", "kv5", "kv_few"]
*/

// One token of the gated delta rule (GDN: a decay for each head) and of Kimi delta attention (KDA: one for each key channel):
//
//   S ← α S    d = β (v − Sᵀk)    S ← S + k dᵀ    o = Sᵀq, which is (α S)ᵀq + (k·q) d of the S before
//
// q, k [B, H, K], normalised here, q also scaled by K^-½; v, o [B, H·G, V]; gate [B, H·G] or [B, H·G, K]; beta [B, H·G];
// a_log [H·G]; dt_bias like the gate of a token; state [slots, H·G] matrices K × V or V × K; indices [B], below 0 to skip.

#include "common.cuh"

__device__ __forceinline__ float sigmoid(float x) {
    return __fdividef(1.0f, 1.0f + expf(-x));
}

template <class S> struct Step {
    const bf16 *q, *k, *v, *gate, *beta;
    const float *a_log, *dt_bias;
    const int *indices;
    S *state;
    bf16 *o;
    int H, G, K, V;
    float bound;

    __device__ __forceinline__ int key_head(int head) const {
#ifdef MUTANT_HEADS_TILED
        return head % H;
#else
        return head / G;
#endif
    }

    // Number of a value head of a token.
    __device__ __forceinline__ size_t at(int token, int head) const {
        return (size_t)token * (H * G) + head;
    }

    __device__ __forceinline__ int slot(int token) const {
#ifdef MUTANT_SKIP_IGNORED
        return max(indices[token], 0);
#else
        return indices[token];
#endif
    }

    __device__ __forceinline__ S *matrix(int slot, int head) const {
        return state + at(slot, head) * (K * V);
    }

    // What a raw gate is before softplus or sigmoid.
    __device__ __forceinline__ float biased(float raw, float bias) const {
#ifdef MUTANT_GATE_UNBIASED
        return raw;
#else
        return raw + bias;
#endif
    }

    // The decay of a biased gate, of which `factor` is exp(a_log).
    __device__ __forceinline__ float decay(float x, float factor) const {
        if (bound < 0.0f)
            return expf(bound * sigmoid(factor * x));
        return expf(-(factor * (x > 20.0f ? x : log1pf(expf(x)))));
    }
};

__device__ __forceinline__ float rate(bf16 beta) {
#ifdef MUTANT_BETA_DROPPED
    return 1.0f;
#else
    return sigmoid(to_f32(beta));
#endif
}

__device__ __forceinline__ float inverse_norm(float squares) {
#ifdef MUTANT_EPS_OUTSIDE
    return 1.0f / (sqrtf(squares) + 1e-6f);
#else
    return rsqrtf(squares + 1e-6f);
#endif
}

// o of a value channel: `read` is (α S)ᵀq, `overlap` k·q.
__device__ __forceinline__ float output(float read, float overlap, float d) {
#ifdef MUTANT_UPDATE_UNREAD
    return read;
#else
    return fmaf(overlap, d, read);
#endif
}

// ---- simple

template <class S> __device__ __forceinline__ void store(S &to, float x) {
    from_f32(to, x);
#ifdef MUTANT_STATE_TRUNCATED
    if (sizeof(S) == 2)
        *(u16 *)&to = __float_as_uint(x) >> 16;
#endif
}

template <class S, bool KDA, bool VK> __device__ void simple(const Step<S> &step) {
    extern __shared__ float shared[];
    __shared__ float room[2][32];
    const int head = blockIdx.x, token = blockIdx.y, K = step.K, V = step.V;
    const size_t at = step.at(token, head), key = ((size_t)token * step.H + step.key_head(head)) * K;
    float *q = shared, *k = q + K, *decay = k + K;
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
    qq = inverse_norm(block_sum(qq, room[0])) / sqrtf(K), kk = inverse_norm(block_sum(kk, room[1]));
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

// ---- 128 key channels, read once

const int K = 128;

// 16 bytes of a state are read once and soon written again.
enum Hint { PLAIN, STREAM, NO_ALLOCATE };

template <Hint HINT> __device__ __forceinline__ uint4 load_state(const void *from) {
    if (HINT == STREAM)
        return __ldcs((const uint4 *)from);
    if (HINT == PLAIN)
        return *(const uint4 *)from;
    uint4 out;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
                 : "l"(from));
    return out;
}

template <Hint HINT> __device__ __forceinline__ void store_state(void *to, uint4 x) {
    if (HINT == STREAM)
        __stcs((uint4 *)to, x);
    else
        *(uint4 *)to = x;
}

// Four numbers in f32 or eight in bf16 of 16 bytes.
__device__ __forceinline__ void unpack(uint4 in, float (&x)[4]) {
    x[0] = __uint_as_float(in.x), x[1] = __uint_as_float(in.y), x[2] = __uint_as_float(in.z), x[3] = __uint_as_float(in.w);
}

__device__ __forceinline__ void unpack(uint2 in, float (&x)[4]) {
    x[0] = __uint_as_float(in.x << 16), x[1] = __uint_as_float(in.x & 0xffff0000);
    x[2] = __uint_as_float(in.y << 16), x[3] = __uint_as_float(in.y & 0xffff0000);
}

__device__ __forceinline__ void unpack(uint4 in, float (&x)[8]) {
    x[0] = __uint_as_float(in.x << 16), x[1] = __uint_as_float(in.x & 0xffff0000);
    x[2] = __uint_as_float(in.y << 16), x[3] = __uint_as_float(in.y & 0xffff0000);
    x[4] = __uint_as_float(in.z << 16), x[5] = __uint_as_float(in.z & 0xffff0000);
    x[6] = __uint_as_float(in.w << 16), x[7] = __uint_as_float(in.w & 0xffff0000);
}

__device__ __forceinline__ uint4 pack(const float (&x)[4]) {
    return make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3]));
}

__device__ __forceinline__ u32 pack_two(float low, float high) {
#ifdef MUTANT_STATE_TRUNCATED
    return __float_as_uint(low) >> 16 | __float_as_uint(high) & 0xffff0000;
#else
    return to_bf16x2(low, high);
#endif
}

__device__ __forceinline__ uint4 pack(const float (&x)[8]) {
    return make_uint4(pack_two(x[0], x[1]), pack_two(x[2], x[3]), pack_two(x[4], x[5]), pack_two(x[6], x[7]));
}

// As many bf16 as there are numbers of a state in 16 bytes.
template <int E> struct Bf16s;
template <> struct Bf16s<4> {
    typedef uint2 Type;
};
template <> struct Bf16s<8> {
    typedef uint4 Type;
};

template <int E> __device__ __forceinline__ typename Bf16s<E>::Type load_bf16s(const bf16 *from) {
    return *(const typename Bf16s<E>::Type *)from;
}

template <int E> __device__ __forceinline__ void load(const float *from, float (&x)[E]) {
#pragma unroll
    for (int e = 0; e < E; e += 4) {
        const float4 four = *(const float4 *)(from + e);
        x[e] = four.x, x[e + 1] = four.y, x[e + 2] = four.z, x[e + 3] = four.w;
    }
}

// The inverse norms of q and k, that of q with the scale, and k·q of both normalised, of `E` channels in each of 128 / E lanes.
struct Norms {
    float q, k, overlap;

    template <int E> __device__ __forceinline__ Norms(const float (&qs)[E], const float (&ks)[E]) {
        float qq = 0.0f, kk = 0.0f, qk = 0.0f;
#pragma unroll
        for (int e = 0; e < E; e++)
            qq = fmaf(qs[e], qs[e], qq), kk = fmaf(ks[e], ks[e], kk), qk = fmaf(qs[e], ks[e], qk);
#pragma unroll
        for (int step = K / E / 2; step > 0; step /= 2) {
            qq += __shfl_xor_sync(0xffffffff, qq, step);
            kk += __shfl_xor_sync(0xffffffff, kk, step);
            qk += __shfl_xor_sync(0xffffffff, qk, step);
        }
        q = inverse_norm(qq) * 0.08838834764831845f, k = inverse_norm(kk);
        overlap = qk * q * k;
    }
};

// Sums of `COUNT` numbers over `LANES` neighbouring lanes: each lane is left with number lane · COUNT / LANES.
template <int COUNT, int LANES> __device__ __forceinline__ float sum_each(float (&x)[COUNT]) {
    static_assert(COUNT <= LANES, "a lane is left with one number");
    int count = COUNT;
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) {
        if (count > 1) {
            count /= 2;
            const bool upper = threadIdx.x & step;
#pragma unroll
            for (int i = 0; i < COUNT / 2; i++) {
                if (i < count) {
                    const float other = __shfl_xor_sync(0xffffffff, upper ? x[i] : x[i + count], step);
                    x[i] = (upper ? x[i + count] : x[i]) + other;
                }
            }
        } else {
            x[0] += __shfl_xor_sync(0xffffffff, x[0], step);
        }
    }
    return x[0];
}

// Rows of V, each in the lanes that have its 128 keys: of each such group of lanes a warp has N at a time, `BATCHES` times.
template <class S, bool KDA, int N, int BATCHES, Hint HINT> __device__ __forceinline__ void vk(const Step<S> &step) {
    constexpr int E = 16 / sizeof(S), LANES = K / E, GROUPS = 32 / LANES, ROWS = N * GROUPS, EACH = LANES / (2 * N);
    const int head = blockIdx.y, token = blockIdx.z, V = step.V;
    const int lane = threadIdx.x % LANES, group = threadIdx.x % 32 / LANES;
    const int first = (blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * ROWS * BATCHES;
    const size_t at = step.at(token, head), key = ((size_t)token * step.H + step.key_head(head)) * K + lane * E;
    const int slot = step.slot(token);
    // Of a batch, the row whose sums this lane will have: those with k in the lower lanes, with q in the upper.
    const int row = first + lane % (LANES / 2) / EACH * GROUPS + group;
    const bool upper = lane >= LANES / 2, writes = upper && lane % EACH == 0;
    bf16 *o = step.o + at * V + row;
    if (slot < 0) {
        for (int batch = 0; batch < BATCHES && writes; batch++)
            o[batch * ROWS].bits = 0;
        return;
    }
    const auto raw_q = load_bf16s<E>(step.q + key), raw_k = load_bf16s<E>(step.k + key);
    // All that is small is asked for before the state, so that nothing waits for it behind.
    const bf16 beta = step.beta[at], gate = step.gate[KDA ? 0 : at];
    const auto raw_gate = load_bf16s<E>(KDA ? step.gate + at * K + lane * E : step.k + key);
    const float a_log = step.a_log[head], bias = step.dt_bias[KDA ? 0 : head];
    float biases[E];
    if (KDA)
        load(step.dt_bias + head * K + lane * E, biases);
    bf16 v[BATCHES];
    uint4 piece[BATCHES][N];
    S *state = step.matrix(slot, head) + (first + group) * K + lane * E;
#pragma unroll
    for (int batch = 0; batch < BATCHES; batch++) {
        v[batch] = step.v[at * V + row + batch * ROWS];
#pragma unroll
        for (int i = 0; i < N; i++)
            piece[batch][i] = load_state<HINT>(state + (batch * ROWS + i * GROUPS) * K);
    }

    float q[E], k[E], decay[E];
    unpack(raw_q, q), unpack(raw_k, k), unpack(raw_gate, decay);
    const Norms norms(q, k);
    const float factor = expf(a_log), of_head = KDA ? 0.0f : step.decay(step.biased(to_f32(gate), bias), factor);
#pragma unroll
    for (int e = 0; e < E; e++) {
        decay[e] = KDA ? step.decay(step.biased(decay[e], biases[e]), factor) : of_head;
        q[e] *= norms.q, k[e] *= norms.k;
    }

#pragma unroll
    for (int batch = 0; batch < BATCHES; batch++) {
        float sums[2 * N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            float s[E];
            unpack(piece[batch][i], s);
            sums[i] = sums[N + i] = 0.0f;
#pragma unroll
            for (int e = 0; e < E; e++) {
                s[e] *= decay[e];
                sums[i] = fmaf(s[e], k[e], sums[i]), sums[N + i] = fmaf(s[e], q[e], sums[N + i]);
            }
        }
        const float sum = sum_each<2 * N, LANES>(sums);
        float d = rate(beta) * (to_f32(v[batch]) - sum);
#ifdef MUTANT_ROWS_EXCHANGED
        d = __shfl_xor_sync(0xffffffff, d, EACH);
#endif
        const float of_lower = __shfl_xor_sync(0xffffffff, d, LANES / 2);
        if (writes)
            from_f32(o[batch * ROWS], output(sum, norms.overlap, of_lower));
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float d_row = __shfl_sync(0xffffffff, d, i * EACH, LANES);
            float s[E];
            unpack(piece[batch][i], s);
#pragma unroll
            for (int e = 0; e < E; e++)
                s[e] = fmaf(k[e], d_row, s[e] * decay[e]);
            store_state<HINT>(state + (batch * ROWS + i * GROUPS) * K, pack(s));
        }
    }
}

// `W` columns of V for each block, whose warps share the keys.
template <class S, bool KDA, int W, int WARPS, Hint HINT> __device__ __forceinline__ void kv(const Step<S> &step) {
    constexpr int E = 16 / sizeof(S), LANES = W / E, GROUPS = 32 / LANES, KEYS = K / WARPS, N = KEYS / GROUPS;
    // Of every key: α k, α q, α, k.
    __shared__ float4 factors[K];
    __shared__ __align__(16) float sums[2][WARPS][W];
    const int head = blockIdx.y, token = blockIdx.z, V = step.V;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / LANES;
    const int col = lane % LANES * E, v0 = blockIdx.x * W + col;
    const size_t at = step.at(token, head), key = ((size_t)token * step.H + step.key_head(head)) * K;
    const int slot = step.slot(token);
    const bool writes = threadIdx.x < LANES;
    typename Bf16s<E>::Type *o = (typename Bf16s<E>::Type *)(step.o + at * V + v0);
    if (slot < 0) {
        if (writes)
            *o = {};
        return;
    }
    const uint2 raw_q = load_bf16s<4>(step.q + key + 4 * lane), raw_k = load_bf16s<4>(step.k + key + 4 * lane);
    const auto raw_v = load_bf16s<E>(step.v + at * V + v0);
    const int my_key = warp * KEYS + lane % KEYS;
    const bf16 my_q = step.q[key + my_key], my_k = step.k[key + my_key];
    const bf16 raw_gate = step.gate[KDA ? at * K + my_key : at], raw_beta = step.beta[at];
    const float a_log = step.a_log[head], bias = step.dt_bias[KDA ? head * K + my_key : head];
    S *state = step.matrix(slot, head) + (warp * KEYS + group) * V + v0;
    uint4 piece[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        piece[i] = load_state<HINT>(state + i * GROUPS * V);

    float qs[4], ks[4];
    unpack(raw_q, qs), unpack(raw_k, ks);
    const Norms norms(qs, ks);
    const float beta = rate(raw_beta), decay = step.decay(step.biased(to_f32(raw_gate), bias), expf(a_log));
    const float q = to_f32(my_q) * norms.q, k = to_f32(my_k) * norms.k;
    factors[my_key] = make_float4(k * decay, q * decay, decay, k);
    __syncwarp();

    float read[2][E] = {};
#pragma unroll
    for (int i = 0; i < N; i++) {
        float s[E];
        unpack(piece[i], s);
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
        *o = *(typename Bf16s<E>::Type *)out;
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        float s[E];
        unpack(piece[i], s);
        const float4 by = factors[warp * KEYS + i * GROUPS + group];
#pragma unroll
        for (int e = 0; e < E; e++)
            s[e] = fmaf(by.w, d[e], s[e] * by.z);
        store_state<HINT>(state + i * GROUPS * V, pack(s));
    }
}

#define ENTRY(name, S, THREADS, BLOCKS, ...)                                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) delta_decode_##name(                                         \
        const bf16 *q, const bf16 *k, const bf16 *v, const bf16 *gate, const bf16 *beta, const float *a_log,                   \
        const float *dt_bias, const int *indices, S *state, bf16 *o, int H, int G, int K, int V, float bound) {                \
        __VA_ARGS__(Step<S>{q, k, v, gate, beta, a_log, dt_bias, indices, state, o, H, G, K, V, bound});                       \
    }

#define KIND(kind, KDA, type, S)                                                                                               \
    ENTRY(simple_##kind##_kv_##type, S, 128, 1, simple<S, KDA, false>)                                                         \
    ENTRY(simple_##kind##_vk_##type, S, 128, 1, simple<S, KDA, true>)                                                          \
    ENTRY(vk_##kind##_##type, S, 128, 4, vk<S, KDA, 64 / 16 * sizeof(S), 1, PLAIN>)                                            \
    ENTRY(vkn_##kind##_##type, S, 128, 4, vk<S, KDA, 64 / 16 * sizeof(S), 1, NO_ALLOCATE>)                                     \
    ENTRY(vkw_##kind##_##type, S, 256, 2, vk<S, KDA, 64 / 16 * sizeof(S), 1, PLAIN>)                                           \
    ENTRY(vkwn_##kind##_##type, S, 256, 2, vk<S, KDA, 64 / 16 * sizeof(S), 1, NO_ALLOCATE>)                                    \
    ENTRY(vk_few_##kind##_##type, S, 128, 4, vk<S, KDA, 16 / 16 * sizeof(S), 1, STREAM>)                                       \
    ENTRY(kv_##kind##_##type, S, 128, 4, kv<S, KDA, 64, 4, PLAIN>)                                                             \
    ENTRY(kvn_##kind##_##type, S, 128, 4, kv<S, KDA, 64, 4, NO_ALLOCATE>)                                                      \
    ENTRY(kvw_##kind##_##type, S, 256, 2, kv<S, KDA, 128, 8, PLAIN>)                                                           \
    ENTRY(kvwn_##kind##_##type, S, 256, 2, kv<S, KDA, 128, 8, NO_ALLOCATE>)                                                    \
    ENTRY(kv_few_##kind##_##type, S, 128, 4, kv<S, KDA, 32, 4, STREAM>)

KIND(gdn, false, f32, float)
KIND(gdn, false, bf16, bf16)
KIND(kda, true, f32, float)
KIND(kda, true, bf16, bf16)
ENTRY(vk5_gdn_bf16, bf16, 128, 5, vk<bf16, false, 8, 1, PLAIN>)
ENTRY(vk5_kda_bf16, bf16, 128, 5, vk<bf16, true, 8, 1, PLAIN>)
ENTRY(kv5_gdn_bf16, bf16, 128, 5, kv<bf16, false, 64, 4, PLAIN>)
ENTRY(kv5_kda_bf16, bf16, 128, 5, kv<bf16, true, 64, 4, PLAIN>)
