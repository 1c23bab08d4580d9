// Loads of what goes back to its place: L2 keeps a line until it is stored.
#pragma once

#include "lib/ptx.cuh"

__device__ __forceinline__ uint4 ld_global_evict_last(const uint4 *from) {
    uint4 x;
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from), "l"(evict_last_policy())
                 : "memory");
    return x;
}
