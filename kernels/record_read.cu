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
name = "rows"
doc = "a warp, or half of one, for a token; those of 4 or 8 tokens are loaded together, after their slots"

[[variant.launch]]
entry = "record_read_rows_{record}_{out}"
grid = ["ceil(T * min(C * out_bytes / 16, 32), 512 * out_bytes)"]
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
name = "page_offset_32"
doc = "the bytes before a page are counted in 32 bits"

[[mutant]]
name = "skipped_read"
doc = "a skipped token reads the first slot instead of zeros"
*/

// reference: crates/core/formats/records/codec.rs

#include "record/decode.cuh"

// N codes or bf16 numbers and the scale they share, as they are stored.
template <class R, int N> struct Raw {
    u32 words[N / 2];
    typename R::Stored scale;
};

// Codes are read once, so they leave L2 first.
template <int BYTES> __device__ __forceinline__ void load(u32 *words, const u8 *from) {
    if constexpr (BYTES == 2)
        words[0] = __ldcs((const u16 *)from);
    else if constexpr (BYTES == 4)
        words[0] = __ldcs((const u32 *)from);
    else if constexpr (BYTES == 8)
        *(uint2 *)words = __ldcs((const uint2 *)from);
    else
        *(uint4 *)words = __ldcs((const uint4 *)from);
}

template <class R, int N> __device__ __forceinline__ Raw<R, N> fetch(const u8 *pages, u64 slot, int channel) {
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

template <class R> __device__ __forceinline__ float decoded_scale(typename R::Stored stored) {
    const float scale = R::Rule::decode(stored, {});
#ifdef MUTANT_TINY_SCALE_FLUSHED
    return scale < 0x1p-126f ? 0 : scale;
#endif
    return scale;
}

template <class R, int N> __device__ __forceinline__ void decode(const Raw<R, N> &raw, int channel, float (&out)[N]) {
    if (channel >= R::CODED) {
        for (int i = 0; i < N; i++)
            out[i] = __uint_as_float(i % 2 ? raw.words[i / 2] & 0xffff0000 : raw.words[i / 2] << 16);
        return;
    }
    const float scale = decoded_scale<R>(raw.scale);
    for (int i = 0; i < N; i += 2) {
        values(typename R::Element(), raw.words, i, out[i], out[i + 1]);
        out[i] *= scale, out[i + 1] *= scale;
    }
}

__device__ __forceinline__ void store(float *out, const float (&x)[4]) {
    st_global_cs((float4 *)out, make_float4(x[0], x[1], x[2], x[3]));
}

__device__ __forceinline__ void store(bf16 *out, const float (&x)[8]) {
    Vec8<bf16>::store(out, 0, x);
}

// ---- simple

// Each thread reads a run of channels that make 16 bytes of output; a token without a slot reads as zeros.
template <class R, class T>
__device__ __forceinline__ void simple(const u8 *pages, const void *slots, T *out, int tokens, int slot_bytes) {
    constexpr int N = 16 / sizeof(T), RUNS = R::DIM / N;
    const long long run = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const int channel = run % RUNS * N;
    if (run / RUNS >= tokens)
        return;
    long long slot = slot_of(slots, slot_bytes, run / RUNS);
#ifdef MUTANT_SKIPPED_READ
    slot = max(slot, 0LL);
#endif
    float x[N] = {};
    if (slot >= 0)
        decode<R>(fetch<R, N>(pages, slot, channel), channel, x);
    store(out + run * N, x);
}

// ---- rows

// Codes times their scale, as 16 bytes of output. A scale of 4-bit codes has at most 4 bits, so bf16 rounds the product once, as f32
// does.
__device__ __forceinline__ uint4 scaled(E2m1, bf16, const u32 *words, float scale) {
#ifdef MUTANT_NIBBLES_SWAPPED
    const u32 codes = (words[0] & 0x0f0f0f0f) << 4 | (words[0] >> 4 & 0x0f0f0f0f);
#else
    const u32 codes = words[0];
#endif
    const u32 magnitudes = codes & 0x77777777, signs = codes >> 3 & 0x11111111, both = to_bf16x2(scale, scale);
    const uint2 low = e2m1_pairs(magnitudes, signs), high = e2m1_pairs(magnitudes >> 16, signs >> 16);
    return make_uint4(times_bf16x2(low.x, both), times_bf16x2(low.y, both), times_bf16x2(high.x, both),
                      times_bf16x2(high.y, both));
}

__device__ __forceinline__ uint4 scaled(E4m3, bf16, const u32 *words, float scale) {
    u32 out[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float first, second;
        values(E4m3(), words, 2 * i, first, second);
        out[i] = to_bf16x2(first * scale, second * scale);
    }
    return make_uint4(out[0], out[1], out[2], out[3]);
}

template <class Element> __device__ __forceinline__ uint4 scaled(Element, float, const u32 *words, float scale) {
    float x[4];
    values(Element(), words, 0, x[0], x[1]);
    values(Element(), words, 2, x[2], x[3]);
    return make_uint4(__float_as_uint(x[0] * scale), __float_as_uint(x[1] * scale), __float_as_uint(x[2] * scale),
                      __float_as_uint(x[3] * scale));
}

// Numbers that are stored as bf16, as 16 bytes of output.
__device__ __forceinline__ uint4 widened(bf16, const u32 *words) {
    return make_uint4(words[0], words[1], words[2], words[3]);
}

__device__ __forceinline__ uint4 widened(float, const u32 *words) {
    return make_uint4(words[0] << 16, words[0] & 0xffff0000, words[1] << 16, words[1] & 0xffff0000);
}

// LANES lanes have a token, TOKENS tokens one after the other; all loads are issued before any of them is used.
template <class R, class T>
__device__ __forceinline__ void rows(const u8 *pages, const void *slots, T *out, int tokens, int slot_bytes) {
    constexpr int N = 16 / sizeof(T), RUNS = R::DIM / N, LANES = RUNS < 32 ? RUNS : 32, EACH = RUNS / LANES;
    constexpr int TOKENS = 2 * sizeof(T), WARP_TOKENS = 32 / LANES, CODE_BYTES = N * R::Element::bits / 8;
    typedef typename R::Stored Stored;
    const int lane = threadIdx.x % 32, run = lane % LANES, warp_token = lane / LANES;
    const int first = (blockIdx.x * blockDim.x + threadIdx.x) / 32 * (TOKENS * WARP_TOKENS);
    u32 my_slot = NO_SLOT;
    if (lane < TOKENS * WARP_TOKENS && first + lane < tokens)
        my_slot = narrow_slot(slot_of(slots, slot_bytes, first + lane));
#ifdef MUTANT_SKIPPED_READ
    my_slot = my_slot == NO_SLOT ? 0 : my_slot;
#endif

    // The addresses of a lane's codes, or numbers of bf16, and scales in slot 0.
    const u8 *codes = pages + run * CODE_BYTES, *halves = pages + R::BF16 + 2 * (run * N - R::CODED);
    const u8 *scales = pages + (R::TAIL ? PAGE * R::ROW : 0) + R::SCALES + run * N / R::BLOCK * sizeof(Stored);
    bool valid[TOKENS];
    Raw<R, N> raw[TOKENS][EACH];
#pragma unroll
    for (int i = 0; i < TOKENS; i++) {
        const u32 slot = __shfl_sync(~0u, my_slot, i * WARP_TOKENS + warp_token);
        valid[i] = slot != NO_SLOT;
        if (!valid[i])
            continue;
        const u64 page = page_offset<R>(slot), row = page + slot % PAGE * R::ROW;
#ifdef MUTANT_SCALES_OF_FIRST_SLOT
        const u64 tail = page;
#else
        const u64 tail = page + slot % PAGE * (R::TAIL ? R::TAIL : R::ROW);
#endif
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            if ((e * LANES + run) * N < R::CODED) {
                load<CODE_BYTES>(raw[i][e].words, codes + row + e * LANES * CODE_BYTES);
                raw[i][e].scale = __ldg((const Stored *)(scales + tail) + e * LANES * N / R::BLOCK);
            } else {
                load<2 * N>(raw[i][e].words, halves + row + 2 * e * LANES * N);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < TOKENS; i++) {
        const int token = first + i * WARP_TOKENS + warp_token;
        if (token >= tokens)
            return;
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            uint4 x = make_uint4(0, 0, 0, 0);
            if (valid[i] && (e * LANES + run) * N < R::CODED)
                x = scaled(typename R::Element(), T(), raw[i][e].words, decoded_scale<R>(raw[i][e].scale));
            else if (valid[i])
                x = widened(T(), raw[i][e].words);
            ((uint4 *)out)[(size_t)token * RUNS + e * LANES + run] = x;
        }
    }
}

#define ENTRY(VARIANT, RECORD, NAME, TYPE, BLOCKS)                                                                          \
    KERNEL(record_read_##VARIANT##_##RECORD##_##NAME, __launch_bounds__(256, BLOCKS))(                                      \
        const u8 *__restrict__ pages, const void *__restrict__ slots, TYPE *__restrict__ out, int tokens, int slot_bytes) { \
        VARIANT<RECORD, TYPE>(pages, slots, out, tokens, slot_bytes);                                                       \
    }
#define ENTRIES(RECORD)                  \
    ENTRY(simple, RECORD, bf16, bf16, 8) \
    ENTRY(simple, RECORD, f32, float, 8) \
    ENTRY(rows, RECORD, bf16, bf16, 4)   \
    ENTRY(rows, RECORD, f32, float, 2)
FOR_ALL_RECORDS(ENTRIES)
