// Codes of KV-cache records, eight numbers at a time.
#pragma once
#include "record/layout.cuh"

// Whether elements are multiplied by a power of two: that is exact in bf16, except for numbers that become zero anyway.
template <class Rule> constexpr bool SHIFTS = !DIVIDES<Rule>;
template <> constexpr bool SHIFTS<Flashinfer> = false;

// Unpacks four pairs of bf16.
__device__ __forceinline__ void unpack(const u32 (&pairs)[4], float (&x)[8]) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        x[2 * i] = __uint_as_float(pairs[i] << 16), x[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000);
}

// Encodes E2M1 in pairs of bf16 or f16.
template <bool BF16> struct Pairs {
    static __device__ __forceinline__ u32 fma(u32 x, u32 y, u32 z) {
        u32 out;
        if (BF16)
            asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(x), "r"(y), "r"(z));
        else
            asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(x), "r"(y), "r"(z));
        return out;
    }

    // The smaller of a magnitude and 6, for two numbers; NaN becomes 6.
    static __device__ __forceinline__ u32 clamped(u32 x) {
        u32 out;
        if (BF16)
            asm("min.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(x & 0x7fff7fff), "r"(0x40c040c0));
        else
            asm("min.f16x2 %0, %1, %2;" : "=r"(out) : "r"(x & 0x7fff7fff), "r"(0x46004600));
        return out;
    }

    // Two codes, at bits 0 and 16, by the three sums of `E2m1::magnitude`. NaN must be without a sign.
    static __device__ __forceinline__ u32 encode2(u32 x) {
        const u32 size = clamped(x), one = BF16 ? 0x3f803f80 : 0x3c003c00, twofold = BF16 ? 0x00800080 : 0x04000400;
        const u32 integers = BF16 ? 0x43004300 : 0x64006400; // from here on they are one apart
        const u32 fine = fma(size, one + twofold, integers), middle = fma(size, one, integers + 0x00020002);
        const u32 coarse = fma(size, one - twofold, integers + 0x00040004);
        return (__vminu2(__vminu2(fine, middle), coarse) & 0x00070007) | (x >> 12 & 0x00080008);
    }

    static __device__ __forceinline__ u32 encode8(const u32 (&x)[4]) {
        const u32 low = encode2(x[0]) | encode2(x[1]) << 8, high = encode2(x[2]) | encode2(x[3]) << 8;
        return __byte_perm(low | low >> 12, high | high >> 12, 0x5410);
    }
};

// Codes of eight numbers of bf16 in a block whose elements are multiplied or divided by `by`.
template <class R> __device__ __forceinline__ typename R::Element::Codes codes_of(const u32 (&halves)[4], float by) {
    typedef typename R::Rule Rule;
    typedef typename R::Element Element;
    float x[8];
    u32 pairs[4];
    if constexpr (SHIFTS<Rule>) {
        for (int i = 0; i < 4; i++)
            pairs[i] = times_bf16x2(halves[i], to_bf16x2(by, by));
        if constexpr (Element::bits == 4)
            return Pairs<true>::encode8(pairs);
        unpack(pairs, x);
    } else if constexpr (!DIVIDES<Rule>) {
        unpack(halves, x);
        for (int i = 0; i < 8; i++)
            x[i] *= by;
    } else if constexpr (Element::bits == 4) {
        // A number of 8 bits divided by one of 4 is a tie of E2M1, or at least 2^-9 of itself away from one: f16 tells them apart, whatever
        // the last bits of the quotient are.
        const float inverse = rcp_approx(by);
        unpack(halves, x);
        for (int i = 0; i < 8; i++)
            x[i] = CLEARS_ZERO<Rule> ? fmaf(x[i], inverse, 0.0f) : x[i] * inverse;
        for (int i = 0; i < 4; i++)
            asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pairs[i]) : "f"(x[2 * i + 1]), "f"(x[2 * i]));
        return Pairs<false>::encode8(pairs);
    } else {
        // One Newton step from the product with the reciprocal gives the correctly rounded quotient, for numbers of 8 bits and divisors
        // amax/448, if nothing on the way is subnormal. This form keeps the sign of a zero.
        static_assert(!CLEARS_ZERO<Rule>);
        const bool small = by < 0x1p-60f;
        const float factor = small ? by * 0x1p64f : by, inverse = __frcp_rn(factor);
        for (int i = 0; i < 4; i++)
            pairs[i] = times_bf16x2(halves[i], small ? 0x5f805f80 : 0x3f803f80); // 2^64 or 1
        unpack(pairs, x);
        for (int i = 0; i < 8; i++) {
            const float near = x[i] * inverse;
            x[i] = fmaf(fmaf(near, factor, -x[i]), -inverse, near);
        }
    }
    return Element::encode8(x);
}

// The larger magnitude for each half of two pairs, with some sign; NaN is larger than any number.
__device__ __forceinline__ u32 max_magnitude_bf16x2(u32 x, u32 y) {
    u32 out;
    asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(x), "r"(y));
    return out;
}
