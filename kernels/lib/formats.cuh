// Elements, scale rules and block formats, bit for bit those of crates/core/formats.
#pragma once

#include "lib/vec.cuh"

#define INFINITY_BITS 0x7f800000u
#define NAN_BITS 0x7fc00000u

// ---- elements: each casts one number (`encode`), eight at a time (`encode8`), and back

struct E4m3 {
    typedef uint2 Codes; // of eight elements
    static constexpr int bits = 8;
    static constexpr float max = 448.0f, inverse = 1.0f / 448.0f;

    // Two codes, nearest even, saturating, the first in the low byte; NaN becomes 0x7f whatever its sign.
    static __device__ __forceinline__ u32 encode2(float low, float high) {
        u16 out;
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(out) : "f"(high), "f"(low));
        return out;
    }

    static __device__ __forceinline__ u32 encode(float x) {
        return encode2(x, 0.0f) & 0xff;
    }

    static __device__ __forceinline__ uint2 encode8(const float (&x)[8]) {
        return make_uint2(encode2(x[0], x[1]) | encode2(x[2], x[3]) << 16, encode2(x[4], x[5]) | encode2(x[6], x[7]) << 16);
    }

    // Encodes products with a factor.
    static __device__ __forceinline__ uint2 encode8(const float (&x)[8], float factor) {
        float y[8];
#pragma unroll
        for (int i = 0; i < 8; i++)
            y[i] = x[i] * factor;
        return encode8(y);
    }

    // The values of two codes.
    static __device__ __forceinline__ void decode2(u32 codes, float &low, float &high) {
        u32 halves;
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((u16)codes));
        asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }"
            : "=f"(low), "=f"(high)
            : "r"(halves));
    }

    static __device__ __forceinline__ float decode(u32 code) {
        float low, high;
        decode2(code, low, high);
        return low;
    }

    static __device__ __forceinline__ int shift(int) {
        return 0;
    }

    static __device__ __forceinline__ void decode8(uint2 codes, float (&out)[8]) {
        decode2(codes.x, out[0], out[1]), decode2(codes.x >> 16, out[2], out[3]);
        decode2(codes.y, out[4], out[5]), decode2(codes.y >> 16, out[6], out[7]);
    }
};

struct E2m1 {
    typedef u32 Codes;
    static constexpr int bits = 4;
    static constexpr float max = 6.0f, inverse = 1.0f / 6.0f;

    // 2^23 − 4 plus the code of a magnitude, as bits: the codes are 2x, x + 2, x/2 + 4 and 7, in turn, and even codes are even
    // integers. The sum 2^23 − 2 + x is rounded to halves until it is 2^23, and to integers from there on: the first two. Another sum
    // rounds the third, and the lesser of both is the code. `fminf` turns NaN into the largest.
    static constexpr u32 ZERO = 0x4afffffc;

    static __device__ __forceinline__ u32 magnitude(float x) {
#ifdef MUTANT_TIES_UP
        x = __uint_as_float(__float_as_uint(x) + 1);
#endif
        const float integers = 8388608.0f, size = fminf(fabsf(x), 6.0f);
        return min(__float_as_uint(__fadd_rn(size, integers - 2.0f)), __float_as_uint(__fmaf_rn(size, 0.5f, integers)));
    }

    // NaN loses its sign, as in the machine's own cast; arithmetic gives it none.
    static __device__ __forceinline__ u32 encode(float x) {
        const u32 sign = __float_as_uint(x) >> 31 & (x == x);
        return (magnitude(x) - ZERO) | sign << 3;
    }

    // Two codes, the first in the low nibble.
    static __device__ __forceinline__ u32 encode2(float low, float high) {
#ifdef MUTANT_NIBBLE_ORDER
        return encode(high) | encode(low) << 4;
#else
        return encode(low) | encode(high) << 4;
#endif
    }

    // Eight codes, the first in the lowest bits. NaN must be without a sign, as every arithmetic result is.
    static __device__ __forceinline__ u32 encode8(const float (&x)[8]) {
        u32 codes = 0;
#pragma unroll
        for (int i = 7; i >= 0; i--)
            codes = codes * 16 + magnitude(x[i]);
        return with_signs(codes - ZERO * 0x11111111, x);
    }

    // Encodes products with an ordinary factor. The second sum is one that the machine keeps below 1, where the last bit is 2^-24,
    // instead of a limit of 6. Its tie at 5 goes down, as it must, because the coefficient is just below 2^-25.
    static __device__ __forceinline__ u32 encode8(const float (&x)[8], float factor) {
        const u32 zero = 0x3f7ffff9;
        u32 codes = 0;
#pragma unroll
        for (int i = 7; i >= 0; i--) {
            float size = fabsf(x[i]) * factor, coarse;
#ifdef MUTANT_TIES_UP
            size = __uint_as_float(__float_as_uint(size) + 1);
#endif
            asm("fma.rn.sat.f32 %0, %1, 0f32FFFFFF, 0f3F7FFFFD;" : "=f"(coarse) : "f"(size));
            const float fine = __fadd_rn(size, 8388606.0f);
            codes = codes * 16 + __viaddmin_s32(__float_as_int(fine), (int)(zero - ZERO), __float_as_int(coarse));
        }
        return with_signs(codes - zero * 0x11111111, x);
    }

    // Adds the signs of numbers to the codes of their magnitudes; a sign fills a byte first.
    static __device__ __forceinline__ u32 with_signs(u32 codes, const float (&x)[8]) {
        const u32 even = __byte_perm(signs_of(x[0], x[2]), signs_of(x[4], x[6]), 0x5410);
        const u32 odd = __byte_perm(signs_of(x[1], x[3]), signs_of(x[5], x[7]), 0x5410);
        codes |= (even & 0x08080808) | (odd & 0x80808080);
#ifdef MUTANT_NIBBLE_ORDER
        return (codes >> 4 & 0x0f0f0f0f) | (codes & 0x0f0f0f0f) << 4;
#else
        return codes;
#endif
    }

    // The signs of two numbers in the two lower bytes.
    static __device__ __forceinline__ u32 signs_of(float a, float b) {
        u32 out;
        asm("prmt.b32 %0, %1, %2, 0x00fb;" : "=r"(out) : "r"(__float_as_uint(a)), "r"(__float_as_uint(b)));
        return out;
    }

    // The shift of the first and the second code of a byte.
    static __device__ __forceinline__ int shift(int index) {
#ifdef MUTANT_NIBBLE_ORDER
        index ^= 1;
#endif
        return index * 4;
    }

    // A code's bits are those of an f32 with another bias.
    static __device__ __forceinline__ float decode(u32 code) {
        return __uint_as_float((code & 7) << 22 | (code & 8) << 28) * __uint_as_float(0x7e800000); // 2^126
    }

    static __device__ __forceinline__ void decode8(u32 codes, float (&out)[8]) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            out[i] = decode(codes >> (i / 2 * 8 + shift(i % 2)));
    }
};

// ---- scale rules
//
// From the bits of a block's largest magnitude, `scale` gives the stored scale, and `factor` the number by which the elements are
// multiplied; `decode` gives the number by which codes are multiplied. `Level` stands above the block scales, and is made of one
// f32 in memory.

struct NoLevel {
    NoLevel() = default;
    __device__ __forceinline__ explicit NoLevel(const float *) {}
};

// f32: max(amax, 1e-4)/max.
struct Deepgemm {
    typedef float Stored;
    typedef NoLevel Level;

    template <class Element> static __device__ __forceinline__ float scale(u32 amax, Level) {
        const float floored = __uint_as_float(max(amax, __float_as_uint(1e-4f)));
        return amax >= INFINITY_BITS ? __uint_as_float(NAN_BITS) : __fdiv_rn(floored, Element::max);
    }

    static __device__ __forceinline__ float factor(float scale, Level) {
        return __frcp_rn(scale);
    }

    static __device__ __forceinline__ float decode(float scale, Level) {
        return scale;
    }
};

// The value of an E8M0 code; that of 0, 2^-127, is a subnormal f32.
__device__ __forceinline__ float e8m0(u32 code) {
#ifdef MUTANT_SUBNORMAL_SCALE_FLUSHED
    if (code == 0)
        return 0.0f;
#endif
    return __uint_as_float(code == 0 ? 0x00400000 : code == 255 ? NAN_BITS : code << 23);
}

// The smallest power of two not below a positive number; 2^-127 for anything less. The bits are of a finite number.
__device__ __forceinline__ u32 e8m0_up(u32 bits) {
#ifdef MUTANT_SUBNORMAL_SCALE_FLUSHED
    bits = bits < 0x00800000 ? 0 : bits;
#endif
    return bits > 0x00400000 ? (bits + 0x7fffff) >> 23 : 0;
}

// E8M0: the smallest power of two not below max(amax, floor)·fl32(1/max). `FLOOR` has the bits of an f32.
template <u32 FLOOR> struct PowerUp {
    typedef u8 Stored;
    typedef NoLevel Level;

    template <class Element> static __device__ __forceinline__ u8 scale(u32 amax, Level) {
        const float floored = __uint_as_float(max(amax, FLOOR));
        return amax >= INFINITY_BITS ? 255 : e8m0_up(__float_as_uint(floored * Element::inverse));
    }

    // The reciprocal has the code 254 - code. What is stored under a NaN means nothing; it is what 254 gives.
    static __device__ __forceinline__ float factor(u8 scale, Level) {
        return __uint_as_float(scale >= 254 ? 0x00400000 : (254u - scale) << 23);
    }

    static __device__ __forceinline__ float decode(u8 scale, Level) {
        return e8m0(scale);
    }
};

typedef PowerUp<0> Rceil;
typedef PowerUp<0x38d1b717> ActQuant;    // 1e-4
typedef PowerUp<0x01c00000> Fp4ActQuant; // 6·2^-126

// E4M3 under one f32, by TransformerEngine's rule; the f32 is the largest magnitude that it stands above.
struct Te {
    typedef u8 Stored;

    struct Level {
        float stored, sixth, inverse;

        Level() = default;
        __device__ __forceinline__ explicit Level(const float *amax) : Level(*amax) {}
        __device__ __forceinline__ explicit Level(float amax) {
            const float largest = 3.402823466e38f, quotient = __fdiv_rn(2688.0f, amax);
            const float finite = quotient > largest ? largest : quotient;
            const float encode = amax == 0.0f || finite == 0.0f ? 1.0f : finite;
            stored = amax, sixth = encode * (1.0f / 6.0f), inverse = __frcp_rn(encode);
        }
    };

    template <class Element> static __device__ __forceinline__ u8 scale(u32 amax, Level level) {
        const float finite = __uint_as_float(amax < INFINITY_BITS ? amax : NAN_BITS), product = finite * level.sixth;
        return E4m3::encode(amax == 0 ? 0.0f : product);
    }

    static __device__ __forceinline__ float factor(u8 scale, Level level) {
        const float largest = 3.402823466e38f, factor = __frcp_rn(E4m3::decode(scale) * level.inverse);
        return factor > largest ? largest : factor;
    }

    // A scale has no sign: with that bit set it is NaN.
    static __device__ __forceinline__ float decode(u8 scale, Level level) {
        return E4m3::decode(scale < 128 ? scale : 0x7f) * level.stored * (1.0f / 2688.0f);
    }
};

// ---- block formats

template <class E, class R, int W> struct Format {
    typedef E Element;
    typedef R Rule;
    typedef typename E::Codes Codes;
    typedef typename R::Stored Stored;
    typedef typename R::Level Level;
    static constexpr int width = W;     // elements of a block
    static constexpr int lanes = W / 8; // threads that hold a block, eight elements each
};

// One thread quantizes one block, element by element: the numbers value(first) … value(end − 1) of a row to its bytes. A block that
// is cut short counts as if filled up with zeros.
template <class F, class Value>
__device__ void quantize_block(int first, int end, u8 *row, typename F::Stored &scale, typename F::Level level, Value value) {
    typedef typename F::Element Element;
    u32 amax = 0;
    for (int i = first; i < end; i++) {
#ifdef MUTANT_TAIL_SKIPPED
        if (end - first < F::width)
            break;
#endif
        amax = max_magnitude(amax, __float_as_uint(value(i)) & 0x7fffffff);
    }
    scale = F::Rule::template scale<Element>(amax, level);
    const float factor = F::Rule::factor(scale, level);
    if (Element::bits == 8) {
        for (int i = first; i < end; i++)
            row[i] = Element::encode(value(i) * factor);
    } else {
        for (int i = first; i < end; i += 2)
            row[i / 2] = Element::encode2(value(i) * factor, value(i + 1) * factor);
    }
}

// `N` blocks, each held by neighbouring lanes with a vec8 each. Instead of every lane working out all N scales, each takes its
// share: lanes exchange halves of the largest magnitudes until one is left, and hand the factors back the same way.
template <class F, int N> struct Shared {
    static constexpr int exchanges = N == 1 || F::lanes == 1 ? 0 : N == 2 || F::lanes == 2 ? 1 : 2;
    static constexpr int own = N >> exchanges; // blocks whose scales a lane works out
    static_assert(N <= 4, "at most two exchanges");

    // The index of the first of them, and whether this lane stores them.
    static __device__ __forceinline__ int first() {
        const int lane = threadIdx.x;
        return exchanges == 0 ? 0 : exchanges == 1 ? lane % 2 * (N / 2) : lane % 2 * (N / 2) + lane / 2 % 2 * (N / 4);
    }

    static __device__ __forceinline__ bool stores() {
        return threadIdx.x % F::lanes >> exchanges == 0;
    }

    // The scales of the lane's blocks and their factors, from the largest magnitudes of its own vectors.
    static __device__ __forceinline__ void work_out(u32 (&amax)[N], typename F::Level level, typename F::Stored (&scale)[own],
                                                    float (&factor)[N]) {
#pragma unroll
        for (int e = 0; e < exchanges; e++) {
            const bool upper = threadIdx.x >> e & 1;
#pragma unroll
            for (int i = 0; i < N >> (e + 1); i++) {
                const u32 low = amax[i], high = amax[i + (N >> (e + 1))];
                amax[i] = max_magnitude_xor(upper ? high : low, upper ? low : high, 1 << e);
            }
        }
#pragma unroll
        for (int i = 0; i < own; i++) {
#pragma unroll
            for (int step = 1 << exchanges; step < F::lanes; step *= 2)
                amax[i] = max_magnitude_xor(amax[i], amax[i], step);
            scale[i] = F::Rule::template scale<typename F::Element>(amax[i], level);
            factor[i] = F::Rule::factor(scale[i], level);
        }
    }

    // The factors of all.
    static __device__ __forceinline__ void hand_back(float (&factor)[N]) {
#pragma unroll
        for (int e = exchanges - 1; e >= 0; e--) {
            const bool upper = threadIdx.x >> e & 1;
#pragma unroll
            for (int i = 0; i < N >> (e + 1); i++) {
                const float mine = factor[i], other = __shfl_xor_sync(0xffffffff, mine, 1 << e);
                factor[i] = upper ? other : mine;
                factor[i + (N >> (e + 1))] = upper ? mine : other;
            }
        }
    }
};

// Whether the first n factors of all lanes of a warp are ordinary, which means above 2^-127: the factor of a block with a NaN or an
// infinity is not.
template <int N> __device__ __forceinline__ bool ordinary(const float (&factor)[N], int n) {
    bool all = true;
#pragma unroll
    for (int i = 0; i < n; i++)
        all &= factor[i] > __uint_as_float(0x00400000);
    return __all_sync(0xffffffff, all);
}

// Leaves factors as they are.
struct Unchanged {
    template <int N> __device__ __forceinline__ bool operator()(float (&factor)[N], int n) const {
        return ordinary(factor, n);
    }
};

// Stores the codes of a thread's vectors, in a faster way if factors are ordinary.
template <class F, bool ORDINARY, int N, class Get, class InBounds>
__device__ __forceinline__ void store_codes(Get get, const float (&factor)[N], typename F::Codes *data, int at,
                                            InBounds in_bounds) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        float x[8];
        get(i, x);
        if (!ORDINARY) {
#pragma unroll
            for (int k = 0; k < 8; k++)
                x[k] *= factor[i];
        }
        if (in_bounds(at + i * 32))
            data[i * 32] = ORDINARY ? F::Element::encode8(x, factor[i]) : F::Element::encode8(x);
    }
}

// Quantizes N vectors of a thread, 32 apart, so that a warp has 32·N in one piece, and stores the codes and scales of those that
// are in bounds from `at` on. `amax` has their largest magnitudes, and get(i, x) gives their elements. adjust(factor, n) may change
// the first n factors, and tells the whole warp whether they are ordinary. All lanes of a warp take part; lanes that share a block
// are all in bounds, or none is.
template <class F, int N, class Get, class InBounds, class Adjust = Unchanged>
__device__ __forceinline__ void quantize_vec8(u32 (&amax)[N], Get get, typename F::Level level, typename F::Codes *data,
                                              typename F::Stored *scales, int at, InBounds in_bounds, Adjust adjust = Adjust()) {
    typedef Shared<F, N> Share;
    float factor[N];
    typename F::Stored scale[Share::own];
    Share::work_out(amax, level, scale, factor);
    const bool fast = adjust(factor, Share::own) || F::Element::bits == 8;
    Share::hand_back(factor);
    data += at, scales += at / F::lanes + Share::first() * (32 / F::lanes);
    if (fast)
        store_codes<F, true>(get, factor, data, at, in_bounds);
    else
        store_codes<F, false>(get, factor, data, at, in_bounds);
#pragma unroll
    for (int i = 0; i < Share::own; i++) {
        if (Share::stores() && in_bounds(at + (Share::first() + i) * 32))
            scales[i * (32 / F::lanes)] = scale[i];
    }
}

// Calls MACRO(name, element, scale rule, width) for every block format. A line here and a row of `BLOCKS` in
// crates/operations/ops/blocks.rs make the kernels of a format.
#define FOR_ALL_FORMATS(MACRO)               \
    MACRO(fp8_b128_f32, E4m3, Deepgemm, 128) \
    MACRO(fp8_b64_f32, E4m3, Deepgemm, 64)   \
    MACRO(fp8_b128, E4m3, ActQuant, 128)     \
    MACRO(fp8_b64, E4m3, ActQuant, 64)       \
    MACRO(fp8_b128_rceil, E4m3, Rceil, 128)  \
    MACRO(fp8_b64_rceil, E4m3, Rceil, 64)    \
    MACRO(mxfp8, E4m3, Rceil, 32)            \
    MACRO(mxfp4, E2m1, Fp4ActQuant, 32)      \
    MACRO(nvfp4, E2m1, Te, 16)

#define FORMAT(NAME, ELEMENT, RULE, WIDTH) typedef Format<ELEMENT, RULE, WIDTH> NAME;
FOR_ALL_FORMATS(FORMAT)
#undef FORMAT
