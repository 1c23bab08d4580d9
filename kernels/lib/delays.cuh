// Delays for tests. With -DULPLAB_DELAYS, each call of a primitive that synchronises, or that issues or awaits asynchronous work,
// sleeps before and after. A right kernel gives the same bytes. Each header lists the primitives that it delays under `---- delays`;
// the compiler includes this file first, so that intrinsics of any file sleep, too.
#pragma once

#ifdef ULPLAB_DELAYS

// The host sets the pattern before a run. A call sleeps if a hash of its warp, block, clock and site, each times its factor, has no bit
// of `mask`, and at most `most` ns. Without a pattern nothing sleeps.
struct DelayPattern {
    unsigned seed, of_warp, of_block, of_call, of_site, mask, most;
    // The site that sleeps; 0 for all.
    unsigned only;
    // A table of 65,536 sites that were reached; null where they are not asked for.
    unsigned *reached;
};
extern "C" {
__constant__ DelayPattern ulplab_delays;
}

// The number of a place in a source file: a hash of the file's name with its folder, and the line.
__device__ constexpr unsigned delay_site(const char *path, unsigned line) {
    const char *folder = path, *name = path;
    for (const char *at = path; *at != 0; at++)
        if (*at == '/')
            folder = name, name = at + 1;
    unsigned hash = 2166136261u;
    for (; *folder != 0; folder++)
        hash = (hash ^ (unsigned char)*folder) * 16777619u;
    return hash << 12 | (line & 0xfff);
}

template <unsigned SITE> __device__ __forceinline__ void delay() {
    const DelayPattern &pattern = ulplab_delays;
    unsigned clock;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(clock));
    const unsigned warp = threadIdx.x / 32 + 37 * (threadIdx.y + threadIdx.z);
    const unsigned block = blockIdx.x + 40503 * blockIdx.y + 60493 * blockIdx.z;
    unsigned hash =
        pattern.seed + warp * pattern.of_warp + block * pattern.of_block + clock / 64 * pattern.of_call + SITE * pattern.of_site;
    hash = (hash ^ hash >> 16) * 0x7feb352d;
    hash = (hash ^ hash >> 15) * 0x846ca68b;
    hash ^= hash >> 16;
    // Without a branch, so that warps stay converged.
    const bool sleeps = (hash & pattern.mask) == 0 && (pattern.only == 0 || pattern.only == SITE);
    const unsigned ns = sleeps ? (hash >> 16) * pattern.most >> 16 : 0;
    asm volatile("nanosleep.u32 %0;" ::"r"(ns) : "memory");
    if (pattern.reached != nullptr)
        pattern.reached[SITE * 0x9e3779b1 >> 16] = SITE;
}

template <unsigned SITE, class T> __device__ __forceinline__ T delayed(T result) {
    delay<SITE>();
    return result;
}

#define DELAY_SITE delay_site(__FILE__, __LINE__)
// A call without a result, and one with a result.
#define DELAYED(...) DELAYED_AT(DELAY_SITE, __VA_ARGS__)
#define DELAYED_AT(SITE, ...) (delay<SITE>(), __VA_ARGS__, delay<SITE>())
#define DELAYED_RESULT(...) delayed<DELAY_SITE>((delay<DELAY_SITE>(), __VA_ARGS__))

// Most threads read this first.
#define blockIdx (delay<DELAY_SITE>(), blockIdx)
// A function's name in parentheses is not one of these macros.
#define __syncthreads() DELAYED(__syncthreads())
#define __syncwarp(...) DELAYED(__syncwarp(__VA_ARGS__))
#define __threadfence() DELAYED(__threadfence())
#define atomicAdd(...) DELAYED_RESULT(atomicAdd(__VA_ARGS__))
#define atomicSub(...) DELAYED_RESULT(atomicSub(__VA_ARGS__))
#define atomicInc(...) DELAYED_RESULT(atomicInc(__VA_ARGS__))
#define atomicMax(...) DELAYED_RESULT(atomicMax(__VA_ARGS__))
#define atomicMin(...) DELAYED_RESULT(atomicMin(__VA_ARGS__))
#define atomicExch(...) DELAYED_RESULT(atomicExch(__VA_ARGS__))
#define atomicCAS(...) DELAYED_RESULT(atomicCAS(__VA_ARGS__))

#endif
