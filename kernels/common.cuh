// Types, memory accesses and reductions that all operations share. NVRTC compiles without the C++ library.
#pragma once

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

// Two numbers as bfloat16, nearest even, the first in the low half; NaN becomes 0x7fff.
__device__ __forceinline__ u32 to_bf16x2(float low, float high) {
    u32 out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}

__device__ __forceinline__ void from_f32(float &out, float x) {
    out = x;
}

__device__ __forceinline__ void from_f32(bf16 &out, float x) {
    out.bits = (u16)to_bf16x2(x, 0.0f);
}

// Policies of the second-level cache: to be kept as long, or to go as soon, as there is a choice.
__device__ __forceinline__ u64 keep() {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ __forceinline__ u64 let_go() {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// Loads of what is read once, to be gone from the second-level cache first; or with no such hint, which is faster where much
// is written too.
__device__ __forceinline__ uint4 load_once(const uint4 *from, u64 policy = let_go()) {
    uint4 out;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
                 : "l"(from), "l"(policy));
    return out;
}

struct NoHint {};

__device__ __forceinline__ uint4 load_once(const uint4 *from, NoHint) {
    uint4 out;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
                 : "l"(from));
    return out;
}

// Stores of what is not read again soon.
template <class T> __device__ __forceinline__ void store_once(T *to, T value) {
    __stcs(to, value);
}

// The larger of two magnitudes by their bits as f32: as integers NaN > infinity > finite, so that NaN is not lost.
__device__ __forceinline__ u32 larger(u32 a, u32 b) {
#ifdef MUTANT_NAN_DROPPED
    return __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
#else
    return max(a, b);
#endif
}

// Eight consecutive numbers, as they are in memory. `at` counts eights from `from`, which is 16-byte aligned.
template <class T> struct Eight;

template <> struct Eight<bf16> {
    u32 word[4];

    // With a policy, or without.
    template <class... Policy> __device__ __forceinline__ void load(const bf16 *from, size_t at, Policy... policy) {
        const uint4 in = load_once((const uint4 *)from + at, policy...);
        word[0] = in.x, word[1] = in.y, word[2] = in.z, word[3] = in.w;
    }

    __device__ __forceinline__ void load_shared(const bf16 *from, int at) {
        const uint4 in = ((const uint4 *)from)[at];
        word[0] = in.x, word[1] = in.y, word[2] = in.z, word[3] = in.w;
    }

    __device__ __forceinline__ void zero() {
        word[0] = word[1] = word[2] = word[3] = 0;
    }

    __device__ __forceinline__ void unpack(float (&out)[8]) const {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            out[2 * i] = __uint_as_float(word[i] << 16);
            out[2 * i + 1] = __uint_as_float(word[i] & 0xffff0000);
        }
    }

    // Bits of the largest magnitude as an f32.
    __device__ __forceinline__ u32 amax() const {
        const u32 sign = 0x80008000;
        const u32 both = __vmaxu2(__vmaxu2(word[0] & ~sign, word[1] & ~sign), __vmaxu2(word[2] & ~sign, word[3] & ~sign));
        return larger(both << 16, both & 0xffff0000);
    }

    static __device__ __forceinline__ void store(bf16 *to, size_t at, const float (&x)[8]) {
        uint4 out;
        out.x = to_bf16x2(x[0], x[1]), out.y = to_bf16x2(x[2], x[3]);
        out.z = to_bf16x2(x[4], x[5]), out.w = to_bf16x2(x[6], x[7]);
        ((uint4 *)to)[at] = out;
    }
};

// Bits of the largest of eight magnitudes.
__device__ __forceinline__ u32 amax_of(const float (&x)[8]) {
    float amax = fabsf(x[0]);
#pragma unroll
    for (int i = 1; i < 8; i++) {
#ifdef MUTANT_NAN_DROPPED
        amax = fmaxf(amax, fabsf(x[i]));
#else
        asm("max.NaN.f32 %0, %0, %1;" : "+f"(amax) : "f"(fabsf(x[i])));
#endif
    }
    return __float_as_uint(amax);
}

template <> struct Eight<float> {
    uint4 half[2];

    template <class... Policy> __device__ __forceinline__ void load(const float *from, size_t at, Policy... policy) {
        half[0] = load_once((const uint4 *)from + 2 * at, policy...);
        half[1] = load_once((const uint4 *)from + 2 * at + 1, policy...);
    }

    __device__ __forceinline__ void load_shared(const float *from, int at) {
        half[0] = ((const uint4 *)from)[2 * at], half[1] = ((const uint4 *)from)[2 * at + 1];
    }

    __device__ __forceinline__ void zero() {
        half[0] = half[1] = make_uint4(0, 0, 0, 0);
    }

    __device__ __forceinline__ void unpack(float (&out)[8]) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            out[4 * i] = __uint_as_float(half[i].x), out[4 * i + 1] = __uint_as_float(half[i].y);
            out[4 * i + 2] = __uint_as_float(half[i].z), out[4 * i + 3] = __uint_as_float(half[i].w);
        }
    }

    __device__ __forceinline__ u32 amax() const {
        float x[8];
        unpack(x);
        return amax_of(x);
    }

    static __device__ __forceinline__ void store(float *to, size_t at, const float (&x)[8]) {
        ((float4 *)to)[2 * at] = make_float4(x[0], x[1], x[2], x[3]);
        ((float4 *)to)[2 * at + 1] = make_float4(x[4], x[5], x[6], x[7]);
    }
};

// The larger of a magnitude and what the lane `step` away gives.
__device__ __forceinline__ u32 larger_of_lanes(u32 mine, u32 given, int step) {
    const u32 other = __shfl_xor_sync(0xffffffff, given, step);
#ifdef MUTANT_LANE_LOST
    if (step == 1)
        return mine;
#endif
    return larger(mine, other);
}

// The first eight of a thread that has `N` of its thread block's, 32 apart: a warp has 32·N in one piece.
template <int N> __device__ __forceinline__ int first_eight() {
    return threadIdx.x / 32 * 32 * N + threadIdx.x % 32;
}

// Which eights there are: those below a count, or all that are asked for.
struct Below {
    int count;

    __device__ __forceinline__ bool operator()(int at) const {
        return at < count;
    }
};

struct All {
    __device__ __forceinline__ bool operator()(int) const {
        return true;
    }
};

// The largest of magnitudes in each group of `LANES` neighbouring lanes, known to all of them. All lanes of the warp take
// part.
template <int LANES> __device__ __forceinline__ u32 lanes_max(u32 x) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2)
        x = larger_of_lanes(x, x, step);
    return x;
}

// The sum over each group of `LANES` neighbouring lanes, known to all of them, in the same order for each.
template <int LANES> __device__ __forceinline__ float lanes_sum(float x) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffff, x, step);
    return x;
}

__device__ __forceinline__ float warp_sum(float x) {
    return lanes_sum<32>(x);
}

__device__ __forceinline__ u32 warp_max(u32 x) {
    return __reduce_max_sync(0xffffffff, x);
}

// Over a block of at most `WARPS` warps, known to all: `over_warp` of each warp, and of those `over_warps`, in as many lanes.
// `room` has as many numbers; between two calls with the same room there must be a barrier.
template <int WARPS, class T, class OverWarp, class OverWarps>
__device__ __forceinline__ T over_block(T x, T *room, OverWarp over_warp, OverWarps over_warps) {
    const int lane = threadIdx.x % 32, warps = (blockDim.x + 31) / 32;
    x = over_warp(x);
    if (lane == 0)
        room[threadIdx.x / 32] = x;
    __syncthreads();
#ifdef MUTANT_WARP_LOST
    return room[0];
#else
    return over_warps(lane % WARPS < warps ? room[lane % WARPS] : T(0));
#endif
}

template <int WARPS = 32> __device__ __forceinline__ float block_sum(float x, float *room) {
    return over_block<WARPS>(x, room, warp_sum, lanes_sum<WARPS>);
}

// Of magnitudes.
__device__ __forceinline__ u32 block_max(u32 x, u32 *room) {
    return over_block<32>(x, room, warp_max, warp_max);
}

// Returns when all thread blocks of a cooperative launch have come here, and what they wrote before can be read.
// `arrived` is 0 at first and serves once.
__device__ __forceinline__ void grid_barrier(u32 *arrived) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(arrived, 1);
        u32 seen;
        do
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(arrived) : "memory");
        while (seen < gridDim.x);
    }
    __syncthreads();
}

// Lets a programmatic launch that comes next start; what this one wrote is seen by it after `wait_for_last`.
__device__ __forceinline__ void start_next() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ __forceinline__ void wait_for_last() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

__device__ __forceinline__ u32 shared_address(const void *at) {
    return (u32)__cvta_generic_to_shared(at);
}
