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
    ENTRY(twice, RECORD, f32, float, 2)
FOR_ALL_RECORDS(ENTRIES)
