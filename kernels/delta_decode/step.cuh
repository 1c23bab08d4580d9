// Inputs, gates, packed states and sums over lanes, which the kernels of delta_decode.cu share.
#pragma once

#include "lib/evict_last.cuh"
#include "lib/reduce.cuh"
#include "lib/vec.cuh"

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

    // The index of a value head of a token.
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
#ifdef MUTANT_SLOT_OFFSET_32
        return (S *)((char *)state + (u32)(at(slot, head) * (K * V) * sizeof(S)));
#else
        return state + at(slot, head) * (K * V);
#endif
    }

    // The gate before softplus or sigmoid.
    __device__ __forceinline__ float biased(float raw, float bias) const {
#ifdef MUTANT_GATE_UNBIASED
        return raw;
#else
        return raw + bias;
#endif
    }

    // The decay of a biased gate; `factor` is exp(a_log).
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

__device__ __forceinline__ float inverse_l2_norm(float squares) {
#ifdef MUTANT_EPS_OUTSIDE
    return 1.0f / (sqrtf(squares) + 1e-6f);
#else
    return rsqrtf(squares + 1e-6f);
#endif
}

// The output of a value channel: `read` is (α S)ᵀq, `overlap` k·q.
__device__ __forceinline__ float output(float read, float overlap, float d) {
#ifdef MUTANT_UPDATE_UNREAD
    return read;
#else
    return fmaf(overlap, d, read);
#endif
}

// ---- 128 key channels

const int K = 128;

// 16 bytes of a state, which goes back to its place. With few states, all of which come from memory, loads and stores are faster if L2
// evicts their lines first. With many, loads are faster if L2 keeps a line until it is stored.
template <bool STREAMING> __device__ __forceinline__ uint4 load_state(const void *from) {
    if (STREAMING)
        return __ldcs((const uint4 *)from);
    return ld_global_evict_last((const uint4 *)from);
}

template <bool STREAMING> __device__ __forceinline__ void store_state(void *to, uint4 x) {
    if (STREAMING)
        __stcs((uint4 *)to, x);
    else
        *(uint4 *)to = x;
}

// Unpacks 16 bytes: four numbers in f32, or eight in bf16.
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

__device__ __forceinline__ u32 pack_bf16x2(float low, float high) {
#ifdef MUTANT_STATE_TRUNCATED
    return __float_as_uint(low) >> 16 | __float_as_uint(high) & 0xffff0000;
#else
    return to_bf16x2(low, high);
#endif
}

__device__ __forceinline__ uint4 pack(const float (&x)[8]) {
    return make_uint4(pack_bf16x2(x[0], x[1]), pack_bf16x2(x[2], x[3]), pack_bf16x2(x[4], x[5]), pack_bf16x2(x[6], x[7]));
}

// As many bf16 as a state has numbers in 16 bytes.
template <int E> struct PackedBf16;
template <> struct PackedBf16<4> {
    typedef uint2 Type;
};
template <> struct PackedBf16<8> {
    typedef uint4 Type;
};

template <int E> __device__ __forceinline__ typename PackedBf16<E>::Type load_packed_bf16(const bf16 *from) {
    return *(const typename PackedBf16<E>::Type *)from;
}

template <int E> __device__ __forceinline__ void load(const float *from, float (&x)[E]) {
#pragma unroll
    for (int e = 0; e < E; e += 4) {
        const float4 vec4 = *(const float4 *)(from + e);
        x[e] = vec4.x, x[e + 1] = vec4.y, x[e + 2] = vec4.z, x[e + 3] = vec4.w;
    }
}

// The inverse norms of q (times the scale) and k, and k·q of both normalised. Each of 128 / E lanes has `E` channels.
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
        q = inverse_l2_norm(qq) * 0.08838834764831845f, k = inverse_l2_norm(kk);
        overlap = qk * q * k;
    }
};

// Reduce-scatter: sums `COUNT` numbers over `LANES` neighbouring lanes; each lane keeps number lane · COUNT / LANES.
template <int COUNT, int LANES> __device__ __forceinline__ float reduce_scatter(float (&x)[COUNT]) {
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
