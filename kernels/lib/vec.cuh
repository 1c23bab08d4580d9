// Vectors of eight numbers: 16 bytes of bfloat16 or twice 16 bytes of f32, as they are in memory.
#pragma once

#include "lib/ptx.cuh"
#include "lib/reduce.cuh"

// Eight consecutive numbers. `at` counts vectors from `from`, which is 16-byte aligned.
template <class T> struct Vec8;

template <> struct Vec8<bf16> {
    u32 word[4];

    // With an L2 policy, or without.
    template <class... Policy> __device__ __forceinline__ void load(const bf16 *from, size_t at, Policy... policy) {
        const uint4 in = ld_global_nc((const uint4 *)from + at, policy...);
        word[0] = in.x, word[1] = in.y, word[2] = in.z, word[3] = in.w;
    }

    __device__ __forceinline__ void load_smem(const bf16 *from, int at) {
        const uint4 in = ((const uint4 *)from)[at];
        word[0] = in.x, word[1] = in.y, word[2] = in.z, word[3] = in.w;
    }

    __device__ __forceinline__ void zero() {
        word[0] = word[1] = word[2] = word[3] = 0;
    }

    __device__ __forceinline__ void unpack(float (&out)[8]) const {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            out[2 * i] = __uint_as_float(word[i] << 16);
            out[2 * i + 1] = __uint_as_float(word[i] & 0xffff0000);
        }
    }

    // The bits of the largest magnitude as an f32.
    __device__ __forceinline__ u32 amax() const {
        const u32 sign = 0x80008000;
        const u32 both = __vmaxu2(__vmaxu2(word[0] & ~sign, word[1] & ~sign), __vmaxu2(word[2] & ~sign, word[3] & ~sign));
        return max_magnitude(both << 16, both & 0xffff0000);
    }

    static __device__ __forceinline__ void store(bf16 *to, size_t at, const float (&x)[8]) {
        uint4 out;
        out.x = to_bf16x2(x[0], x[1]), out.y = to_bf16x2(x[2], x[3]);
        out.z = to_bf16x2(x[4], x[5]), out.w = to_bf16x2(x[6], x[7]);
        ((uint4 *)to)[at] = out;
    }
};

// The bits of the largest of eight magnitudes.
__device__ __forceinline__ u32 amax_of(const float (&x)[8]) {
    float amax = fabsf(x[0]);
#pragma unroll
    for (int i = 1; i < 8; i++) {
#ifdef MUTANT_NAN_DROPPED
        amax = fmaxf(amax, fabsf(x[i]));
#else
        amax = max_nan(amax, fabsf(x[i]));
#endif
    }
    return __float_as_uint(amax);
}

template <> struct Vec8<float> {
    uint4 half[2];

    template <class... Policy> __device__ __forceinline__ void load(const float *from, size_t at, Policy... policy) {
        half[0] = ld_global_nc((const uint4 *)from + 2 * at, policy...);
        half[1] = ld_global_nc((const uint4 *)from + 2 * at + 1, policy...);
    }

    __device__ __forceinline__ void load_smem(const float *from, int at) {
        half[0] = ((const uint4 *)from)[2 * at], half[1] = ((const uint4 *)from)[2 * at + 1];
    }

    __device__ __forceinline__ void zero() {
        half[0] = half[1] = make_uint4(0, 0, 0, 0);
    }

    __device__ __forceinline__ void unpack(float (&out)[8]) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            out[4 * i] = __uint_as_float(half[i].x), out[4 * i + 1] = __uint_as_float(half[i].y);
            out[4 * i + 2] = __uint_as_float(half[i].z), out[4 * i + 3] = __uint_as_float(half[i].w);
        }
    }

    __device__ __forceinline__ u32 amax() const {
        float x[8];
        unpack(x);
        return amax_of(x);
    }

    static __device__ __forceinline__ void store(float *to, size_t at, const float (&x)[8]) {
        ((float4 *)to)[2 * at] = make_float4(x[0], x[1], x[2], x[3]);
        ((float4 *)to)[2 * at + 1] = make_float4(x[4], x[5], x[6], x[7]);
    }
};

// The first vector of a thread that has `N` of the vectors of its CTA, 32 apart: a warp has 32·N vectors in one piece.
template <int N> __device__ __forceinline__ int first_vec8() {
    return threadIdx.x / 32 * 32 * N + threadIdx.x % 32;
}

// Bounds checks of vectors: only those below a count exist, or all do.
struct BelowCount {
    int count;

    __device__ __forceinline__ bool operator()(int at) const {
        return at < count;
    }
};

struct NoBounds {
    __device__ __forceinline__ bool operator()(int) const {
        return true;
    }
};
