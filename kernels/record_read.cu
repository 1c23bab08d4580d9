/*
[[variant]]
name = "simple"
doc = "a thread for each 16 bytes of output"

[[variant.launch]]
entry = "record_read_simple_{record}_{out}"
grid = ["ceil(T * C * out_bytes / 16, 256)"]
block = [256]
args = ["pages", "slots", "out", "T", "slot_bytes"]

[[variant]]
name = "twice"
doc = "2 times 16 bytes of output for each thread: their slots are loaded together, then their codes and scales"

[[variant.launch]]
entry = "record_read_twice_{record}_{out}"
grid = ["ceil(T * C * out_bytes / 16, 512)"]
block = [256]
args = ["pages", "slots", "out", "T", "slot_bytes"]

[[variant]]
name = "t4"
doc = "candidate"

[[variant.launch]]
entry = "record_read_t4_{record}_{out}"
grid = ["ceil(T * min(C * out_bytes / 16, 32), 1024)"]
block = [256]
args = ["pages", "slots", "out", "T", "slot_bytes"]

[[variant]]
name = "t4s"
doc = "candidate"

[[variant.launch]]
entry = "record_read_t4s_{record}_{out}"
grid = ["ceil(T * min(C * out_bytes / 16, 32), 1024)"]
block = [256]
args = ["pages", "slots", "out", "T", "slot_bytes"]

[[variant]]
name = "t8"
doc = "candidate"

[[variant.launch]]
entry = "record_read_t8_{record}_{out}"
grid = ["ceil(T * min(C * out_bytes / 16, 32), 2048)"]
block = [256]
args = ["pages", "slots", "out", "T", "slot_bytes"]

[[variant]]
name = "t2"
doc = "candidate"

[[variant.launch]]
entry = "record_read_t2_{record}_{out}"
grid = ["ceil(T * min(C * out_bytes / 16, 32), 512)"]
block = [256]
args = ["pages", "slots", "out", "T", "slot_bytes"]

[[mutant]]
name = "nibbles_swapped"
doc = "of two 4-bit codes the first is taken from the high nibble"

[[mutant]]
name = "tiny_scale_flushed"
doc = "the scale 2^-127 counts as zero"

[[mutant]]
name = "scales_of_first_slot"
doc = "every token has the scales of the first one of its page"

[[mutant]]
name = "skipped_read"
doc = "a skipped token reads the first slot instead of zeros"
*/
#include "records.cuh"

// N codes or bf16 numbers and the scale they share, as they are stored.
template <class R, int N> struct Raw {
    u32 words[N / 2];
    typename R::Stored scale;
};

template <int BYTES> __device__ __forceinline__ void load(u32 *words, const u8 *from) {
    if constexpr (BYTES == 2)
        words[0] = __ldg((const u16 *)from);
    else if constexpr (BYTES == 4)
        words[0] = __ldg((const u32 *)from);
    else if constexpr (BYTES == 8)
        *(uint2 *)words = __ldg((const uint2 *)from);
    else
        *(uint4 *)words = __ldg((const uint4 *)from);
}

template <class R, int N> __device__ __forceinline__ Raw<R, N> fetch(const u8 *pages, long long slot, int channel) {
    Raw<R, N> raw;
    const auto [row, tail] = token_at<R>(pages, slot);
    if (channel >= R::CODED) {
        load<2 * N>(raw.words, row + R::BF16 + 2 * (channel - R::CODED));
        return raw;
    }
#ifdef MUTANT_SCALES_OF_FIRST_SLOT
    const u8 *scales = token_at<R>(pages, slot / PAGE * PAGE).tail + R::SCALES;
#else
    const u8 *scales = tail + R::SCALES;
#endif
    load<N * R::Element::bits / 8>(raw.words, row + channel * R::Element::bits / 8);
    raw.scale = __ldg((const typename R::Stored *)scales + channel / R::BLOCK);
    return raw;
}

__device__ __forceinline__ void values(E4m3, const u32 *words, int i, float &first, float &second) {
    E4m3::decode2(words[i / 4] >> i % 4 * 8, first, second);
}

__device__ __forceinline__ void values(E2m1, const u32 *words, int i, float &first, float &second) {
#ifdef MUTANT_NIBBLES_SWAPPED
    second = E2m1::decode(words[0] >> i * 4), first = E2m1::decode(words[0] >> (i + 1) * 4);
#else
    first = E2m1::decode(words[0] >> i * 4), second = E2m1::decode(words[0] >> (i + 1) * 4);
#endif
}

template <class R, int N> __device__ __forceinline__ void decode(const Raw<R, N> &raw, int channel, float (&out)[N]) {
    if (channel >= R::CODED) {
        for (int i = 0; i < N; i++)
            out[i] = __uint_as_float(i % 2 ? raw.words[i / 2] & 0xffff0000 : raw.words[i / 2] << 16);
        return;
    }
    float scale = R::Rule::decode(raw.scale, {});
#ifdef MUTANT_TINY_SCALE_FLUSHED
    scale = scale < 0x1p-126f ? 0 : scale;
#endif
    for (int i = 0; i < N; i += 2) {
        values(typename R::Element(), raw.words, i, out[i], out[i + 1]);
        out[i] *= scale, out[i + 1] *= scale;
    }
}

__device__ __forceinline__ void store(float *out, const float (&x)[4]) {
    store_once((float4 *)out, make_float4(x[0], x[1], x[2], x[3]));
}

__device__ __forceinline__ void store(bf16 *out, const float (&x)[8]) {
    Eight<bf16>::store(out, 0, x);
}

// Each thread reads COUNT runs of channels that make 16 bytes of output; a token without a slot reads as zeros.
template <class R, class T, int COUNT>
__device__ __forceinline__ void record_read(const u8 *pages, const void *slots, T *out, int tokens, int slot_bytes) {
    constexpr int N = 16 / sizeof(T), RUNS = R::DIM / N;
    const long long first = (long long)blockIdx.x * (COUNT * blockDim.x) + threadIdx.x;
    long long slot[COUNT];
    Raw<R, N> raw[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const long long run = first + i * blockDim.x;
        slot[i] = run / RUNS < tokens ? slot_of(slots, slot_bytes, run / RUNS) : -1;
#ifdef MUTANT_SKIPPED_READ
        slot[i] = max(slot[i], 0LL);
#endif
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        if (slot[i] >= 0)
            raw[i] = fetch<R, N>(pages, slot[i], (first + i * blockDim.x) % RUNS * N);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const long long run = first + i * blockDim.x;
        float x[N] = {};
        if (slot[i] >= 0)
            decode<R>(raw[i], run % RUNS * N, x);
        if (run / RUNS < tokens)
            store(out + run * N, x);
    }
}

// ---- rows

constexpr u32 NONE = ~0u;

// Four codes E2M1 as pairs of bf16: bytes of the eight magnitudes, looked up by code.
__device__ __forceinline__ uint2 e2m1_pairs(u32 magnitudes, u32 signs) {
    const u32 high = __byte_perm(0x3f3f3f00, 0x40404040, magnitudes) | __byte_perm(0x8000, 0, signs);
    const u32 low = __byte_perm(0xc0800000, 0xc0804000, magnitudes);
    return make_uint2(__byte_perm(low, high, 0x5140), __byte_perm(low, high, 0x7362));
}

__device__ __forceinline__ u32 times_bf16x2(u32 x, u32 y) {
    u32 out;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(x), "r"(y));
    return out;
}

__device__ __forceinline__ void pairs_of(E2m1, const u32 *words, float scale, u32 (&out)[4]) {
#ifdef MUTANT_NIBBLES_SWAPPED
    const u32 codes = (words[0] & 0x0f0f0f0f) << 4 | (words[0] >> 4 & 0x0f0f0f0f);
#else
    const u32 codes = words[0];
#endif
    const u32 sizes = codes & 0x77777777, signs = codes >> 3 & 0x11111111, both = to_bf16x2(scale, scale);
    const uint2 low = e2m1_pairs(sizes, signs), high = e2m1_pairs(sizes >> 16, signs >> 16);
    out[0] = times_bf16x2(low.x, both), out[1] = times_bf16x2(low.y, both);
    out[2] = times_bf16x2(high.x, both), out[3] = times_bf16x2(high.y, both);
}

__device__ __forceinline__ void pairs_of(E4m3, const u32 *words, float scale, u32 (&out)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float first, second;
        E4m3::decode2(words[i / 2] >> i % 2 * 16, first, second);
        out[i] = to_bf16x2(first * scale, second * scale);
    }
}

template <class R, int N> __device__ __forceinline__ uint4 decoded(bf16, const Raw<R, N> &raw, float scale) {
    u32 out[4];
    pairs_of(typename R::Element(), raw.words, scale, out);
    return make_uint4(out[0], out[1], out[2], out[3]);
}
template <class R, int N> __device__ __forceinline__ uint4 decoded(float, const Raw<R, N> &raw, float scale) {
    float x[4];
    values(typename R::Element(), raw.words, 0, x[0], x[1]);
    values(typename R::Element(), raw.words, 2, x[2], x[3]);
    return make_uint4(__float_as_uint(x[0] * scale), __float_as_uint(x[1] * scale), __float_as_uint(x[2] * scale),
                      __float_as_uint(x[3] * scale));
}

__device__ __forceinline__ uint4 widened(bf16, const u32 *words) {
    return make_uint4(words[0], words[1], words[2], words[3]);
}
__device__ __forceinline__ uint4 widened(float, const u32 *words) {
    return make_uint4(words[0] << 16, words[0] & 0xffff0000, words[1] << 16, words[1] & 0xffff0000);
}

template <int BYTES, bool HINT> __device__ __forceinline__ void load_h(u32 *words, const u8 *from, u64 policy) {
    if constexpr (!HINT) load<BYTES>(words, from);
    else if constexpr (BYTES == 2) { u16 h; asm volatile("ld.global.nc.L2::cache_hint.u16 %0, [%1], %2;" : "=h"(h) : "l"(from), "l"(policy)); words[0] = h; }
    else if constexpr (BYTES == 4) asm volatile("ld.global.nc.L2::cache_hint.u32 %0, [%1], %2;" : "=r"(words[0]) : "l"(from), "l"(policy));
    else if constexpr (BYTES == 8) asm volatile("ld.global.nc.L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;" : "=r"(words[0]), "=r"(words[1]) : "l"(from), "l"(policy));
    else asm volatile("ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;" : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3]) : "l"(from), "l"(policy));
}
template <bool HINT> __device__ __forceinline__ void scale_h(u8 &s, const u8 *from) {
    if constexpr (!HINT) s = __ldg(from);
    else { u32 x; asm volatile("ld.global.nc.L2::cache_hint.u8 %0, [%1], %2;" : "=r"(x) : "l"(from), "l"(keep())); s = x; }
}
template <bool HINT> __device__ __forceinline__ void scale_h(float &s, const float *from) {
    s = __ldg(from);
}

template <int STREAM> __device__ __forceinline__ void put(uint4 *to, uint4 x) {
    if (STREAM) __stcs(to, x);
    else *to = x;
}

// TOKENS tokens of a warp, or of half a warp, whose slots are loaded at once, then all their bytes.
template <class R, class T, int TOKENS, int STREAM, int HINT>
__device__ __forceinline__ void rows(const u8 *pages, const void *slots, T *out, int tokens, int slot_bytes) {
    constexpr int N = 16 / sizeof(T), RUNS = R::DIM / N, LANES = RUNS < 32 ? RUNS : 32, EACH = RUNS / LANES, SIDES = 32 / LANES;
    constexpr int STRIDE = (PAGE * (R::ROW + R::TAIL) + R::ALIGN - 1) / R::ALIGN * R::ALIGN;
    constexpr int CODE_BYTES = N * R::Element::bits / 8;
    typedef typename R::Stored Stored;
    const int lane = threadIdx.x % 32, run = lane % LANES, side = lane / LANES;
    const int first = (blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * (TOKENS * SIDES);
    u32 mine = NONE;
    if (lane < TOKENS * SIDES && first + lane < tokens) {
        const long long slot = slot_of(slots, slot_bytes, first + lane);
        mine = slot < 0 ? NONE : (u32)slot;
#ifdef MUTANT_SKIPPED_READ
        mine = slot < 0 ? 0 : mine;
#endif
    }
    const u8 *codes = pages + run * CODE_BYTES;
    const u8 *halves = pages + R::BF16 + 2 * (run * N - R::CODED);
    const Stored *scales = (const Stored *)(pages + (R::TAIL ? PAGE * R::ROW : 0) + R::SCALES) + run * N / R::BLOCK;

    u32 slot[TOKENS];
    Raw<R, N> raw[TOKENS][EACH];
#pragma unroll
    for (int i = 0; i < TOKENS; i++) {
        slot[i] = __shfl_sync(~0u, mine, i * SIDES + side);
        if (slot[i] == NONE)
            continue;
        const u64 page = (u64)(slot[i] / PAGE) * STRIDE;
        const u64 row = page + slot[i] % PAGE * R::ROW;
#ifdef MUTANT_SCALES_OF_FIRST_SLOT
        const u64 tail = page;
#else
        const u64 tail = page + slot[i] % PAGE * (R::TAIL ? R::TAIL : R::ROW);
#endif
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            if ((e * LANES + run) * N < R::CODED) {
                load_h<CODE_BYTES, HINT >= 2>(raw[i][e].words, codes + row + e * LANES * CODE_BYTES, let_go());
                scale_h<(HINT & 1) && (R::TAIL > 0)>(raw[i][e].scale, (const Stored *)((const u8 *)scales + tail) + e * LANES * N / R::BLOCK);
            } else {
                load_h<2 * N, HINT >= 2>(raw[i][e].words, halves + row + 2 * e * LANES * N, let_go());
            }
        }
    }
#pragma unroll
    for (int i = 0; i < TOKENS; i++) {
        const int token = first + i * SIDES + side;
        if (token >= tokens)
            break;
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            uint4 x = make_uint4(0, 0, 0, 0);
            if (slot[i] != NONE) {
                if ((e * LANES + run) * N < R::CODED) {
                    float scale = R::Rule::decode(raw[i][e].scale, {});
#ifdef MUTANT_TINY_SCALE_FLUSHED
                    scale = scale < 0x1p-126f ? 0 : scale;
#endif
                    x = decoded(T(), raw[i][e], scale);
                } else {
                    x = widened(T(), raw[i][e].words);
                }
            }
            put<STREAM>((uint4 *)out + (size_t)token * RUNS + e * LANES + run, x);
        }
    }
}

#define ROWS(NAME, TOKENS, STREAM, HINT, BLOCKS, RECORD, TNAME, TYPE)                                                  \
    extern "C" __global__ void __launch_bounds__(256, BLOCKS) record_read_##NAME##_##RECORD##_##TNAME(                  \
        const u8 *__restrict__ pages, const void *__restrict__ slots, TYPE *__restrict__ out, int tokens,              \
        int slot_bytes) {                                                                                              \
        rows<RECORD, TYPE, TOKENS, STREAM, HINT>(pages, slots, out, tokens, slot_bytes);                               \
    }

#define ENTRY(VARIANT, RECORD, NAME, TYPE, COUNT)                                                                      \
    extern "C" __global__ void __launch_bounds__(256, 8) record_read_##VARIANT##_##RECORD##_##NAME(                       \
        const u8 *__restrict__ pages, const void *__restrict__ slots, TYPE *__restrict__ out, int tokens,              \
        int slot_bytes) {                                                                                              \
        record_read<RECORD, TYPE, COUNT>(pages, slots, out, tokens, slot_bytes);                                       \
    }
#define ENTRIES(RECORD)                                                                                                \
    ENTRY(simple, RECORD, bf16, bf16, 1)                                                                               \
    ENTRY(simple, RECORD, f32, float, 1)                                                                               \
    ENTRY(twice, RECORD, bf16, bf16, 2)                                                                                \
    ENTRY(twice, RECORD, f32, float, 2) \
    ROWS(t4, 4, 0, 2, 4, RECORD, bf16, bf16) \
    ROWS(t4, 4, 0, 2, 4, RECORD, f32, float) \
    ROWS(t4s, 4, 1, 2, 4, RECORD, bf16, bf16) \
    ROWS(t4s, 4, 1, 2, 4, RECORD, f32, float) \
    ROWS(t8, 8, 0, 2, 2, RECORD, bf16, bf16) \
    ROWS(t8, 8, 0, 2, 2, RECORD, f32, float) \
    ROWS(t2, 2, 0, 2, 6, RECORD, bf16, bf16) \
    ROWS(t2, 2, 0, 2, 6, RECORD, f32, float)
FOR_ALL_RECORDS(ENTRIES)
