// Types and conversions that all operations share. NVRTC compiles without the C++ library.
#pragma once

// Declares an entry point: `KERNEL(name, attributes)(parameters) { … }`. With -DULPLAB_ENTRY, the compiler makes code for the entry
// points with -DULPLAB_ENTRY_<name>=~,1 only: the others are templates that nothing instantiates.
#ifdef ULPLAB_ENTRY
#define KERNEL(NAME, ...) KERNEL_IF(KERNEL_SECOND(ULPLAB_ENTRY_##NAME, 0, ~), NAME, __VA_ARGS__)
#define KERNEL_SECOND(...) KERNEL_SECOND_OF(__VA_ARGS__)
#define KERNEL_SECOND_OF(FIRST, SECOND, ...) SECOND
#define KERNEL_IF(...) KERNEL_IF_OF(__VA_ARGS__)
#define KERNEL_IF_OF(SELECTED, ...) KERNEL_##SELECTED(__VA_ARGS__)
#define KERNEL_0(NAME, ...) template <class> static __device__ void NAME
#define KERNEL_1(NAME, ...) extern "C" __global__ void __VA_ARGS__ NAME
#else
#define KERNEL(NAME, ...) extern "C" __global__ void __VA_ARGS__ NAME
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// The bits of a bfloat16.
struct bf16 {
    u16 bits;
};

__device__ __forceinline__ float to_f32(float x) {
    return x;
}

__device__ __forceinline__ float to_f32(bf16 x) {
    return __uint_as_float((u32)x.bits << 16);
}

// Rounds two numbers to bfloat16, nearest even, the first into the low half; NaN becomes 0x7fff.
__device__ __forceinline__ u32 to_bf16x2(float low, float high) {
    u32 out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}

// Widens a pair of bfloat16, the low half first.
__device__ __forceinline__ float2 from_bf16x2(u32 pair) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000));
}

__device__ __forceinline__ void from_f32(float &out, float x) {
    out = x;
}

__device__ __forceinline__ void from_f32(bf16 &out, float x) {
    out.bits = (u16)to_bf16x2(x, 0.0f);
}

// Four numbers as bfloat16, 8 bytes.
__device__ __forceinline__ uint2 to_bf16x4(float4 x) {
    return make_uint2(to_bf16x2(x.x, x.y), to_bf16x2(x.z, x.w));
}
