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

[[variant]]
name = "h01"
doc = "load policy, store policy"
needs = ["D % 8 == 0", "R % 8 == 0", "R * size <= 2048"]

[[variant.launch]]
entry = "rope_h01_{direction}_{dtype}"
grid = ["T", "ceil(H, 8 * max(1, 128 / (R * size / 16)))"]
block = ["R * size / 16", "max(1, 128 / (R * size / 16))"]

args = ["x", "cos", "sin", "T", "H", "D", "R"]

[[variant]]
name = "h02"
doc = "load policy, store policy"
needs = ["D % 8 == 0", "R % 8 == 0", "R * size <= 2048"]

[[variant.launch]]
entry = "rope_h02_{direction}_{dtype}"
grid = ["T", "ceil(H, 8 * max(1, 128 / (R * size / 16)))"]
block = ["R * size / 16", "max(1, 128 / (R * size / 16))"]

args = ["x", "cos", "sin", "T", "H", "D", "R"]

[[variant]]
name = "h03"
doc = "load policy, store policy"
needs = ["D % 8 == 0", "R % 8 == 0", "R * size <= 2048"]

[[variant.launch]]
entry = "rope_h03_{direction}_{dtype}"
grid = ["T", "ceil(H, 8 * max(1, 128 / (R * size / 16)))"]
block = ["R * size / 16", "max(1, 128 / (R * size / 16))"]

args = ["x", "cos", "sin", "T", "H", "D", "R"]

[[variant]]
name = "h10"
doc = "load policy, store policy"
needs = ["D % 8 == 0", "R % 8 == 0", "R * size <= 2048"]

[[variant.launch]]
entry = "rope_h10_{direction}_{dtype}"
grid = ["T", "ceil(H, 8 * max(1, 128 / (R * size / 16)))"]
block = ["R * size / 16", "max(1, 128 / (R * size / 16))"]

args = ["x", "cos", "sin", "T", "H", "D", "R"]

[[variant]]
name = "h11"
doc = "load policy, store policy"
needs = ["D % 8 == 0", "R % 8 == 0", "R * size <= 2048"]

[[variant.launch]]
entry = "rope_h11_{direction}_{dtype}"
grid = ["T", "ceil(H, 8 * max(1, 128 / (R * size / 16)))"]
block = ["R * size / 16", "max(1, 128 / (R * size / 16))"]

args = ["x", "cos", "sin", "T", "H", "D", "R"]

[[variant]]
name = "h12"
doc = "load policy, store policy"
needs = ["D % 8 == 0", "R % 8 == 0", "R * size <= 2048"]

[[variant.launch]]
entry = "rope_h12_{direction}_{dtype}"
grid = ["T", "ceil(H, 8 * max(1, 128 / (R * size / 16)))"]
block = ["R * size / 16", "max(1, 128 / (R * size / 16))"]

args = ["x", "cos", "sin", "T", "H", "D", "R"]

[[variant]]
name = "h13"
doc = "load policy, store policy"
needs = ["D % 8 == 0", "R % 8 == 0", "R * size <= 2048"]

[[variant.launch]]
entry = "rope_h13_{direction}_{dtype}"
grid = ["T", "ceil(H, 8 * max(1, 128 / (R * size / 16)))"]
block = ["R * size / 16", "max(1, 128 / (R * size / 16))"]

args = ["x", "cos", "sin", "T", "H", "D", "R"]

[[variant]]
name = "h20"
doc = "load policy, store policy"
needs = ["D % 8 == 0", "R % 8 == 0", "R * size <= 2048"]

[[variant.launch]]
entry = "rope_h20_{direction}_{dtype}"
grid = ["T", "ceil(H, 8 * max(1, 128 / (R * size / 16)))"]
block = ["R * size / 16", "max(1, 128 / (R * size / 16))"]

args = ["x", "cos", "sin", "T", "H", "D", "R"]

[[variant]]
name = "h30"
doc = "load policy, store policy"
needs = ["D % 8 == 0", "R % 8 == 0", "R * size <= 2048"]

[[variant.launch]]
entry = "rope_h30_{direction}_{dtype}"
grid = ["T", "ceil(H, 8 * max(1, 128 / (R * size / 16)))"]
block = ["R * size / 16", "max(1, 128 / (R * size / 16))"]

args = ["x", "cos", "sin", "T", "H", "D", "R"]

[[variant]]
name = "probe_copy"
doc = "probe"
needs = ["D % 8 == 0", "R % 8 == 0", "R * size <= 2048"]

[[variant.launch]]
entry = "rope_probe_copy_{direction}_{dtype}"
grid = ["T", "ceil(H, 8 * max(1, 128 / (R * size / 16)))"]
block = ["R * size / 16", "max(1, 128 / (R * size / 16))"]

args = ["x", "cos", "sin", "T", "H", "D", "R"]

[[variant]]
name = "probe_reads"
doc = "probe"
needs = ["D % 8 == 0", "R % 8 == 0", "R * size <= 2048"]

[[variant.launch]]
entry = "rope_probe_reads_{direction}_{dtype}"
grid = ["T", "ceil(H, 8 * max(1, 128 / (R * size / 16)))"]
block = ["R * size / 16", "max(1, 128 / (R * size / 16))"]

args = ["x", "cos", "sin", "T", "H", "D", "R"]

[[variant]]
name = "probe_writes"
doc = "probe"
needs = ["D % 8 == 0", "R % 8 == 0", "R * size <= 2048"]

[[variant.launch]]
entry = "rope_probe_writes_{direction}_{dtype}"
grid = ["T", "ceil(H, 8 * max(1, 128 / (R * size / 16)))"]
block = ["R * size / 16", "max(1, 128 / (R * size / 16))"]

args = ["x", "cos", "sin", "T", "H", "D", "R"]

[[variant]]
name = "loop2"
doc = "blocks that stay"
needs = ["D % 8 == 0", "R % 8 == 0", "R * size <= 2048"]

[[variant.launch]]
entry = "rope_loop_{direction}_{dtype}"
grid = ["2 * sms"]
block = ["R * size / 16", "max(1, 128 / (R * size / 16))"]

args = ["x", "cos", "sin", "T", "H", "D", "R"]

[[variant]]
name = "range2"
doc = "blocks that stay, with tokens in a row"
needs = ["D % 8 == 0", "R % 8 == 0", "R * size <= 2048"]

[[variant.launch]]
entry = "rope_range_{direction}_{dtype}"
grid = ["2 * sms"]
block = ["R * size / 16", "max(1, 128 / (R * size / 16))"]

args = ["x", "cos", "sin", "T", "H", "D", "R"]

[[variant]]
name = "loop4"
doc = "blocks that stay"
needs = ["D % 8 == 0", "R % 8 == 0", "R * size <= 2048"]

[[variant.launch]]
entry = "rope_loop_{direction}_{dtype}"
grid = ["4 * sms"]
block = ["R * size / 16", "max(1, 128 / (R * size / 16))"]

args = ["x", "cos", "sin", "T", "H", "D", "R"]

[[variant]]
name = "range4"
doc = "blocks that stay, with tokens in a row"
needs = ["D % 8 == 0", "R % 8 == 0", "R * size <= 2048"]

[[variant.launch]]
entry = "rope_range_{direction}_{dtype}"
grid = ["4 * sms"]
block = ["R * size / 16", "max(1, 128 / (R * size / 16))"]

args = ["x", "cos", "sin", "T", "H", "D", "R"]

[[variant]]
name = "loop8"
doc = "blocks that stay"
needs = ["D % 8 == 0", "R % 8 == 0", "R * size <= 2048"]

[[variant.launch]]
entry = "rope_loop_{direction}_{dtype}"
grid = ["8 * sms"]
block = ["R * size / 16", "max(1, 128 / (R * size / 16))"]

args = ["x", "cos", "sin", "T", "H", "D", "R"]

[[variant]]
name = "range8"
doc = "blocks that stay, with tokens in a row"
needs = ["D % 8 == 0", "R % 8 == 0", "R * size <= 2048"]

[[variant.launch]]
entry = "rope_range_{direction}_{dtype}"
grid = ["8 * sms"]
block = ["R * size / 16", "max(1, 128 / (R * size / 16))"]

args = ["x", "cos", "sin", "T", "H", "D", "R"]

[[variant]]
name = "loop16"
doc = "blocks that stay"
needs = ["D % 8 == 0", "R % 8 == 0", "R * size <= 2048"]

[[variant.launch]]
entry = "rope_loop_{direction}_{dtype}"
grid = ["16 * sms"]
block = ["R * size / 16", "max(1, 128 / (R * size / 16))"]

args = ["x", "cos", "sin", "T", "H", "D", "R"]

[[variant]]
name = "range16"
doc = "blocks that stay, with tokens in a row"
needs = ["D % 8 == 0", "R % 8 == 0", "R * size <= 2048"]

[[variant.launch]]
entry = "rope_range_{direction}_{dtype}"
grid = ["16 * sms"]
block = ["R * size / 16", "max(1, 128 / (R * size / 16))"]

args = ["x", "cos", "sin", "T", "H", "D", "R"]

[[variant]]
name = "occ4"
doc = "fewer blocks at a time"
needs = ["D % 8 == 0", "R % 8 == 0", "R * size <= 2048"]

[[variant.launch]]
entry = "rope_heads_{direction}_{dtype}"
grid = ["T", "ceil(H, 8 * max(1, 128 / (R * size / 16)))"]
block = ["R * size / 16", "max(1, 128 / (R * size / 16))"]
shared = "56000"
args = ["x", "cos", "sin", "T", "H", "D", "R"]

[[variant]]
name = "occ8"
doc = "fewer blocks at a time"
needs = ["D % 8 == 0", "R % 8 == 0", "R * size <= 2048"]

[[variant.launch]]
entry = "rope_heads_{direction}_{dtype}"
grid = ["T", "ceil(H, 8 * max(1, 128 / (R * size / 16)))"]
block = ["R * size / 16", "max(1, 128 / (R * size / 16))"]
shared = "28000"
args = ["x", "cos", "sin", "T", "H", "D", "R"]

[[variant]]
name = "occ2"
doc = "fewer blocks at a time"
needs = ["D % 8 == 0", "R % 8 == 0", "R * size <= 2048"]

[[variant.launch]]
entry = "rope_heads_{direction}_{dtype}"
grid = ["T", "ceil(H, 8 * max(1, 128 / (R * size / 16)))"]
block = ["R * size / 16", "max(1, 128 / (R * size / 16))"]
shared = "113000"
args = ["x", "cos", "sin", "T", "H", "D", "R"]

[[variant]]
name = "wide4"
doc = "256 threads, 4 heads each"
needs = ["D % 8 == 0", "R % 8 == 0", "R * size <= 2048"]

[[variant.launch]]
entry = "rope_w4_{direction}_{dtype}"
grid = ["T", "ceil(H, 4 * 32)"]
block = ["R * size / 16", "32"]

args = ["x", "cos", "sin", "T", "H", "D", "R"]

[[variant]]
name = "wide2"
doc = "512 threads, 2 heads each"
needs = ["D % 8 == 0", "R % 8 == 0", "R * size <= 2048"]

[[variant.launch]]
entry = "rope_w2_{direction}_{dtype}"
grid = ["T", "ceil(H, 2 * 64)"]
block = ["R * size / 16", "64"]

args = ["x", "cos", "sin", "T", "H", "D", "R"]

[[variant]]
name = "narrow16"
doc = "64 threads, 16 heads each"
needs = ["D % 8 == 0", "R % 8 == 0", "R * size <= 2048"]

[[variant.launch]]
entry = "rope_n16_{direction}_{dtype}"
grid = ["T", "ceil(H, 16 * 8)"]
block = ["R * size / 16", "8"]

args = ["x", "cos", "sin", "T", "H", "D", "R"]

[[variant]]
name = "bulk"
doc = "rows of 128 bytes by bulk copies"
needs = ["D % 8 == 0", "R % 8 == 0", "R * size <= 2048"]

[[variant.launch]]
entry = "rope_bulk_{direction}_{dtype}"
grid = ["T"]
block = [128]

args = ["x", "cos", "sin", "T", "H", "D", "R"]

[[variant]]
name = "probe_dense"
doc = "probe"
needs = ["D % 8 == 0", "R % 8 == 0", "R * size <= 2048", "H % 2 == 0"]

[[variant.launch]]
entry = "rope_probe_dense_{direction}_{dtype}"
grid = ["T", "ceil(H, 8 * max(1, 128 / (R * size / 16)))"]
block = ["R * size / 16", "max(1, 128 / (R * size / 16))"]
args = ["x", "cos", "sin", "T", "H", "D", "R"]

[[variant]]
name = "probe_pairs"
doc = "probe"
needs = ["D % 8 == 0", "R % 8 == 0", "R * size <= 2048", "H % 2 == 0"]

[[variant.launch]]
entry = "rope_probe_pairs_{direction}_{dtype}"
grid = ["T", "ceil(H, 8 * max(1, 128 / (R * size / 16)))"]
block = ["R * size / 16", "max(1, 128 / (R * size / 16))"]
args = ["x", "cos", "sin", "T", "H", "D", "R"]

[[mutant]]
name = "cos_sin_swapped"
doc = "cosines and sines exchanged"

[[mutant]]
name = "position_off_by_one"
doc = "every token turned as its successor"

[[mutant]]
name = "token_stride"
doc = "rows of a token begin one head after those of the token before it"

[[mutant]]
name = "halves"
doc = "channel i turned with channel i + r/2, not 2i with 2i + 1"
variants = ["simple"]

[[mutant]]
name = "products_rounded"
doc = "products rounded to bf16 before they are added"
*/

// x [T, H, D]: pair i is channels D − R + 2i and the next; token t turns it by the angle of cos, sin [T, R/2] at (t, i),
// or back. All arithmetic is that of f32, with one rounding at the end.

#include "common.cuh"

// The pair turned by an angle, or back.
template <bool INVERSE>
__device__ float2 turn(float2 x, float cos, float sin) {
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

// First element of the last R channels of a head.
__device__ size_t row(int t, int h, int H, int D, int R) {
#ifdef MUTANT_TOKEN_STRIDE
    return (size_t(t) + h + 1) * D - R;
#else
    return (size_t(t) * H + h + 1) * D - R;
#endif
}

// First entry of a token in the tables.
__device__ size_t angles(int t, int T, int R) {
#ifdef MUTANT_POSITION_OFF_BY_ONE
    t = t + 1 < T ? t + 1 : 0;
#endif
    return size_t(t) * (R / 2);
}

template <bool INVERSE, class E>
__device__ void simple(E* x, const float* cos, const float* sin, int T, int H, int D, int R) {
    long long at = blockIdx.x * 256ll + threadIdx.x;
    int i = at % (R / 2), h = at / (R / 2) % H;
    long long t = at / (R / 2) / H;
    if (t >= T) return;
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

// 16 bytes of a row as pairs, and back.
__device__ void unpack(uint4 x, float2 (&pairs)[2]) {
    pairs[0] = {__uint_as_float(x.x), __uint_as_float(x.y)};
    pairs[1] = {__uint_as_float(x.z), __uint_as_float(x.w)};
}
__device__ void unpack(uint4 x, float2 (&pairs)[4]) {
    u32 words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; i++) pairs[i] = {__uint_as_float(words[i] << 16), __uint_as_float(words[i] & 0xffff0000)};
}
__device__ uint4 pack(float2 (&pairs)[2]) {
    return {__float_as_uint(pairs[0].x), __float_as_uint(pairs[0].y), __float_as_uint(pairs[1].x),
            __float_as_uint(pairs[1].y)};
}
__device__ uint4 pack(float2 (&pairs)[4]) {
    return {to_bf16x2(pairs[0].x, pairs[0].y), to_bf16x2(pairs[1].x, pairs[1].y), to_bf16x2(pairs[2].x, pairs[2].y),
            to_bf16x2(pairs[3].x, pairs[3].y)};
}

// The widest loads of N floats.
__device__ void table(const float* from, float (&to)[2]) {
    float2 all = *reinterpret_cast<const float2*>(from);
    to[0] = all.x, to[1] = all.y;
}
__device__ void table(const float* from, float (&to)[4]) {
    float4 all = *reinterpret_cast<const float4*>(from);
    to[0] = all.x, to[1] = all.y, to[2] = all.z, to[3] = all.w;
}

// Block (t, group of heads); a row of threads takes a head, and HEADS of them in turn.
template <bool INVERSE, int HEADS, class E>
__device__ void vector(E* x, const float* cos, const float* sin, int T, int H, int D, int R) {
    constexpr int PAIRS = 8 / sizeof(E);
    int t = blockIdx.x, first = blockIdx.y * blockDim.y * HEADS + threadIdx.y;
    auto head = [&](int k) {
        return reinterpret_cast<uint4*>(x + row(t, first + k * blockDim.y, H, D, R)) + threadIdx.x;
    };
    uint4 packed[HEADS];
#pragma unroll
    for (int k = 0; k < HEADS; k++) {
        if (first + k * blockDim.y < H) packed[k] = *head(k);
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
        for (int i = 0; i < PAIRS; i++) pairs[i] = turn<INVERSE>(pairs[i], c[i], s[i]);
        if (first + k * blockDim.y < H) *head(k) = pack(pairs);
    }
}


template <int POLICY> __device__ __forceinline__ uint4 get(const uint4* from) {
    uint4 out;
    if (POLICY == 0) return *from;
    if (POLICY == 1)
        asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                     : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w) : "l"(from), "l"(let_go()));
    if (POLICY == 2)
        asm volatile("ld.global.L2::64B.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w) : "l"(from));
    if (POLICY == 3)
        asm volatile("ld.global.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w) : "l"(from));
    return out;
}
template <int POLICY> __device__ __forceinline__ void put(uint4* to, uint4 x) {
    if (POLICY == 0) *to = x;
    if (POLICY == 1) __stcs(to, x);
    if (POLICY == 2) __stwt(to, x);
    if (POLICY == 3)
        asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(to), "r"(x.x), "r"(x.y), "r"(x.z),
                     "r"(x.w), "l"(let_go()) : "memory");
}
template <bool INVERSE, int HEADS, int LOAD, int STORE, int PROBE = 0, class E>
__device__ void hinted(E* x, const float* cos, const float* sin, int T, int H, int D, int R) {
    constexpr int PAIRS = 8 / sizeof(E);
    int t = blockIdx.x, first = blockIdx.y * blockDim.y * HEADS + threadIdx.y;
    auto head = [&](int k) {
        int h = first + k * blockDim.y;
        if (PROBE == 4) return reinterpret_cast<uint4*>(x + (size_t(t) * H + h) * R) + threadIdx.x;
        if (PROBE == 5) return reinterpret_cast<uint4*>(x + row(t, h | 1, H, D, R) - (h % 2 ? 0 : R)) + threadIdx.x;
        return reinterpret_cast<uint4*>(x + row(t, h, H, D, R)) + threadIdx.x;
    };
    uint4 packed[HEADS];
#pragma unroll
    for (int k = 0; k < HEADS; k++) {
        packed[k] = uint4{1, 2, 3, 4};
        if (PROBE != 3 && first + k * blockDim.y < H) packed[k] = get<LOAD>(head(k));
    }
    float c[PAIRS], s[PAIRS];
    size_t angle = angles(t, T, R) + threadIdx.x * PAIRS;
    table(cos + angle, c);
    table(sin + angle, s);
#pragma unroll
    for (int k = 0; k < HEADS; k++) {
        if (PROBE == 0) {
            float2 pairs[PAIRS];
            unpack(packed[k], pairs);
#pragma unroll
            for (int i = 0; i < PAIRS; i++) pairs[i] = turn<INVERSE>(pairs[i], c[i], s[i]);
            packed[k] = pack(pairs);
        }
        if (PROBE != 0) packed[k].x ^= c[0] + s[0] == 77.0f;
        if (PROBE == 2 && (packed[k].x ^ packed[k].y ^ packed[k].z ^ packed[k].w) != 0x12345677u) continue;
        if (first + k * blockDim.y < H) put<STORE>(head(k), packed[k]);
    }
}
template <bool INVERSE, bool RANGE, class E>
__device__ void turning(E* x, const float* cos, const float* sin, int T, int H, int D, int R) {
    constexpr int PAIRS = 8 / sizeof(E);
    int t0 = blockIdx.x, t1 = T, step = gridDim.x;
    if (RANGE) t0 = (long long)T * blockIdx.x / gridDim.x, t1 = (long long)T * (blockIdx.x + 1) / gridDim.x, step = 1;
    for (int t = t0; t < t1; t += step) {
        for (int first = threadIdx.y; first < H; first += blockDim.y * 8) {
            auto head = [&](int k) {
                return reinterpret_cast<uint4*>(x + row(t, first + k * blockDim.y, H, D, R)) + threadIdx.x;
            };
            uint4 packed[8];
#pragma unroll
            for (int k = 0; k < 8; k++) {
                if (first + k * blockDim.y < H) packed[k] = *head(k);
            }
            float c[PAIRS], s[PAIRS];
            size_t angle = angles(t, T, R) + threadIdx.x * PAIRS;
            table(cos + angle, c);
            table(sin + angle, s);
#pragma unroll
            for (int k = 0; k < 8; k++) {
                float2 pairs[PAIRS];
                unpack(packed[k], pairs);
#pragma unroll
                for (int i = 0; i < PAIRS; i++) pairs[i] = turn<INVERSE>(pairs[i], c[i], s[i]);
                if (first + k * blockDim.y < H) *head(k) = pack(pairs);
            }
        }
    }
}
// Only rows of 128 bytes, at most 128 heads.
template <bool INVERSE, class E>
__device__ void bulk(E* x, const float* cos, const float* sin, int T, int H, int D, int R) {
    constexpr int PAIRS = 8 / sizeof(E);
    alignas(128) __shared__ uint4 rows[128][8];
    __shared__ u64 arrival;
    int t = blockIdx.x, i = threadIdx.x;
    if (i == 0) {
        arrival_init(&arrival);
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(&arrival)), "r"(H * 128) : "memory");
    }
    __syncthreads();
    if (i < H)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         shared_address(rows[i])), "l"(x + row(t, i, H, D, R)), "r"(128), "r"(shared_address(&arrival)) : "memory");
    float c[PAIRS], s[PAIRS];
    size_t angle = angles(t, T, R) + i % 8 * PAIRS;
    table(cos + angle, c);
    table(sin + angle, s);
    arrival_wait(&arrival, 0);
    for (int h = i / 8; h < H; h += 16) {
        float2 pairs[PAIRS];
        unpack(rows[h][i % 8], pairs);
#pragma unroll
        for (int i = 0; i < PAIRS; i++) pairs[i] = turn<INVERSE>(pairs[i], c[i], s[i]);
        rows[h][i % 8] = pack(pairs);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (i < H) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(x + row(t, i, H, D, R)),
                     "r"(shared_address(rows[i])), "r"(128) : "memory");
        asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
    }
}

#define ENTRY(variant, direction, dtype, E, ...)                                                                       \
    extern "C" __global__ void rope_##variant##_##direction##_##dtype(E* x, const float* cos, const float* sin, int T, \
                                                                      int H, int D, int R) {                           \
        __VA_ARGS__(x, cos, sin, T, H, D, R);                                                                          \
    }
#define ENTRIES(direction, inverse, dtype, E)                                                                          \
    ENTRY(simple, direction, dtype, E, simple<inverse>)                                                                \
    ENTRY(vector, direction, dtype, E, vector<inverse, 1>)                                                             \
    ENTRY(heads, direction, dtype, E, vector<inverse, 8>) \
    ENTRY(h01, direction, dtype, E, hinted<inverse, 8, 0, 1>) \
    ENTRY(h02, direction, dtype, E, hinted<inverse, 8, 0, 2>) \
    ENTRY(h03, direction, dtype, E, hinted<inverse, 8, 0, 3>) \
    ENTRY(h10, direction, dtype, E, hinted<inverse, 8, 1, 0>) \
    ENTRY(h11, direction, dtype, E, hinted<inverse, 8, 1, 1>) \
    ENTRY(h12, direction, dtype, E, hinted<inverse, 8, 1, 2>) \
    ENTRY(h13, direction, dtype, E, hinted<inverse, 8, 1, 3>) \
    ENTRY(h20, direction, dtype, E, hinted<inverse, 8, 2, 0>) \
    ENTRY(h30, direction, dtype, E, hinted<inverse, 8, 3, 0>) \
    ENTRY(probe_dense, direction, dtype, E, hinted<inverse, 8, 0, 0, 4>) \
    ENTRY(probe_pairs, direction, dtype, E, hinted<inverse, 8, 0, 0, 5>) \
    ENTRY(probe_copy, direction, dtype, E, hinted<inverse, 8, 0, 0, 1>) \
    ENTRY(probe_reads, direction, dtype, E, hinted<inverse, 8, 0, 0, 2>) \
    ENTRY(probe_writes, direction, dtype, E, hinted<inverse, 8, 0, 0, 3>) \
    ENTRY(loop, direction, dtype, E, turning<inverse, false>) \
    ENTRY(range, direction, dtype, E, turning<inverse, true>) \
    ENTRY(w4, direction, dtype, E, vector<inverse, 4>) \
    ENTRY(w2, direction, dtype, E, vector<inverse, 2>) \
    ENTRY(n16, direction, dtype, E, vector<inverse, 16>) \
    ENTRY(bulk, direction, dtype, E, bulk<inverse>)

ENTRIES(forward, false, bf16, bf16)
ENTRIES(inverse, true, bf16, bf16)
ENTRIES(forward, false, f32, float)
ENTRIES(inverse, true, f32, float)
