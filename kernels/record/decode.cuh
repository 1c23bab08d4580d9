// Codes of KV-cache records as pairs of bfloat16.
#pragma once

#include "record/layout.cuh"

// Four E2M1 codes as pairs of bf16: a byte permutation looks up the bytes of the eight magnitudes by code.
__device__ __forceinline__ uint2 e2m1_pairs(u32 magnitudes, u32 signs) {
    const u32 low = __byte_perm(0xc0800000, 0xc0804000, magnitudes);
    const u32 high = __byte_perm(0x3f3f3f00, 0x40404040, magnitudes) | __byte_perm(0x8000, 0, signs);
    return make_uint2(__byte_perm(low, high, 0x5140), __byte_perm(low, high, 0x7362));
}
