// Products of groups of four warps with the right operand in shared memory, and how both get there.
#pragma once

#include "tiles.cuh"

// ---- Barriers in shared memory. What waits for copies counts their bytes too.

// By one thread, before `barriers_ready` and a barrier after which others use it.
__device__ __forceinline__ void barrier_init(u64 *barrier, u32 count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}

__device__ __forceinline__ void barriers_ready() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives, and has the barrier wait for so many bytes.
__device__ __forceinline__ void barrier_expect(u64 *barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_arrive(u64 *barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Of some warps of the thread block; 0 is that of __syncthreads.
__device__ __forceinline__ void warps_barrier(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Arrives there, and goes on.
__device__ __forceinline__ void warps_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// The same; whether one of all threads says so.
__device__ __forceinline__ bool warps_any(int id, int threads, bool own) {
    u32 any;
    asm volatile("{ .reg .pred own, any;\nsetp.ne.u32 own, %1, 0;\nbar.red.or.pred any, %2, %3, own;\nselp.u32 %0, 1, 0, any; }"
                 : "=r"(any)
                 : "r"((u32)own), "r"(id), "r"(threads)
                 : "memory");
    return any;
}

// ---- Two thread blocks next to each other that are a cluster: each has a mate.

// By all threads of both, which need not come together.
__device__ __forceinline__ void mates_barrier() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// Where the mate has what is there in shared memory.
__device__ __forceinline__ u32 at_mate(const void *own) {
    u32 to;
    asm volatile("{ .reg .u32 rank;\nmov.u32 rank, %%cluster_ctarank;\nxor.b32 rank, rank, 1;\n"
                 "mapa.shared::cluster.u32 %0, %1, rank; }"
                 : "=r"(to)
                 : "r"(shared_address(own)));
    return to;
}

__device__ __forceinline__ void mate_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Four numbers, whose bytes the barrier there counts.
__device__ __forceinline__ void send(u32 to, const float (&x)[4], u32 barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to), "f"(x[0]),
                 "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(barrier)
                 : "memory");
}

// As `arrival_wait`, for what a mate does.
__device__ __forceinline__ void mate_wait(u64 *barrier, u32 parity) {
    asm volatile("{ .reg .pred come;\n"
                 "again_%=: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 come, [%0], %1;\n"
                 "@!come bra again_%=; }" ::"r"(shared_address(barrier)),
                 "r"(parity)
                 : "memory");
}

// A number in memory that other thread blocks change, and what they wrote before.
__device__ __forceinline__ u32 load_acquired(const u32 *from) {
    u32 x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}

// Four numbers that other thread blocks write, each of them what it was or what it will be.
__device__ __forceinline__ float4 load_relaxed(const float4 *from) {
    float4 x;
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(from) : "memory");
    return x;
}

// ---- Large copies, of multiples of 16 bytes.

// By one thread; the barrier has been told, or will be, how many bytes come.
__device__ __forceinline__ void copy_in(void *to, const void *from, u32 bytes, u64 *barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

// Of what the L2 cache has no room for: two fifths are to stay there, the rest is to make room for everything else.
__device__ __forceinline__ void copy_in_kept(void *to, const void *from, u32 bytes, u64 *barrier) {
    asm volatile("{ .reg .b64 kept;\ncreatepolicy.fractional.L2::evict_last.L2::evict_first.b64 kept, 0.4;\n"
                 "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], kept; }" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

// From shared memory that was published (`group_publish`) before a barrier; by one thread, which waits for the end.
__device__ __forceinline__ void copy_out(void *to, const void *from, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void copies_out_done() {
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
}

// Copies that follow see what ordinary stores of launches before have written.
__device__ __forceinline__ void fence_copies() {
    asm volatile("fence.proxy.async;" ::: "memory");
}

// Four matrices of 8 × 8 to shared memory; lane l names row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrices(u32 at, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

// ---- Products.

// Registers of each thread, from here on, of the group of warps.
template <int N> __device__ __forceinline__ void registers_less() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> __device__ __forceinline__ void registers_more() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

// Operands: rows of 128 bytes in tiles as `group_tile` has them. 32 bytes of each row are multiplied at a time.
// `bytes` of a number.
struct Bf16 {
    static constexpr int bytes = 2;
};
// Codes of E4M3.
struct Fp8 {
    static constexpr int bytes = 1;
};
// The same, of which the left operand has a scale for each row of a stage.
struct Codes {
    static constexpr int bytes = 1;
};

#define SUMS_64 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SUMS_128 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SUM(c) "+f"((c)[0]), "+f"((c)[1]), "+f"((c)[2]), "+f"((c)[3])
#define SUMS_4(c, n) SUM(c[n]), SUM(c[n + 1]), SUM(c[n + 2]), SUM(c[n + 3])
#define SUMS_16(c) SUMS_4(c, 0), SUMS_4(c, 4), SUMS_4(c, 8), SUMS_4(c, 12)
#define NEW(c) "=f"((c)[0]), "=f"((c)[1]), "=f"((c)[2]), "=f"((c)[3])
#define NEW_4(c, n) NEW(c[n]), NEW(c[n + 1]), NEW(c[n + 2]), NEW(c[n + 3])
#define NEW_16(c) NEW_4(c, 0), NEW_4(c, 4), NEW_4(c, 8), NEW_4(c, 12)
#define SUMS_OF_TWO SUMS_16(c[0]), SUMS_16(c[1])

// c [64, 128], or twice that, += a [64, 32 bytes] · b [128, or twice that, 32 bytes]ᵀ. A sum of a thread is of row lane / 4, and
// eight further, and of columns 8 n + 2 (lane % 4) and the next.
__device__ __forceinline__ void group_multiply(Bf16, float (&c)[16][4], u64 a, u64 b) {
    asm volatile("{ .reg .pred add;\nsetp.eq.b32 add, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" SUMS_64 "}, %64, %65, add, 1, 1, 0, 0; }"
                 : SUMS_16(c)
                 : "l"(a), "l"(b));
}

__device__ __forceinline__ void group_multiply(Bf16, float (&c)[2][16][4], u64 a, u64 b) {
    asm volatile("{ .reg .pred add;\nsetp.eq.b32 add, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" SUMS_128 "}, %128, %129, add, 1, 1, 0, 0; }"
                 : SUMS_OF_TWO
                 : "l"(a), "l"(b));
}

__device__ __forceinline__ void group_multiply(Fp8, float (&c)[2][16][4], u64 a, u64 b) {
    asm volatile("{ .reg .pred add;\nsetp.eq.b32 add, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 {" SUMS_128 "}, %128, %129, add, 1, 1; }"
                 : SUMS_OF_TWO
                 : "l"(a), "l"(b));
}

__device__ __forceinline__ void group_multiply(Codes, float (&c)[16][4], u64 a, u64 b) {
    asm volatile("{ .reg .pred add;\nsetp.eq.b32 add, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" SUMS_64 "}, %64, %65, add, 1, 1; }"
                 : SUMS_16(c)
                 : "l"(a), "l"(b));
}

// c = a · bᵀ.
__device__ __forceinline__ void group_multiply_first(Codes, float (&c)[16][4], u64 a, u64 b) {
    asm volatile("{ .reg .pred add;\nsetp.ne.b32 add, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" SUMS_64 "}, %64, %65, add, 1, 1; }"
                 : NEW_16(c)
                 : "l"(a), "l"(b));
}
