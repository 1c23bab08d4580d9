/*
[[variant]]
name = "simple"
doc = "a warpgroup for 64 rows of w and 64 rows of x, 64 columns after the other, decoded in f32"
arch = "sm_90a"

[[variant.launch]]
entry = "fp4_gemm_simple_{format}_{out}"
grid = ["ceil(B, 64)", "ceil(N, 64)"]
block = [128]
args = ["x", "w", "w_scale", "w_tensor", "y", "B", "N", "K"]

[[variant]]
name = "registers"
doc = "128 rows of w, decoded into registers, and 8 to 64 rows of x; a cluster shares the columns, 1024 each, and adds in shared memory; weights repacked at load"
arch = "sm_90a"
needs = ["K <= 8192", "B <= 64 * 65535"]
scratch = [
    { name = "packed", bytes = "ceil(N, 128) * ceil(K, 128) * 9216" },
    { name = "general", bytes = "ceil(N, 128) * 4" },
]
prepare = [{ entry = "fp4_gemm_pack_{format}", grid = ["ceil(N, 128)"], block = [256], args = ["w", "w_scale", "packed", "general", "N", "K"] }]

[[variant.launch]]
entry = "fp4_gemm_registers_{format}_{out}"
grid = ["ceil(K, 1024)", "ceil(N, 128)", "ceil(B, 8 + 8 * (B > 8) + 16 * (B > 16) + 32 * (B > 32))"]
block = [256]
cluster = ["ceil(K, 1024)"]
shared = "(8 - 2 * (B > 16) - 2 * (B > 32)) * (9216 + 256 * (8 + 8 * (B > 8) + 16 * (B > 16) + 32 * (B > 32)))"
args = ["x", "packed", "general", "w_tensor", "y", "B", "N", "K"]

[[mutant]]
name = "neighbours_scale"
doc = "weights have the scale of the next block of columns"

[[mutant]]
name = "nibbles_swapped"
doc = "the high nibble is taken for the first column"

[[mutant]]
name = "no_bias"
doc = "E4M3 scales are widened without the difference of biases"

[[mutant]]
name = "subnormal_formula"
doc = "subnormal E4M3 scales are decoded as if they had a leading one"

[[mutant]]
name = "tensor_scale_late"
doc = "sums are rounded to bfloat16 before the tensor's scale"

[[mutant]]
name = "tail_skipped"
doc = "columns after the last whole 64 are left out"

[[mutant]]
name = "last_part_lost"
doc = "the last of several parts of 1024 columns is not added"

[[mutant]]
name = "slot_overwritten"
doc = "later copies go one slot too far, over numbers that are still to be read"
variants = ["registers"]

[[mutant]]
name = "always_plain"
doc = "scales are decoded as if none were NaN, negative or large"
variants = ["registers"]
*/

// reference: crates/operations/ops/fp4_gemm.rs
//
// x [B, K], w [N, K / 2] with the first column in the low nibble, w_scale [N, ceil(K, 16 or 32)], y [B, N]. Weights are rows of the
// instruction and tokens its columns.

#if __CUDA_ARCH__ == 900
#include "lib/cluster.cuh"
#include "lib/tma.cuh"
#include "wgmma/widths.cuh"

// Columns with a scale, and the scale in f32.
struct Mxfp4 {
    static constexpr int block = 32;
    static __device__ __forceinline__ float scale(u32 code) {
        return __uint_as_float(code == 0 ? 0x400000 : code == 255 ? 0x7fc00000 : code << 23);
    }
};
struct Nvfp4 {
    static constexpr int block = 16;
    static __device__ __forceinline__ float scale(u32 code) {
        const u32 sign = (code & 0x80) << 24, field = code & 0x7f;
#ifdef MUTANT_NO_BIAS
        return __uint_as_float(sign | field << 20);
#endif
        if (field == 0x7f)
            return __uint_as_float(0x7fc00000);
#ifndef MUTANT_SUBNORMAL_FORMULA
        // The multiplication is exact, and gives subnormal codes their leading one.
        return __uint_as_float(sign | field << 20) * __uint_as_float(0x7b800000);
#endif
        return __uint_as_float(sign | (field << 20) + (120u << 23));
    }
};

__device__ __forceinline__ int nibble_of(int col) {
#ifdef MUTANT_NIBBLES_SWAPPED
    return (col % 2 ^ 1) * 4;
#else
    return col % 2 * 4;
#endif
}

template <class F> __device__ __forceinline__ int block_of(int col, int blocks) {
#ifdef MUTANT_NEIGHBOURS_SCALE
    return min(col / F::block + 1, blocks - 1);
#else
    return col / F::block;
#endif
}

template <class Y> __device__ __forceinline__ void store(Y &y, float sum, float tensor) {
#ifdef MUTANT_TENSOR_SCALE_LATE
    from_f32(y, from_bf16x2(to_bf16x2(sum, 0.0f)).x * tensor);
#else
    from_f32(y, sum * tensor);
#endif
}

__device__ __forceinline__ int columns(int K) {
#ifdef MUTANT_TAIL_SKIPPED
    return K / 64 * 64;
#else
    return K;
#endif
}

#include "fp4_gemm/registers.cuh"
#include "fp4_gemm/simple.cuh"

#define ENTRIES(FORMAT, F, OUT, Y)                                                                                              \
    KERNEL(fp4_gemm_simple_##FORMAT##_##OUT, __launch_bounds__(128))(const bf16 *x, const u8 *w, const u8 *w_scale,             \
                                                                     const float *w_tensor, Y *y, int B, int N, int K) {        \
        simple<F>(x, w, w_scale, w_tensor, y, B, N, K);                                                                         \
    }                                                                                                                           \
    KERNEL(fp4_gemm_registers_##FORMAT##_##OUT, __launch_bounds__(256, 2))(const bf16 *x, const u8 *packed, const u32 *general, \
                                                                           const float *w_tensor, Y *y, int B, int N, int K) {  \
        if (B <= 8)                                                                                                             \
            registers<F, 8>(x, packed, general, w_tensor, y, B, N, K);                                                          \
        else if (B <= 16)                                                                                                       \
            registers<F, 16>(x, packed, general, w_tensor, y, B, N, K);                                                         \
        else if (B <= 32)                                                                                                       \
            registers<F, 32>(x, packed, general, w_tensor, y, B, N, K);                                                         \
        else                                                                                                                    \
            registers<F, 64>(x, packed, general, w_tensor, y, B, N, K);                                                         \
    }
#define FORMATS(FORMAT, F)                                                                                              \
    KERNEL(fp4_gemm_pack_##FORMAT)(const u8 *w, const u8 *w_scale, u8 *packed, u32 *general, int N, int K) {            \
        const int chunks = (K + 127) / 128 * 2, first = blockIdx.x * 128;                                               \
        pack_rows<F>(w, w_scale, packed + size_t(blockIdx.x) * chunks * UNIT_BYTES<F>, general + blockIdx.x, chunks, K, \
                     [&](int r) { return first + r < N ? first + r : -1; });                                            \
    }                                                                                                                   \
    ENTRIES(FORMAT, F, bf16, bf16)                                                                                      \
    ENTRIES(FORMAT, F, f32, float)
FORMATS(mxfp4, Mxfp4)
FORMATS(nvfp4, Nvfp4)
#endif
