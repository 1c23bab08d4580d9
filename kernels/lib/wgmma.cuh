// Matrix products of a warpgroup, four warps (wgmma, sm_90a). B, and A where it is not in registers, lie in shared memory in
// tiles with the 128-byte swizzle (`swizzle_128b`). Each warp has 16 of 64 rows of the accumulators. Products run
// asynchronously, in order.
#pragma once

#include "lib/mma.cuh"

// Precedes the first product after registers of operands or accumulators have changed.
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit_group() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Returns once all but the last N groups are done.
template <int N> __device__ __forceinline__ void wgmma_wait_group() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// The descriptor of a tile at a multiple of 1024 bytes, with eight rows every 1024. To begin n bytes later, add n / 16.
__device__ __forceinline__ u64 wgmma_descriptor(u32 at) {
    return 1ull << 62 | 64ull << 32 | 1ull << 16 | (at & 0x3ffff) >> 4;
}

// ---- A in registers

// c [64, 64] += a [64, 16] · b [16, 64] of bfloat16, or = if not ACCUMULATE. Rows of the tile are columns of b, or rows if TRANS_B.
template <bool TRANS_B, bool ACCUMULATE = true>
__device__ __forceinline__ void wgmma_rs(float (&c)[8][4], const u32 (&a)[4], u64 tile) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, %38, 1, 1, %37;"
                 : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]),
                   "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]),
                   "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]),
                   "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]),
                   "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(tile), "n"(TRANS_B ? 1 : 0), "n"(ACCUMULATE ? 1 : 0));
}

// ---- A in shared memory: 32 bytes of each row of A and of B at a time

// The element types of both operands, and the bytes of an element.
struct Bf16 {
    static constexpr int bytes = 2;
};
// E4M3.
struct Fp8 {
    static constexpr int bytes = 1;
};
// E4M3, where A has a scale for each row of a stage, so that each stage has accumulators of its own.
struct Fp8Scaled {
    static constexpr int bytes = 1;
};

#define ACCUMULATORS_64                                                                \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define ACCUMULATORS_128                                                                           \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "             \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define ACCUMULATOR(c) "+f"((c)[0]), "+f"((c)[1]), "+f"((c)[2]), "+f"((c)[3])
#define ACCUMULATORS_4(c, n) ACCUMULATOR(c[n]), ACCUMULATOR(c[n + 1]), ACCUMULATOR(c[n + 2]), ACCUMULATOR(c[n + 3])
#define ACCUMULATORS_16(c) ACCUMULATORS_4(c, 0), ACCUMULATORS_4(c, 4), ACCUMULATORS_4(c, 8), ACCUMULATORS_4(c, 12)
#define RESULT(c) "=f"((c)[0]), "=f"((c)[1]), "=f"((c)[2]), "=f"((c)[3])
#define RESULTS_4(c, n) RESULT(c[n]), RESULT(c[n + 1]), RESULT(c[n + 2]), RESULT(c[n + 3])
#define RESULTS_16(c) RESULTS_4(c, 0), RESULTS_4(c, 4), RESULTS_4(c, 8), RESULTS_4(c, 12)
#define ACCUMULATORS_2x16 ACCUMULATORS_16(c[0]), ACCUMULATORS_16(c[1])

// c [64, 128], or [64, 256], += a [64, 32 bytes] · b [128 or 256, 32 bytes]ᵀ. An accumulator of a thread belongs to row lane / 4, or to
// the eighth row below, and to columns 8 n + 2 (lane % 4) and the next.
__device__ __forceinline__ void wgmma_ss(Bf16, float (&c)[16][4], u64 a, u64 b) {
    asm volatile("{ .reg .pred add;\nsetp.eq.b32 add, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" ACCUMULATORS_64 "}, %64, %65, add, 1, 1, 0, 0; }"
                 : ACCUMULATORS_16(c)
                 : "l"(a), "l"(b));
}

__device__ __forceinline__ void wgmma_ss(Bf16, float (&c)[2][16][4], u64 a, u64 b) {
    asm volatile("{ .reg .pred add;\nsetp.eq.b32 add, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" ACCUMULATORS_128 "}, %128, %129, add, 1, 1, 0, 0; }"
                 : ACCUMULATORS_2x16
                 : "l"(a), "l"(b));
}

__device__ __forceinline__ void wgmma_ss(Fp8, float (&c)[2][16][4], u64 a, u64 b) {
    asm volatile("{ .reg .pred add;\nsetp.eq.b32 add, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 {" ACCUMULATORS_128 "}, %128, %129, add, 1, 1; }"
                 : ACCUMULATORS_2x16
                 : "l"(a), "l"(b));
}

__device__ __forceinline__ void wgmma_ss(Fp8Scaled, float (&c)[16][4], u64 a, u64 b) {
    asm volatile("{ .reg .pred add;\nsetp.eq.b32 add, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" ACCUMULATORS_64 "}, %64, %65, add, 1, 1; }"
                 : ACCUMULATORS_16(c)
                 : "l"(a), "l"(b));
}

// c = a · bᵀ.
__device__ __forceinline__ void wgmma_ss_overwrite(Fp8Scaled, float (&c)[16][4], u64 a, u64 b) {
    asm volatile("{ .reg .pred add;\nsetp.ne.b32 add, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" ACCUMULATORS_64 "}, %64, %65, add, 1, 1; }"
                 : RESULTS_16(c)
                 : "l"(a), "l"(b));
}
