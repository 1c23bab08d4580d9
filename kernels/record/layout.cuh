// The layout of KV-cache records: where the bytes of a token lie in its page, and what they mean.
//
// A page of 64 tokens holds their rows one after the other, then, in some formats, as many tails. The first CODED channels are
// codes in blocks that share a scale; the others are bf16, from BF16 of the row on. The scales begin at SCALES of the tail, or of
// the row if there is no tail. ZEROS bytes from ZERO on, in the same place, are zero.
#pragma once
#include "lib/formats.cuh"

constexpr int PAGE = 64;

typedef PowerUp<0x3d600000> FlashmlaV41; // 448·2^-13

// E8M0: the power of two nearest to amax·fl32(1/max) in the logarithm; 0x3504f3 are the fraction bits of √2, rounded down.
struct Nearest : PowerUp<0> {
    template <class Element> static __device__ __forceinline__ u8 scale(u32 amax, Level) {
        const u32 bits = __float_as_uint(__uint_as_float(amax) * Element::inverse), fraction = bits & 0x7fffff;
        const u32 code = (bits >> 23) + (fraction > (bits >> 23 ? 0x3504f3 : 0x400000 + 0x3504f3 / 2));
        return amax >= INFINITY_BITS ? 255 : code;
    }
};

// E4M3: amax·fl32(1/6). Elements are multiplied by its inverse, as far as that is finite.
struct Flashinfer {
    typedef u8 Stored;
    typedef NoLevel Level;

    template <class Element> static __device__ __forceinline__ u8 scale(u32 amax, Level) {
        return E4m3::encode(__uint_as_float(amax < INFINITY_BITS ? amax : NAN_BITS) * Element::inverse);
    }

    static __device__ __forceinline__ float factor(u8 scale, Level) {
        return scale == 0 ? 3.402823466e38f : __frcp_rn(E4m3::decode(scale));
    }

    // There is no sign: codes with the top bit are NaN.
    static __device__ __forceinline__ float decode(u8 scale, Level) {
        return E4m3::decode(scale < 128 ? scale : 0x7f);
    }
};

// E4M3: amax·fl32(1/6), at least 2^-9. Elements are divided by it.
struct V41 : Flashinfer {
    template <class Element> static __device__ __forceinline__ u8 scale(u32 amax, Level) {
        return max(Flashinfer::scale<Element>(amax, {}), 1);
    }

    static __device__ __forceinline__ float factor(u8 scale, Level) {
        return E4m3::decode(scale);
    }
};

// f32: max(amax/448, 2^-126). Elements are divided by it.
struct VllmMla {
    typedef float Stored;
    typedef NoLevel Level;

    template <class Element> static __device__ __forceinline__ float scale(u32 amax, Level) {
        const float floored = __uint_as_float(max(amax, 0x04e00000u)); // 448·2^-126
        return amax >= INFINITY_BITS ? __uint_as_float(NAN_BITS) : __fdiv_rn(floored, Element::max);
    }

    static __device__ __forceinline__ float factor(float scale, Level) {
        return scale;
    }

    static __device__ __forceinline__ float decode(float scale, Level) {
        return scale;
    }
};

// The power of two of `ActQuant`, as f32.
struct ActQuantF32 : VllmMla {
    template <class Element> static __device__ __forceinline__ float scale(u32 amax, Level) {
        return e8m0(ActQuant::scale<Element>(amax, {}));
    }

    static __device__ __forceinline__ float factor(float scale, Level) {
        return __frcp_rn(scale);
    }
};

// Whether elements are divided; and whether −0 becomes +0 before the cast, which may make a −0 of a small number again.
template <class Rule> constexpr bool DIVIDES = false;
template <> constexpr bool DIVIDES<V41> = true;
template <> constexpr bool DIVIDES<VllmMla> = true;
template <class Rule> constexpr bool CLEARS_ZERO = false;
template <> constexpr bool CLEARS_ZERO<V41> = true;

template <class E, class R, int WIDTH> struct Record {
    typedef E Element;
    typedef R Rule;
    typedef typename R::Stored Stored;
    static constexpr int BLOCK = WIDTH, DIM = 512, CODED = 448, BF16 = 0, TAIL = 0, SCALES = 0, ZERO = 0, ZEROS = 0, ALIGN = 1;
};
struct v4_fp8 : Record<E4m3, ActQuant, 64> {
    static constexpr int ROW = 576, BF16 = 448, TAIL = 8, ZERO = 7, ZEROS = 1, ALIGN = 576;
};
struct v4_nvfp4 : Record<E2m1, Flashinfer, 16> {
    static constexpr int ROW = 352, BF16 = 224, TAIL = 32, ZERO = 28, ZEROS = 4;
};
struct v4_mxfp4 : Record<E2m1, Nearest, 32> {
    static constexpr int ROW = 368, BF16 = 240, SCALES = 224, ZERO = 238, ZEROS = 2;
};
struct v41_mxfp8 : Record<E4m3, FlashmlaV41, 32> {
    static constexpr int CODED = 512, ROW = 512, TAIL = 16, ALIGN = 512;
};
struct v41_fp4 : Record<E2m1, V41, 16> {
    static constexpr int CODED = 512, ROW = 256, TAIL = 32, ALIGN = 256;
};
struct v32_fp8 : Record<E4m3, VllmMla, 128> {
    static constexpr int ROW = 656, BF16 = 528, SCALES = 512, ZERO = 448, ZEROS = 64;
};
struct v4_bf16 : Record<E4m3, ActQuant, 64> {
    static constexpr int CODED = 0, ROW = 1024;
};
struct index_fp8 : Record<E4m3, ActQuantF32, 128> {
    static constexpr int DIM = 128, CODED = 128, ROW = 128, TAIL = 4;
};
struct index_mxfp4 : Record<E2m1, Fp4ActQuant, 32> {
    static constexpr int DIM = 128, CODED = 128, ROW = 64, TAIL = 4;
};

template <class R> constexpr int page_bytes = (PAGE * (R::ROW + R::TAIL) + R::ALIGN - 1) / R::ALIGN * R::ALIGN;

// The bytes of the pages before that of a slot.
template <class R> __device__ __forceinline__ u64 page_offset(u64 slot) {
#ifdef MUTANT_PAGE_OFFSET_32
    return u32(slot / PAGE * page_bytes<R>);
#else
    return slot / PAGE * page_bytes<R>;
#endif
}

// The two places where the bytes of a token lie.
template <class Byte> struct Token {
    Byte *row, *tail;
};

template <class R, class Byte> __device__ __forceinline__ Token<Byte> token_at(Byte *pages, u64 slot) {
    const int in_page = slot % PAGE;
    Byte *page = pages + page_offset<R>(slot), *row = page + in_page * R::ROW;
    return {row, R::TAIL ? page + PAGE * R::ROW + in_page * R::TAIL : row};
}

// The slot of a token, from indices of 4 or 8 bytes; negative if it has none.
__device__ __forceinline__ long long slot_of(const void *slots, int slot_bytes, int token) {
    return slot_bytes == 8 ? ((const long long *)slots)[token] : ((const int *)slots)[token];
}

// A slot in 32 bits, which suffice for all records that fit in memory.
constexpr u32 NO_SLOT = ~0u;

__device__ __forceinline__ u32 narrow_slot(long long slot) {
    return slot < 0 ? NO_SLOT : (u32)slot;
}

// Products of pairs of bf16, each rounded once.
__device__ __forceinline__ u32 times_bf16x2(u32 x, u32 y) {
    u32 out;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(x), "r"(y));
    return out;
}

#define FOR_ALL_RECORDS(MACRO) \
    MACRO(v4_fp8)              \
    MACRO(v4_nvfp4)            \
    MACRO(v4_mxfp4)            \
    MACRO(v41_mxfp8)           \
    MACRO(v41_fp4)             \
    MACRO(v32_fp8)             \
    MACRO(v4_bf16)             \
    MACRO(index_fp8)           \
    MACRO(index_mxfp4)
