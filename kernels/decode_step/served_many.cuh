// What `served_many` does in launches of their own, where `served` has one for several.
#pragma once

#include "decode_step/mixed.cuh"

// For up to 7,296 channels: more threads would leave too few registers for each.
#define MIX_THREADS (32 * (19 + mhc_pre_parts::ADD_WARPS))

KERNEL(decode_step_mix_parts_fp8_b128_f32,
       __launch_bounds__(MIX_THREADS))(const float *x, float *next, const float *y, const float *post, const float *comb,
                                       const float *sums, const float *base, const float *scale, const float *weight, float *kept,
                                       bf16 *half, u8 *codes, float *scales, float *next_post, float *next_comb, int parts,
                                       int dim, float eps) {
    mhc_pre_parts::parts_mix(mixed::Streams{x, next, y, post, comb, dim}, sums, base, scale, weight,
                             mixed::ToCodes<fp8_b128_f32>{{kept, half, dim}, codes, scales}, next_post, next_comb, parts, dim,
                             eps, eps);
}

KERNEL(decode_step_mix_half, __launch_bounds__(MIX_THREADS))(const float *x, float *next, const float *y, const float *post,
                                                             const float *comb, const float *sums, const float *base,
                                                             const float *scale, const float *weight, float *kept, bf16 *half,
                                                             float *next_post, float *next_comb, int parts, int dim, float eps) {
    mhc_pre_parts::parts_mix(mixed::Streams{x, next, y, post, comb, dim}, sums, base, scale, weight,
                             mixed::ToHalf{kept, half, dim}, next_post, next_comb, parts, dim, eps, eps);
}

KERNEL(decode_step_heads_fp8_b128_f32, __launch_bounds__(32 * CODING))(const bf16 *x, const float *cos, const float *sin,
                                                                       float *kept, u8 *codes, float *scales, int cols, int dim,
                                                                       int rotated) {
    heads<fp8_b128_f32>(x, cos, sin, kept, codes, scales, cols, dim, rotated);
}
