// What lies between the operations of `served`, fused: norms, RoPE, codes, bfloat16, and the records of this token.
//
// All let the next launch start at once, and read and write nothing but weights before the launches before have ended.
#pragma once

#include "decode_step/eight.cuh"
#include "decode_step/indexed.cuh"
#include "decode_step/operations.cuh"

__device__ __forceinline__ void to_half(bf16 &to, float x) {
#ifdef MUTANT_HALF_CUT
    to.bits = (u16)(__float_as_uint(x) >> 16);
#else
    from_f32(to, x);
#endif
}

// Four numbers as bfloat16.
__device__ __forceinline__ uint2 to_halves(float4 x) {
    bf16 half[4];
    to_half(half[0], x.x), to_half(half[1], x.y), to_half(half[2], x.z), to_half(half[3], x.w);
    return make_uint2(half[0].bits | (u32)half[1].bits << 16, half[2].bits | (u32)half[3].bits << 16);
}

// A CTA of four warps has four blocks of columns where each warp has one.
constexpr int CODING = 4;

__device__ __forceinline__ int block_of_warp() {
    return blockIdx.x * CODING + threadIdx.x / 32;
}

template <class F> __device__ __forceinline__ int blocks_of(int cols) {
    return (cols + F::width - 1) / F::width;
}

// Attention's input as codes, and as bfloat16.
template <class F>
__device__ __forceinline__ void input(const float *x, u8 *codes, typename F::Stored *scales, bf16 *half, int cols) {
    const int block = block_of_warp(), blocks = blocks_of<F>(cols);
    launch_dependent_grids();
    wait_on_dependent_grids();
    if (block >= blocks)
        return;
    const size_t row = blockIdx.y;
    x += row * cols, half += row * cols;
    code_block<F>(block, cols, codes + row * cols, scales + row * blocks + block, [=](int, int col) {
        to_half(half[col], x[col]);
        return x[col];
    });
}

// A low-rank query: its norm, and codes of it. A warp has a block of columns. `kept` may be null.
template <class F>
__device__ __forceinline__ void low_query(const float *x, const float *weight, float *kept, u8 *codes, typename F::Stored *scales,
                                          int cols, float eps) {
    __shared__ float partials[32];
    const size_t row = blockIdx.x;
    const int block = threadIdx.x / 32, blocks = blocks_of<F>(cols), first = block * F::width + threadIdx.x % 32;
    x += row * cols;
    float weights[F::width / 32], values[F::width / 32], sum = 0.0f;
    launch_dependent_grids();
#pragma unroll
    for (int i = 0; i < F::width / 32; i++)
        weights[i] = first + 32 * i < cols ? weight[first + 32 * i] : 0.0f;
    wait_on_dependent_grids();
#pragma unroll
    for (int i = 0; i < F::width / 32; i++) {
        values[i] = first + 32 * i < cols ? x[first + 32 * i] : 0.0f;
        sum = fmaf(values[i], values[i], sum);
    }
    sum = block_sum(sum, partials);
#ifdef MUTANT_NORM_OF_FIRST_WARP
    sum = partials[0];
#endif
    const float inverse = 1.0f / sqrtf(sum / cols + eps);
    code_block<F>(block, cols, codes + row * cols, scales + row * blocks + block, [&](int i, int col) {
        const float y = values[i] * weights[i] * inverse;
        if (kept != nullptr)
            kept[row * cols + col] = y;
        return y;
    });
}

// Rotates a pair by an angle.
__device__ __forceinline__ float2 rotate(float2 x, float cos, float sin) {
    return make_float2(x.x * cos - x.y * sin, x.y * cos + x.x * sin);
}

// Stores a vector as the record of a slot, as `record_write.simple` does, and nothing for a slot of -1. A thread has four channels, in
// bfloat16; whole warps have whole blocks of them.
template <class R> __device__ __forceinline__ void store_record(u8 *pages, int slot, int channel, uint2 halves) {
    const float2 low = from_bf16x2(halves.x), high = from_bf16x2(halves.y);
    const float x[4] = {low.x, low.y, high.x, high.y};
    u32 largest = 0;
#pragma unroll
    for (int i = 0; i < 4 && channel < R::CODED; i++)
        largest = record_write_file::amax(largest, x[i]);
    // The lanes that have a block.
    largest = lanes_max<R::BLOCK / 4>(largest);
    if (slot < 0)
        return;
    const auto [row, tail] = token_at<R>(pages, slot);
    record_write_file::store_padding<R>(tail, channel / 4);
    if (channel >= R::CODED) {
        *(uint2 *)(row + R::BF16 + 2 * (channel - R::CODED)) = halves;
        return;
    }
    const auto scale = R::Rule::template scale<typename R::Element>(largest, {});
    if (channel % R::BLOCK == 0)
        ((typename R::Stored *)(tail + R::SCALES))[channel / R::BLOCK] = scale;
    const float factor = R::Rule::factor(scale, {});
    const auto pair = [=](int i) {
        const float a = record_write_file::scaled<R>(x[i], factor), b = record_write_file::scaled<R>(x[i + 1], factor);
        if constexpr (R::Element::bits == 8)
            return E4m3::encode2(a, b);
        else
            return E2m1::encode(a) | E2m1::encode(b) << 4;
    };
    if constexpr (R::Element::bits == 8)
        *(u32 *)(row + channel) = pair(0) | pair(2) << 16;
    else
        *(u16 *)(row + channel / 2) = pair(0) | pair(2) << 8;
}

// Norm and RoPE of every head of a query, and of the vector of the window, which comes after them and whose norm has weights. Heads
// become bfloat16, and the vector a record; the f32 numbers may go nowhere.
template <class R>
__device__ __forceinline__ void head_norm(const float *raw_query, const float *raw_kv, const float *kv_weight, const float *cos,
                                          const float *sin, float *query, bf16 *half_query, float *kv, const int *slots,
                                          u8 *pages, int heads, int turning, float eps) {
    constexpr int D = R::DIM;
    __shared__ float partials[32];
    const size_t row = blockIdx.y, head = row * heads + blockIdx.x;
    const bool of_window = blockIdx.x == heads;
    const int channel = threadIdx.x * 4;
    const size_t first = (of_window ? row : head) * D + channel;
    launch_dependent_grids();
    float4 weight = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
    if (of_window)
        weight = *(const float4 *)(kv_weight + channel);
    wait_on_dependent_grids();
    const float4 x = *(const float4 *)((of_window ? raw_kv : raw_query) + first);
    const int slot = of_window ? slots[row] : -1;
    float c[2] = {1.0f, 1.0f}, s[2] = {};
    const bool turns = channel >= D - turning;
    if (turns) {
        const size_t at = row * (turning / 2) + (channel - (D - turning)) / 2;
        c[0] = cos[at], c[1] = cos[at + 1], s[0] = sin[at], s[1] = sin[at + 1];
    }
    const float sum = block_sum(fmaf(x.x, x.x, fmaf(x.y, x.y, fmaf(x.z, x.z, x.w * x.w))), partials);
    const float inverse = 1.0f / sqrtf(sum / D + eps);
    float2 low = make_float2(x.x * weight.x * inverse, x.y * weight.y * inverse);
    float2 high = make_float2(x.z * weight.z * inverse, x.w * weight.w * inverse);
    if (turns)
        low = rotate(low, c[0], s[0]), high = rotate(high, c[1], s[1]);
    float *const kept = of_window ? kv : query;
    const float4 y = make_float4(low.x, low.y, high.x, high.y);
    if (kept != nullptr)
        *(float4 *)(kept + first) = y;
    const uint2 halves = to_halves(y);
    if (of_window)
        store_record<R>(pages, slot, channel, halves);
    else
        *(uint2 *)(half_query + first) = halves;
}

#define RECORD_ENTRIES(R)                                                                                                      \
    KERNEL(decode_step_head_norm_##R, __launch_bounds__(128))(                                                                 \
        const float *raw_query, const float *raw_kv, const float *kv_weight, const float *cos, const float *sin, float *query, \
        bf16 *half_query, float *kv, const int *slots, u8 *pages, int heads, int turning, float eps) {                         \
        head_norm<R>(raw_query, raw_kv, kv_weight, cos, sin, query, half_query, kv, slots, pages, heads, turning, eps);        \
    }
FOR_RECORDS_ON_TENSOR_CORES(RECORD_ENTRIES)
#undef RECORD_ENTRIES

// What attention gives, RoPE undone, as codes: those of a group [B, cols] follow those of the group before. `kept` [B, groups, cols] may
// be null.
template <class F>
__device__ __forceinline__ void heads(const bf16 *x, const float *cos, const float *sin, float *kept, u8 *codes,
                                      typename F::Stored *scales, int cols, int dim, int rotated) {
    const int block = block_of_warp(), blocks = blocks_of<F>(cols);
    const int group = blockIdx.y, row = blockIdx.z, groups = gridDim.y, rows = gridDim.z;
    launch_dependent_grids();
    wait_on_dependent_grids();
    if (block >= blocks)
        return;
    constexpr int EACH = F::width / 32;
    const size_t from = ((size_t)row * groups + group) * cols, to = (size_t)group * rows + row;
    const int first = block * F::width + threadIdx.x % 32;
    cos += (size_t)row * (rotated / 2), sin += (size_t)row * (rotated / 2);
    // All loads come before what is made of them.
    float y[EACH], c[EACH], s[EACH];
    bool turns[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int col = first + 32 * i, channel = (group * cols + col) % dim - (dim - rotated);
        turns[i] = col < cols && channel >= 0;
        y[i] = col < cols ? to_f32(x[from + col]) : 0.0f;
        c[i] = turns[i] ? cos[channel / 2] : 0.0f;
        s[i] = turns[i] ? sin[channel / 2] : 0.0f;
#ifndef MUTANT_HEADS_TURNED_ON
        s[i] = -s[i];
#endif
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const bool even = threadIdx.x % 2 == 0;
        const float other = __shfl_xor_sync(0xffffffff, y[i], 1);
        const float2 pair = rotate(even ? make_float2(y[i], other) : make_float2(other, y[i]), c[i], s[i]);
        if (turns[i])
            y[i] = even ? pair.x : pair.y;
    }
    code_block<F>(block, cols, codes + to * cols, scales + to * blocks + block, [&](int i, int col) {
        if (kept != nullptr)
            kept[from + col] = y[i];
        return y[i];
    });
}

// Four columns of a block as codes, by each lane of a warp that has the block.
template <class F> __device__ __forceinline__ u32 four_codes(float4 x, int block, int cols, typename F::Stored *scale) {
    static_assert(F::width == 4 * 32, "a warp has a block");
    const float values[4] = {x.x, x.y, x.z, x.w};
    const float factor = factor_of_block<F>(values, block, cols, scale);
    u32 four = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        four |= (u32)code_of<F>(values[i] * factor) << 8 * i;
    return four;
}

#if __CUDA_ARCH__ == 900
// What `heads` does with what attention gives, where it is added up: the numbers are rounded to bfloat16 all the same.
template <class F> struct ToHeadCodes {
    static constexpr int D = 512;
    const float *cos, *sin;
    float *kept;
    u8 *codes;
    typename F::Stored *scales;
    int rows, heads, cols, rotated;

    __device__ __forceinline__ void store(int row, int head, int channel, float4 x) const {
        const uint2 halves = to_bf16x4(x);
        float2 low = from_bf16x2(halves.x), high = from_bf16x2(halves.y);
        const int turning = channel - (D - rotated);
        if (turning >= 0) {
            const size_t pair = ((size_t)row * rotated + turning) / 2;
#ifdef MUTANT_HEADS_TURNED_ON
            const float back = 1.0f;
#else
            const float back = -1.0f;
#endif
            low = rotate(low, cos[pair], back * sin[pair]), high = rotate(high, cos[pair + 1], back * sin[pair + 1]);
        }
        const float4 y = make_float4(low.x, low.y, high.x, high.y);
        if (kept != nullptr)
            *(float4 *)(kept + ((size_t)row * heads + head) * D + channel) = y;
        const int col = head * D + channel, in_group = col % cols, block = in_group / F::width;
        const size_t to = (size_t)(col / cols) * rows + row;
        const u32 four = four_codes<F>(y, block, cols, scales + to * blocks_of<F>(cols) + block);
        *(u32 *)(codes + to * cols + in_group) = four;
    }
};

#define ATTEND_ENTRIES(R)                                                                                                        \
    KERNEL(decode_step_attend_##R, __launch_bounds__(512, 1))(const bf16 *q, RECORD_PARTS, const float *sinks, const float *cos, \
                                                              const float *sin, float *kept, u8 *codes, float *scales, int rows, \
                                                              int cols, int rotated, RECORD_SIZES) {                             \
        using record_attention_file::Part;                                                                                       \
        const ToHeadCodes<fp8_b128_f32> to = {cos, sin, kept, codes, scales, rows, heads, cols, rotated};                        \
        record_attention_file::few_heads::attend<16, 160, R>(q, RECORD_BOTH, sinks, to, heads, scale);                           \
    }
FOR_RECORDS_ON_TENSOR_CORES(ATTEND_ENTRIES)
#undef ATTEND_ENTRIES
#endif

// Low-rank heads [groups, B, rank] as codes [B, groups · rank].
template <class F>
__device__ __forceinline__ void low_heads(const float *x, u8 *codes, typename F::Stored *scales, int groups, int rank) {
    const int row = blockIdx.y, rows = gridDim.y, cols = groups * rank, block = block_of_warp(), blocks = blocks_of<F>(cols);
    launch_dependent_grids();
    wait_on_dependent_grids();
    if (block >= blocks)
        return;
    code_block<F>(block, cols, codes + (size_t)row * cols, scales + (size_t)row * blocks + block,
                  [=](int, int col) { return x[((size_t)(col / rank) * rows + row) * rank + col % rank]; });
}

KERNEL(decode_step_input_fp8_b128_f32, __launch_bounds__(32 * CODING))(const float *x, u8 *codes, float *scales, bf16 *half,
                                                                       int cols) {
    input<fp8_b128_f32>(x, codes, scales, half, cols);
}

KERNEL(decode_step_low_fp8_b128_f32, __launch_bounds__(1024))(const float *x, const float *weight, float *kept, u8 *codes,
                                                              float *scales, int cols, float eps) {
    low_query<fp8_b128_f32>(x, weight, kept, codes, scales, cols, eps);
}

KERNEL(decode_step_low_heads_fp8_b128_f32, __launch_bounds__(32 * CODING))(const float *x, u8 *codes, float *scales, int groups,
                                                                           int rank) {
    low_heads<fp8_b128_f32>(x, codes, scales, groups, rank);
}

// Four numbers of a row as bfloat16, for each thread.
KERNEL(decode_step_half, __launch_bounds__(256))(const float *from, bf16 *to, int cols) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    const size_t first = (size_t)blockIdx.y * cols;
    for (int i = 0; i < 4; i++) {
        const int col = blockIdx.x * 1024 + i * 256 + threadIdx.x;
        if (col < cols)
            to_half(to[first + col], from[first + col]);
    }
}
