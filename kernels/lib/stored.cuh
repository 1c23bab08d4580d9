// Matrices of weights as they are stored: numbers, or codes with the scales of blocks of a row. An element is decoded to f32 where it
// is multiplied, so sums are those of the decoded weights, in the order that the kernel has for numbers.
#pragma once

#include "lib/formats.cuh"

__device__ __forceinline__ float4 load_vec4(const float *from) {
    return __ldg((const float4 *)from);
}

__device__ __forceinline__ float4 load_vec4(const bf16 *from) {
    const uint2 both = __ldg((const uint2 *)from);
    const float2 low = from_bf16x2(both.x), high = from_bf16x2(both.y);
    return make_float4(low.x, low.y, high.x, high.y);
}

// Rows of numbers, which have no scales.
template <class T> struct Numbers {
    typedef T Code;
    typedef float Scale;

    static __device__ __forceinline__ int codes_of(int cols) {
        return cols;
    }

    static __device__ __forceinline__ int scales_of(int) {
        return 0;
    }

    // Row `at` of rows of `cols` numbers.
    struct Row {
        const T *numbers;

        Row() = default;
        template <class At>
        __device__ __forceinline__ Row(const T *codes, const float *, const float *, At at, int cols)
            : numbers(codes + at * cols) {}

        __device__ __forceinline__ float operator[](int col) const {
            return to_f32(numbers[col]);
        }

        // Four numbers from a column that is a multiple of four.
        __device__ __forceinline__ float4 four(int col) const {
            return load_vec4(numbers + col);
        }
    };
};

// Rows of codes of a block format. A row of scales follows the other, and one f32 may stand above those of a matrix.
template <class F> struct Coded {
    typedef u8 Code;
    typedef typename F::Stored Scale;

    // How many codes and scales a row of so many columns has.
    static __device__ __forceinline__ int codes_of(int cols) {
        return cols * F::Element::bits / 8;
    }

    static __device__ __forceinline__ int scales_of(int cols) {
        return (cols + F::width - 1) / F::width;
    }

    struct Row {
        const u8 *codes;
        const Scale *scales;
        typename F::Level level;

        Row() = default;
        template <class At>
        __device__ __forceinline__ Row(const u8 *codes, const Scale *scales, const float *level, At at, int cols)
            : codes(codes + at * codes_of(cols)), scales(scales + row_of_scales(at) * scales_of(cols)), level(level) {}

        __device__ __forceinline__ float operator[](int col) const {
            const u32 code = F::Element::bits == 8 ? codes[col] : codes[col / 2] >> F::Element::shift(col % 2);
            return F::Element::decode(code) * scale(col);
        }

        // Four elements of eight bits from a column that is a multiple of four.
        __device__ __forceinline__ float4 four(int col) const {
            static_assert(F::Element::bits == 8, "a code is a byte");
            const u32 all = __ldg((const u32 *)(codes + col));
            const float by = scale(col);
            float4 x;
            F::Element::decode2(all, x.x, x.y), F::Element::decode2(all >> 16, x.z, x.w);
            return make_float4(x.x * by, x.y * by, x.z * by, x.w * by);
        }

        __device__ __forceinline__ float scale(int col) const {
            return F::Rule::decode(__ldg(scales + col / F::width), level);
        }

        template <class At> static __device__ __forceinline__ At row_of_scales(At at) {
#ifdef MUTANT_SCALES_OF_ROW_BEFORE
            return at > 0 ? at - 1 : 0;
#else
            return at;
#endif
        }
    };
};

// By the names that cases have.
typedef Numbers<float> stored_f32;
typedef Numbers<bf16> stored_bf16;
typedef Coded<fp8_b64_f32> stored_fp8_b64_f32;
typedef Coded<mxfp4> stored_mxfp4;
typedef Coded<nvfp4> stored_nvfp4;
