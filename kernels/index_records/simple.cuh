// What both variants share, and the one that copies nothing ahead.
#pragma once

#include "record/layout.cuh"
#include "wgmma/widths.cuh"

constexpr int CHANNELS = 128;

// How keys of a record are multiplied: FP8 codes as they are, with the key's scale after the sum; MXFP4 decoded to bfloat16.
template <class R> struct Keys;
template <> struct Keys<index_fp8> {
    typedef Fp8 Operand;
    static constexpr int TILES = 1, STEPS = 4;
};
template <> struct Keys<index_mxfp4> {
    typedef Bf16 Operand;
    static constexpr int TILES = 2, STEPS = 8;
};

// Tiles of 64 rows of 128 bytes with the 128-byte swizzle.
constexpr int TILE = 64 * 128;

__device__ __forceinline__ int swizzled(int row, int chunk) {
    return row * 128 + ((chunk ^ row) & 7) * 16;
}

template <class R> __device__ constexpr int steps() {
#ifdef MUTANT_LAST_STEP_SKIPPED
    return Keys<R>::STEPS - 1;
#else
    return Keys<R>::STEPS;
#endif
}

// The slot of a page from which a key takes its scales.
__device__ __forceinline__ int scales_of(int slot) {
#ifdef MUTANT_NEIGHBOURS_SCALE
    return slot ^ 1;
#else
    return slot;
#endif
}

__device__ __forceinline__ size_t page_at(const int *table, int row, int width, int page) {
    const size_t at = size_t(row) * width + page;
#ifdef MUTANT_TABLE_IGNORED
    return at;
#else
    return table[at];
#endif
}

// Tensor cores give no -0, so that a product that is not below 0 is as it was.
__device__ __forceinline__ float relu(float product) {
#if defined(MUTANT_RELU_LEFT_OUT)
    return product;
#elif defined(MUTANT_NAN_DROPPED)
    return fmaxf(product, 0.0f);
#else
    return max_nan(product, 0.0f);
#endif
}

__device__ __forceinline__ float head_weight(const float *head_weights, int row, int heads, int head, float scale) {
#ifdef MUTANT_WEIGHTS_OF_ROW_0
    row = 0;
#endif
#ifdef MUTANT_LAST_HEAD_LOST
    if (head == heads - 1)
        return 0.0f;
#endif
    return head_weights[size_t(row) * heads + head] * scale;
}

// The sum over the four lanes of a key.
__device__ __forceinline__ float over_lanes(float x) {
#ifdef MUTANT_HEADS_IN_ONE_ORDER
    const int first = threadIdx.x % 32 & ~3;
    float sum = __shfl_sync(0xffffffff, x, first);
    for (int i = 1; i < 4; i++)
        sum += __shfl_sync(0xffffffff, x, first + i);
    return sum;
#else
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
#endif
}

// Writes a score, or minus infinity where a row may not see the entry.
__device__ __forceinline__ void put(float *scores, int row, int entries, int entry, int seen, float score) {
#ifdef MUTANT_ONE_ENTRY_TOO_MANY
    const bool visible = entry <= seen;
#else
    const bool visible = entry < seen;
#endif
#ifdef MUTANT_REST_LEFT_AS_IT_WAS
    if (!visible)
        return;
#endif
    if (entry < entries)
        scores[size_t(row) * entries + entry] = visible ? score : -__int_as_float(0x7f800000);
}

// ---- staging without haste

__device__ __forceinline__ void stage_keys(index_fp8, u8 *tile, const u8 *page, int valid) {
    for (int i = threadIdx.x; i < 64 * 8; i += 128) {
        const int row = i / 8, chunk = i % 8;
        uint4 bytes = make_uint4(0, 0, 0, 0);
        if (row < valid)
            bytes = *(const uint4 *)(page + row * 128 + chunk * 16);
        *(uint4 *)(tile + swizzled(row, chunk)) = bytes;
    }
}

__device__ __forceinline__ void stage_keys(index_mxfp4, u8 *tiles, const u8 *page, int valid) {
    for (int i = threadIdx.x; i < 64 * 64; i += 128) {
        const int row = i / 64, byte = i % 64;
        u32 pair = 0;
        if (row < valid) {
            const u32 codes = page[i];
            const float scale = e8m0(page[PAGE * index_mxfp4::ROW + min(scales_of(row), valid - 1) * 4 + byte / 16]);
            pair = to_bf16x2(E2m1::decode(codes & 15) * scale, E2m1::decode(codes >> 4) * scale);
        }
        *(u32 *)(tiles + byte / 32 * TILE + swizzled(row, byte % 32 / 4) + byte % 4 * 4) = pair;
    }
}

// 64 heads from `first` on; those after the last are zeros.
template <int TILES> __device__ __forceinline__ void stage_heads(u8 *tiles, const u8 *q, int first, int heads) {
    constexpr int CHUNKS = TILES * 8;
    for (int i = threadIdx.x; i < 64 * CHUNKS; i += 128) {
        const int head = i / CHUNKS, chunk = i % CHUNKS;
        uint4 bytes = make_uint4(0, 0, 0, 0);
        if (first + head < heads)
            bytes = *(const uint4 *)(q + size_t(first + head) * TILES * 128 + chunk * 16);
        *(uint4 *)(tiles + chunk / 8 * TILE + swizzled(head, chunk % 8)) = bytes;
    }
}

__device__ __forceinline__ float key_scale(index_fp8, const u8 *scales, int slot) {
    return ((const float *)scales)[slot];
}

__device__ __forceinline__ float key_scale(index_mxfp4, const u8 *, int) {
    return 1.0f;
}

template <class R>
__device__ void simple(const u8 *q, const float *head_weights, const u8 *pages, const int *table, const int *count, float *scores,
                       int B, int H, int N, float scale) {
    constexpr int TILES = Keys<R>::TILES;
    __shared__ __align__(1024) u8 key_tiles[TILES * TILE];
    __shared__ __align__(1024) u8 head_tiles[TILES * TILE];
    const int width = (N + PAGE - 1) / PAGE, page = blockIdx.x, first = page * PAGE;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slot = warp * 16 + lane / 4;
    for (int row = blockIdx.y; row < B; row += gridDim.y) {
        const int seen = count[row], valid = min(seen - first, PAGE);
        float score[2] = {0.0f, 0.0f}, by[2] = {1.0f, 1.0f};
        if (valid > 0) {
#ifdef MUTANT_POOL_OFFSET_32
            const u8 *const from = pages + u32(page_at(table, row, width, page) * page_bytes<R>);
#else
            const u8 *const from = pages + page_at(table, row, width, page) * page_bytes<R>;
#endif
            stage_keys(R(), key_tiles, from, valid);
            for (int half = 0; half < 2; half++)
                by[half] = key_scale(R(), from + PAGE * R::ROW, min(scales_of(slot + 8 * half), valid - 1));
            for (int head = 0; head < H; head += 64) {
                stage_heads<TILES>(head_tiles, q + size_t(row) * H * TILES * 128, head, H);
                fence_proxy_async_smem();
                __syncthreads();
                float sums[32];
#pragma unroll
                for (int i = 0; i < 32; i++)
                    sums[i] = 0.0f;
                wgmma_fence();
#pragma unroll
                for (int step = 0; step < steps<R>(); step++) {
                    const int tile = step / 4 * TILE;
                    Step<typename Keys<R>::Operand, 64>::shared(sums,
                                                                wgmma_descriptor(smem_address(key_tiles + tile)) + step % 4 * 2,
                                                                wgmma_descriptor(smem_address(head_tiles + tile)) + step % 4 * 2);
                }
                wgmma_commit_group();
                wgmma_wait_group<0>();
#pragma unroll
                for (int i = 0; i < 16; i++) {
                    const int at = head + i / 2 * 8 + lane % 4 * 2 + i % 2;
                    if (at < H) {
                        const float weight = head_weight(head_weights, row, H, at, scale);
                        for (int half = 0; half < 2; half++)
                            score[half] = fmaf(weight, relu(sums[i / 2 * 4 + 2 * half + i % 2]), score[half]);
                    }
                }
                // All warps are past the products before anything is staged again.
                __syncthreads();
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float sum = over_lanes(score[half]) * by[half];
            if (lane % 4 == 0)
                put(scores, row, N, first + slot + 8 * half, seen, sum);
        }
    }
}
