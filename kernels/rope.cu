/*
[[variant]]
name = "simple"
doc = "a thread for each pair"

[[variant.launch]]
entry = "rope_simple_{direction}_{dtype}"
grid = ["ceil(T * H * R / 2, 256)"]
block = [256]
args = ["x", "cos", "sin", "T", "H", "D", "R"]

[[variant]]
name = "vector"
doc = "16 bytes for each thread: the fastest of few tokens"
needs = ["D % 8 == 0", "R % 8 == 0", "R * size <= 2048"]

[[variant.launch]]
entry = "rope_vector_{direction}_{dtype}"
grid = ["T", "ceil(H, max(1, 128 / (R * size / 16)))"]
block = ["R * size / 16", "max(1, 128 / (R * size / 16))"]
args = ["x", "cos", "sin", "T", "H", "D", "R"]

[[variant]]
name = "heads"
doc = "16 bytes of eight heads for each thread, with one load of cosines and sines: the fastest of many tokens"
needs = ["D % 8 == 0", "R % 8 == 0", "R * size <= 2048"]

[[variant.launch]]
entry = "rope_heads_{direction}_{dtype}"
grid = ["T", "ceil(H, 8 * max(1, 128 / (R * size / 16)))"]
block = ["R * size / 16", "max(1, 128 / (R * size / 16))"]
args = ["x", "cos", "sin", "T", "H", "D", "R"]

[[mutant]]
name = "cos_sin_swapped"
doc = "cosines and sines exchanged"

[[mutant]]
name = "position_off_by_one"
doc = "every token rotated as its successor"

[[mutant]]
name = "token_stride"
doc = "rows of a token begin one head after those of the token before it"

[[mutant]]
name = "halves"
doc = "channel i rotated with channel i + r/2, not 2i with 2i + 1"
variants = ["simple"]

[[mutant]]
name = "products_rounded"
doc = "products rounded to bf16 before they are added"

[[mutant]]
name = "element_offset_u32"
doc = "the numbers before a row are counted in 32 bits without a sign"
*/

// reference: reference/ops/rope.rs
//
// x [T, H, D]: pair i is channels D − R + 2i and the next. Token t rotates it by the angle of cos, sin [T, R/2] at (t, i), or back.
// All arithmetic is that of f32, with one rounding at the end.

#include "lib/evict_last.cuh"

// Rotates a pair by an angle, or back.
template <bool INVERSE> __device__ float2 turn(float2 x, float cos, float sin) {
    sin = INVERSE ? -sin : sin;
#ifdef MUTANT_COS_SIN_SWAPPED
    float kept = cos;
    cos = sin;
    sin = kept;
#endif
    float ec = x.x * cos, os = x.y * sin, oc = x.y * cos, es = x.x * sin;
#ifdef MUTANT_PRODUCTS_ROUNDED
    auto round = [](float x) { return __uint_as_float(to_bf16x2(x, 0.0f) << 16); };
    ec = round(ec), os = round(os), oc = round(oc), es = round(es);
#endif
    return {ec - os, oc + es};
}

// The first element of the last R channels of a head.
__device__ size_t row(int t, int h, int H, int D, int R) {
#ifdef MUTANT_TOKEN_STRIDE
    return (size_t(t) + h + 1) * D - R;
#elif defined(MUTANT_ELEMENT_OFFSET_U32)
    return ((u32)t * (u32)H + h + 1) * (u32)D - R;
#else
    return (size_t(t) * H + h + 1) * D - R;
#endif
}

// The first entry of a token in the tables.
__device__ size_t angles(int t, int T, int R) {
#ifdef MUTANT_POSITION_OFF_BY_ONE
    t = t + 1 < T ? t + 1 : 0;
#endif
    return size_t(t) * (R / 2);
}

template <bool INVERSE, class E> __device__ void simple(E *x, const float *cos, const float *sin, int T, int H, int D, int R) {
    long long at = blockIdx.x * 256ll + threadIdx.x;
    int i = at % (R / 2), h = at / (R / 2) % H;
    long long t = at / (R / 2) / H;
    if (t >= T)
        return;
    x += row(t, h, H, D, R);
#ifdef MUTANT_HALVES
    E *even = x + i, *odd = x + i + R / 2;
#else
    E *even = x + 2 * i, *odd = x + 2 * i + 1;
#endif
    size_t angle = angles(t, T, R) + i;
    float2 y = turn<INVERSE>({to_f32(*even), to_f32(*odd)}, cos[angle], sin[angle]);
    from_f32(*even, y.x);
    from_f32(*odd, y.y);
}

// Unpacks 16 bytes of a row to pairs, and packs them.
__device__ void unpack(uint4 x, float2 (&pairs)[2]) {
    pairs[0] = {__uint_as_float(x.x), __uint_as_float(x.y)};
    pairs[1] = {__uint_as_float(x.z), __uint_as_float(x.w)};
}
__device__ void unpack(uint4 x, float2 (&pairs)[4]) {
    u32 words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
        pairs[i] = {__uint_as_float(words[i] << 16), __uint_as_float(words[i] & 0xffff0000)};
}
__device__ uint4 pack(float2 (&pairs)[2]) {
    return {__float_as_uint(pairs[0].x), __float_as_uint(pairs[0].y), __float_as_uint(pairs[1].x), __float_as_uint(pairs[1].y)};
}
__device__ uint4 pack(float2 (&pairs)[4]) {
    return {to_bf16x2(pairs[0].x, pairs[0].y), to_bf16x2(pairs[1].x, pairs[1].y), to_bf16x2(pairs[2].x, pairs[2].y),
            to_bf16x2(pairs[3].x, pairs[3].y)};
}

// Loads N floats with the widest load.
__device__ void table(const float *from, float (&to)[2]) {
    float2 all = *reinterpret_cast<const float2 *>(from);
    to[0] = all.x, to[1] = all.y;
}
__device__ void table(const float *from, float (&to)[4]) {
    float4 all = *reinterpret_cast<const float4 *>(from);
    to[0] = all.x, to[1] = all.y, to[2] = all.z, to[3] = all.w;
}

// CTA (t, group of heads): a row of threads takes HEADS heads in turn.
template <bool INVERSE, int HEADS, class E>
__device__ void vector(E *x, const float *cos, const float *sin, int T, int H, int D, int R) {
    constexpr int PAIRS = 8 / sizeof(E);
    int t = blockIdx.x, first = blockIdx.y * blockDim.y * HEADS + threadIdx.y;
    auto head = [&](int k) { return reinterpret_cast<uint4 *>(x + row(t, first + k * blockDim.y, H, D, R)) + threadIdx.x; };
    uint4 packed[HEADS];
#pragma unroll
    for (int k = 0; k < HEADS; k++) {
        if (first + k * blockDim.y < H)
            packed[k] = ld_global_evict_last(head(k));
    }
    float c[PAIRS], s[PAIRS];
    size_t angle = angles(t, T, R) + threadIdx.x * PAIRS;
    table(cos + angle, c);
    table(sin + angle, s);
#pragma unroll
    for (int k = 0; k < HEADS; k++) {
        float2 pairs[PAIRS];
        unpack(packed[k], pairs);
#pragma unroll
        for (int i = 0; i < PAIRS; i++)
            pairs[i] = turn<INVERSE>(pairs[i], c[i], s[i]);
        if (first + k * blockDim.y < H)
            *head(k) = pack(pairs);
    }
}

#define ENTRY(variant, direction, dtype, E, ...)                                                                            \
    KERNEL(rope_##variant##_##direction##_##dtype)(E * x, const float *cos, const float *sin, int T, int H, int D, int R) { \
        __VA_ARGS__(x, cos, sin, T, H, D, R);                                                                               \
    }
#define ENTRIES(direction, inverse, dtype, E)              \
    ENTRY(simple, direction, dtype, E, simple<inverse>)    \
    ENTRY(vector, direction, dtype, E, vector<inverse, 1>) \
    ENTRY(heads, direction, dtype, E, vector<inverse, 8>)

ENTRIES(forward, false, bf16, bf16)
ENTRIES(inverse, true, bf16, bf16)
ENTRIES(forward, false, f32, float)
ENTRIES(inverse, true, f32, float)
