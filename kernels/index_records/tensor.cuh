// 64 heads. Each warpgroup of four goes through its own range of pages, of all rows one after the other, with a ring of pages of its own.
// L2 evicts pages first, which are read once: without that hint, eight rows of 262,144 keys take 75.0 us on an H200, and 70.1 with it; and
// 69.4 if two pages of FP8 are on their way in the place of three (a kernel that only copies the pages to shared memory: 69.9).
#pragma once

#include "index_records/simple.cuh"
#include "lib/tma.cuh"

constexpr int GROUPS = 4, HEADS = 64;

// The shared memory of a warpgroup: heads, pages, and the scales of pages.
template <class R> struct Ring {
    static constexpr int CODES = PAGE * R::ROW, SCALES = PAGE * 4, Q = Keys<R>::TILES * TILE;
    // Pages that are there or on their way.
    static constexpr int STAGES = R::ROW == 128 ? 3 : 4;
    // Tiles begin at multiples of 1024 bytes.
    static constexpr int BYTES = (Q + STAGES * (CODES + SCALES) + 1023) / 1024 * 1024;
    static_assert(GROUPS * BYTES <= 135168, "launch.shared in the header");
    u32 heads;

    __device__ __forceinline__ u32 codes(int item) const {
        return heads + Q + item % STAGES * CODES;
    }
    __device__ __forceinline__ u32 scales(int item) const {
        return heads + Q + STAGES * CODES + item % STAGES * SCALES;
    }
};

__device__ __forceinline__ void st_shared(u32 to, uint4 x) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}

__device__ __forceinline__ u32 ld_shared(u32 from) {
    u32 x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
    return x;
}

__device__ __forceinline__ u32 ld_shared_u16(u32 from) {
    u16 x;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(from) : "memory");
    return x;
}

// ---- heads

__device__ __forceinline__ void stage_heads(index_fp8, u32 tile, const u8 *q, int thread) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int head = thread / 8 + 16 * i, chunk = thread % 8;
        st_shared(tile + swizzled(head, chunk), *(const uint4 *)(q + head * 128 + chunk * 16));
    }
}

// A thread gets four neighbours of 16 channels, as two pairs that the instruction takes as channels 2 l and 2 l + 8 and the next. So
// the first pairs of all lanes come first.
__device__ __forceinline__ void stage_heads(index_mxfp4, u32 tiles, const u8 *q, int thread) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int head = thread / 8 + 16 * i, step = thread % 8, chunk = step % 4 * 2;
        const uint4 *const from = (const uint4 *)(q + head * 256 + step * 32);
        const uint4 a = from[0], b = from[1];
        const u32 tile = tiles + step / 4 * TILE;
        st_shared(tile + swizzled(head, chunk), make_uint4(a.x, a.z, b.x, b.z));
        st_shared(tile + swizzled(head, chunk + 1), make_uint4(a.y, a.w, b.y, b.w));
    }
}

// ---- pages

// Copies 16 bytes that are read once, or writes zeros where there are none.
__device__ __forceinline__ void copy_once(u32 to, const u8 *from, bool valid, u64 policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0),
                 "l"(policy)
                 : "memory");
}

__device__ __forceinline__ void load_codes(index_fp8, u32 to, const u8 *page, int valid, int thread) {
    const int chunk = thread % 8, row = thread / 8;
    const u64 policy = evict_first_policy();
#pragma unroll
    for (int i = 0; i < 64; i += 16)
        copy_once(to + swizzled(row + i, chunk), page + (row + i) * 128 + chunk * 16, row + i < valid, policy);
}

// Rows of 64 bytes, whose chunks are exchanged so that eight rows are in different banks.
__device__ __forceinline__ void load_codes(index_mxfp4, u32 to, const u8 *page, int valid, int thread) {
    const int chunk = thread % 4, row = thread / 4;
    const u64 policy = evict_first_policy();
#pragma unroll
    for (int i = 0; i < 64; i += 32)
        copy_once(to + (row + i) * 64 + ((chunk ^ row / 2) & 3) * 16, page + (row + i) * 64 + chunk * 16, row + i < valid,
                  policy);
}

// ---- products

__device__ __forceinline__ void multiply(index_fp8, float (&sums)[32], const Ring<index_fp8> &ring, int item, int, int) {
    const u64 keys = wgmma_descriptor(ring.codes(item)), heads = wgmma_descriptor(ring.heads);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < steps<index_fp8>(); step++)
        Step<Fp8, 64>::shared(sums, keys + step * 2, heads + step * 2);
}

// The scale 2^(code − 127) as a pair of bfloat16.
__device__ __forceinline__ u32 scale_pair(u32 code) {
    return (code == 0 ? 0x40 : code == 255 ? 0x7fff : code << 7) * 0x10001;
}

// Four codes as two pairs of bfloat16: first times 2^126, then times the scale, both exact.
__device__ __forceinline__ void decode(u32 codes, u32 scale, u32 &first, u32 &second) {
    const u32 spread = codes | codes << 12;
    const u32 low = (spread << 6 & 0x01c001c0) | (spread << 12 & 0x80008000);
    const u32 high = (spread >> 2 & 0x01c001c0) | (spread << 4 & 0x80008000);
    first = times_bf16x2(times_bf16x2(low, 0x7e807e80), scale), second = times_bf16x2(times_bf16x2(high, 0x7e807e80), scale);
}

__device__ __forceinline__ void multiply(index_mxfp4, float (&sums)[32], const Ring<index_mxfp4> &ring, int item, int slot,
                                         int lane) {
    u32 keys[8][4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = slot + 8 * half;
        const u32 scales = ld_shared(ring.scales(item) + scales_of(row) * 4);
        const u32 codes = ring.codes(item) + row * 64 + lane % 4 * 2;
#pragma unroll
        for (int block = 0; block < 4; block++) {
            const u32 scale = scale_pair(scales >> 8 * block & 255);
            const u32 at = codes + ((block ^ row / 2) & 3) * 16;
#pragma unroll
            for (int i = 0; i < 2; i++)
                decode(ld_shared_u16(at + i * 8), scale, keys[2 * block + i][half], keys[2 * block + i][2 + half]);
        }
    }
    const u64 heads = wgmma_descriptor(ring.heads);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < steps<index_mxfp4>(); step++)
        Step<Bf16, 64>::registers(sums, keys[step], heads + step / 4 * (TILE / 16) + step % 4 * 2);
}

__device__ __forceinline__ float scale_after(index_fp8, const Ring<index_fp8> &ring, int item, int slot) {
    return __uint_as_float(ld_shared(ring.scales(item) + scales_of(slot) * 4));
}

__device__ __forceinline__ float scale_after(index_mxfp4, const Ring<index_mxfp4> &, int, int) {
    return 1.0f;
}

template <class R>
__device__ void tensor(const u8 *q, const float *head_weights, const u8 *pages, const int *table, const int *count, float *scores,
                       int B, int N, float scale) {
    extern __shared__ __align__(1024) u8 shared[];
    // The compiler must see that all threads of a warp go the same way.
    const int group = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    const int thread = threadIdx.x % 128, lane = thread % 32, slot = thread / 32 * 16 + lane / 4;
    constexpr int STAGES = Ring<R>::STAGES;
    const int width = (N + PAGE - 1) / PAGE;
    const Ring<R> ring = {smem_address(shared) + group * Ring<R>::BYTES};

    // Items are pages, of the first row first. Which warpgroup has one makes no difference to its bits.
    const u64 all = u64(B) * width, groups = gridDim.x * GROUPS, mine = blockIdx.x * GROUPS + group;
    const u64 begin = all * mine / groups;
    const int items = int(all * (mine + 1) / groups - begin);

    wait_on_dependent_grids();
    launch_dependent_grids();

    // The page that is to be copied next, and what its copy needs, which is read well before.
    int next_row = int(begin / width), next_page = int(begin % width);
    const auto advance = [&](int &row, int &page) {
        if (++page == width)
            page = 0, row++;
    };
    const auto copy = [&](int item, int page, int seen, size_t physical) {
        const int valid = seen - page * PAGE;
        if (item < items && valid > 0) {
#ifdef MUTANT_POOL_OFFSET_32
            const u8 *const from = pages + u32(physical * page_bytes<R>);
#else
            const u8 *const from = pages + physical * page_bytes<R>;
#endif
            load_codes(R(), ring.codes(item), from, valid, thread);
            if (thread < 16)
                cp_async_16_zfill(ring.scales(item) + thread * 16, from + Ring<R>::CODES + thread * 16, thread * 4 < valid);
        }
        cp_async_commit_group();
    };
    int row = next_row, page = next_page;
    int first_page[STAGES], first_seen[STAGES];
    size_t first_physical[STAGES];
#pragma unroll
    for (int i = 0; i < STAGES; i++) {
        first_page[i] = next_page, first_seen[i] = 0, first_physical[i] = 0;
        if (i < items) {
            first_seen[i] = count[next_row], first_physical[i] = page_at(table, next_row, width, next_page);
            advance(next_row, next_page);
        }
    }
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++)
        copy(i, first_page[i], first_seen[i], first_physical[i]);
    int copied_page = first_page[STAGES - 1], copied_seen = first_seen[STAGES - 1];
    size_t physical = first_physical[STAGES - 1];

    int of_query = -1, seen = 0;
    float weights[16];
    for (int item = 0; item < items; item++) {
        if (row != of_query) {
            // All warps are past the products with the query before.
            named_barrier_sync(1 + group, 128);
            seen = count[row];
#ifdef MUTANT_QUERY_KEPT
            if (of_query < 0)
#endif
                stage_heads(R(), ring.heads, q + size_t(row) * HEADS * Keys<R>::TILES * 128, thread);
#pragma unroll
            for (int i = 0; i < 16; i++)
                weights[i] = head_weight(head_weights, row, HEADS, i / 2 * 8 + lane % 4 * 2 + i % 2, scale);
            of_query = row;
        }
        cp_async_wait_group<STAGES - 2>();
        fence_proxy_async_smem();
        named_barrier_sync(1 + group, 128);
        // All warps are past the item before this one, whose place is free.
        copy(item + STAGES - 1, copied_page, copied_seen, physical);
        if (item + STAGES < items) {
            copied_page = next_page, copied_seen = count[next_row];
            physical = page_at(table, next_row, width, next_page);
            advance(next_row, next_page);
        }

        float score[2] = {0.0f, 0.0f};
        if (page * PAGE < seen) {
            float sums[32];
#pragma unroll
            for (int i = 0; i < 32; i++)
                sums[i] = 0.0f;
            multiply(R(), sums, ring, item, slot, lane);
            wgmma_commit_group();
            wgmma_wait_group<0>();
#pragma unroll
            for (int i = 0; i < 16; i++) {
#pragma unroll
                for (int half = 0; half < 2; half++)
                    score[half] = fmaf(weights[i], relu(sums[i / 2 * 4 + 2 * half + i % 2]), score[half]);
            }
#pragma unroll
            for (int half = 0; half < 2; half++)
                score[half] = over_lanes(score[half]) * scale_after(R(), ring, item, slot + 8 * half);
        }
        if (lane % 4 == 0) {
#pragma unroll
            for (int half = 0; half < 2; half++)
                put(scores, row, N, page * PAGE + slot + 8 * half, seen, score[half]);
        }
        advance(row, page);
    }
}
