// Single PTX instructions that are neither barriers, bulk copies nor matrix products: addresses, loads and stores with cache
// hints or memory order, control of dependent launches, named barriers, and the approximate math of the machine.
#pragma once

#include "lib/common.cuh"

__device__ __forceinline__ u32 smem_address(const void *at) {
    return (u32)__cvta_generic_to_shared(at);
}

// ---- loads and stores

// L2 cache policies: lines stay as long, or leave as soon, as there is a choice.
__device__ __forceinline__ u64 evict_last_policy() {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ __forceinline__ u64 evict_first_policy() {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// Loads 16 bytes that nobody writes meanwhile, and that are read once: they do not stay in L1, and leave L2 by the policy.
__device__ __forceinline__ uint4 ld_global_nc(const uint4 *from, u64 policy = evict_first_policy()) {
    uint4 out;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
                 : "l"(from), "l"(policy));
    return out;
}

struct NoHint {};

// Loads without a hint are faster where much is written too.
__device__ __forceinline__ uint4 ld_global_nc(const uint4 *from, NoHint) {
    uint4 out;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w) : "l"(from));
    return out;
}

// Stores what is not read again soon.
template <class T> __device__ __forceinline__ void st_global_cs(T *to, T value) {
    __stcs(to, value);
}

// Loads a number that other CTAs change, and makes visible what they wrote before they did.
__device__ __forceinline__ u32 ld_acquire(const u32 *from) {
    u32 x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}

// Loads numbers that other CTAs write; each number is either the old or the new one.
__device__ __forceinline__ u32 ld_relaxed(const u32 *from) {
    u32 x;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}

__device__ __forceinline__ uint4 ld_relaxed(const uint4 *from) {
    uint4 x;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from)
                 : "memory");
    return x;
}

__device__ __forceinline__ float4 ld_relaxed(const float4 *from) {
    float4 x;
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "l"(from)
                 : "memory");
    return x;
}

__device__ __forceinline__ void st_relaxed(u32 *to, u32 x) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}

__device__ __forceinline__ void st_relaxed(u32 *to, uint4 x) {
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}

// Adds 1; whoever acquires the sum sees what this thread wrote before.
__device__ __forceinline__ void red_release_increment(u32 *count) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(count) : "memory");
}

// Loads 16 bytes of shared memory at each use, where there are not enough registers to keep them.
__device__ __forceinline__ uint4 ld_shared_volatile(const uint4 *from) {
    uint4 out;
    asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
                 : "r"(smem_address(from)));
    return out;
}

// Brings a line of 128 bytes to L2.
__device__ __forceinline__ void prefetch_l2(const void *from) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

// ---- threads

// Exactly one lane of a full warp gets true, and the compiler can tell.
__device__ __forceinline__ bool elect_one_sync() {
    u32 one;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(one));
    return one;
}

// Named barriers, of some warps of the CTA; number 0 is the one of __syncthreads.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Arrives without waiting.
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Waits, and returns whether the predicate holds of any of the threads.
__device__ __forceinline__ bool named_barrier_any(int id, int threads, bool predicate) {
    u32 any;
    asm volatile("{ .reg .pred own, any;\nsetp.ne.u32 own, %1, 0;\nbar.red.or.pred any, %2, %3, own;\nselp.u32 %0, 1, 0, any; }"
                 : "=r"(any)
                 : "r"((u32)predicate), "r"(id), "r"(threads)
                 : "memory");
    return any;
}

// Each thread of the warpgroup has N registers from here on.
template <int N> __device__ __forceinline__ void warpgroup_reg_dealloc() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> __device__ __forceinline__ void warpgroup_reg_alloc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

// ---- launches

// Lets the next launch start, if it is a programmatic one; it sees what this launch wrote after `wait_on_dependent_grids`.
__device__ __forceinline__ void launch_dependent_grids() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ __forceinline__ void wait_on_dependent_grids() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Returns when all CTAs of a cooperative launch have called it; what they wrote before can be read. `arrived` is 0 at first and
// serves once.
__device__ __forceinline__ void grid_sync(u32 *arrived) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(arrived, 1);
        while (ld_acquire(arrived) < gridDim.x) {
        }
    }
    __syncthreads();
}

// ---- proxies: bulk copies and wgmma read memory apart from ordinary loads and stores

// Bulk copies that follow see what ordinary stores, of earlier launches too, have written.
__device__ __forceinline__ void fence_proxy_async() {
    asm volatile("fence.proxy.async;" ::: "memory");
}

// Bulk copies and wgmma can read, after a barrier, what this thread wrote to shared memory.
__device__ __forceinline__ void fence_proxy_async_smem() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- approximate math: within an ulp or two, as the machine has it

__device__ __forceinline__ float ex2_approx_ftz(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float rcp_approx(float x) {
    float y;
    asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float rcp_approx_ftz(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Minima and maxima that keep NaN, which those of C drop.
__device__ __forceinline__ float min_nan(float x, float y) {
    float out;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(x), "f"(y));
    return out;
}

__device__ __forceinline__ float max_nan(float x, float y) {
    float out;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(x), "f"(y));
    return out;
}
