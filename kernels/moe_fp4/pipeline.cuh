// The products of both launches: a producer warp copies stages of 256 columns, in bulk, and two consumer warpgroups multiply 64
// rows of a matrix each by the tokens of a tile. Weights go into the registers that wgmma takes as A.
//
// An item is a tile of tokens and a block of 128 rows; thread blocks take items in turn, and the producer goes on to the next
// while consumers are at the last. Two thread blocks share a multiprocessor.
//
// The budget of a multiprocessor for MXFP4 weights at the rate of a copy, 4.27 TB/s on 132 multiprocessors of 1.8 GHz: 18 bytes
// or 34 codes a cycle. A register of A has 64 codes, two for each lane of a warp, so there are 0.53 of them in a cycle, and in
// each:
//   integer units   2 instructions in all; four registers need 5 shifts and 6 logical operations, or 1.5 in a cycle; the compiler
//                   may make multiplications of shifts to the left
//   issue           4 instructions; besides these a multiplication for each register and half an instruction for scales,
//                   2.3 in all; an NVFP4 register takes two multiplications and 1.5 instructions for scales, 3.3 in all
//   tensor cores    an m64n16k16 takes 16 registers: one in 30 cycles
//   in flight       3 stages of 17 KB of either thread block, 104 KB; 4.27 TB/s times 1 us are 32 KB
// So at 0.7 of the rate half to three quarters of the integer units are busy. Nothing here was measured.
#pragma once

#include "moe_fp4/layout.cuh"

constexpr int CONSUMERS = 256, THREADS = CONSUMERS + 32;
constexpr int STAGES = 4;
// Chunks of 64 columns of a stage, and of a part that is summed from 0.
constexpr int CHUNKS = 4, PART_CHUNKS = STAGES * CHUNKS;

// Bytes of a stage: weights, and then tokens, of which groups of eight have CHUNKS times 1 KB each.
template <class F> constexpr int STAGE_WEIGHTS = CHUNKS * UNIT_BYTES<F>;
template <class F> constexpr int STAGE_BYTES = STAGE_WEIGHTS<F> + TOKENS / 8 * CHUNKS * 1024;

// What a launch multiplies: for all experts, `blocks` of 128 packed rows, and tokens of K columns.
struct Operands {
    const u8 *tokens;
    const int4 *tiles;
    const int2 *order;
    const u8 *packed;
    const u32 *general;
    int blocks, K;

    __device__ __forceinline__ int chunks() const {
#ifdef MUTANT_TAIL_SKIPPED
        return max(K / 64, 1);
#else
        return (K + 63) / 64;
#endif
    }
    __device__ __forceinline__ int packed_chunks() const {
        return (K + 63) / 64;
    }
    __device__ __forceinline__ int4 tile(int number) const {
        const uint4 tile = ld_relaxed((const uint4 *)tiles + number);
        return make_int4(tile.x, tile.y, tile.z, tile.w);
    }
    __device__ __forceinline__ int items() const {
        return ld_relaxed((const u32 *)tiles) * blocks;
    }
};

// The parities of the slots of the ring. A part fills them all, and each begins with the first, so that consumers know addresses when
// they are compiled; what a part that is not whole leaves out stays empty.
struct Parities {
    u32 bits = 0;

    __device__ __forceinline__ u32 of(int slot) const {
        return bits >> slot & 1;
    }
    __device__ __forceinline__ void next(int slot) {
        bits ^= 1u << slot;
    }
};

struct Ring {
    u8 *stages;
    u64 *full, *empty;

    // By all threads.
    __device__ __forceinline__ Ring(u8 *stages, u64 *barriers) : stages(stages), full(barriers), empty(barriers + STAGES) {
        if (threadIdx.x < STAGES) {
            mbarrier_init(full + threadIdx.x, 1), mbarrier_init(empty + threadIdx.x, CONSUMERS / 32);
            fence_mbarrier_init();
        }
        __syncthreads();
    }
};

// ---- producer

// A stage of an item.
struct Cursor {
    const Operands &operands;
    int item, items, stage = 0;
    int4 tile;

    __device__ __forceinline__ Cursor(const Operands &operands) : operands(operands), item(blockIdx.x), items(operands.items()) {
        load();
    }
    __device__ __forceinline__ void load() {
        if (item < items)
            tile = operands.tile(1 + item / operands.blocks);
    }
    __device__ __forceinline__ bool valid() const {
        return item < items;
    }
    __device__ __forceinline__ void next() {
        if (++stage * CHUNKS >= operands.chunks()) {
            stage = 0, item += gridDim.x;
            load();
        }
    }
    __device__ __forceinline__ int slot() const {
        return stage % STAGES;
    }
    __device__ __forceinline__ int chunks() const {
        return min(CHUNKS, operands.chunks() - CHUNKS * stage);
    }
    __device__ __forceinline__ int groups() const {
        return (tile.z + 7) / 8;
    }
};

// One thread copies. If tiles are known before the launch before this one has ended, so are the first weights.
template <class F, bool EARLY> __device__ __forceinline__ void produce(const Operands &operands, const Ring &ring) {
    const u64 policy = evict_first_policy();
    const auto request_weights = [&](const Cursor &at, int slot, int to) {
        const size_t block = size_t(at.tile.x) * operands.blocks + at.item % operands.blocks;
        const u8 *const from = operands.packed + (block * operands.packed_chunks() + CHUNKS * at.stage) * UNIT_BYTES<F>;
        mbarrier_arrive_expect_tx(ring.full + slot, at.chunks() * (UNIT_BYTES<F> + at.groups() * 1024));
        tma_load_1d(smem_address(ring.stages) + to * STAGE_BYTES<F>, from, at.chunks() * UNIT_BYTES<F>,
                    smem_address(ring.full + slot), policy);
    };
    const auto request_tokens = [&](const Cursor &at, int slot, int to) {
        for (int group = 0; group < at.groups(); group++) {
            const u8 *const from =
                operands.tokens + (size_t(at.tile.w + group) * operands.packed_chunks() + CHUNKS * at.stage) * 1024;
            tma_load_1d(ring.stages + to * STAGE_BYTES<F> + STAGE_WEIGHTS<F> + group * CHUNKS * 1024, from, at.chunks() * 1024,
                        ring.full + slot);
        }
    };
    u32 early = 0;
    if (EARLY) {
        fence_proxy_async();
        for (Cursor at(operands); at.valid() && (early >> at.slot() & 1) == 0; at.next()) {
            request_weights(at, at.slot(), at.slot());
            early |= 1u << at.slot();
        }
        wait_on_dependent_grids();
    }
    // Bulk copies see what the launches before have written.
    fence_proxy_async();
    Parities parities;
    u32 filled = 0;
    for (Cursor at(operands); at.valid(); at.next()) {
        const int slot = at.slot();
        int to = slot;
        if ((early >> slot & 1) == 0) {
            mbarrier_wait_parity(ring.empty + slot, parities.of(slot) ^ 1);
#ifdef MUTANT_SLOT_OVERWRITTEN
            to = filled >> slot & 1 ? (to + 1) % STAGES : to;
#endif
            request_weights(at, slot, to);
        }
        request_tokens(at, slot, to);
        early &= ~(1u << slot), filled |= 1u << slot;
        parities.next(slot);
    }
}

// ---- consumers

// Which of 128 rows a consumer thread has, and the eighth below: sums 0 and 1 of each four are those of the first, 2 and 3
// those of the second.
__device__ __forceinline__ int row_of_thread() {
    return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
}

// The token of sum i % 2 of four number i / 2, and of the sum two below.
__device__ __forceinline__ int token_of_thread(int i) {
    return i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2;
}

// Groups of tokens lie CHUNKS KB apart, not 1 KB.
__device__ __forceinline__ u64 tokens_descriptor(const u8 *stage_tokens) {
    return wgmma_descriptor(smem_address(stage_tokens)) + (u64(CHUNKS - 1) * 64 << 32);
}

__device__ __forceinline__ void release(const Ring &ring, int slot) {
    if (threadIdx.x % 32 == 0)
        mbarrier_arrive(ring.empty + slot);
    __syncwarp();
}

// The products of a whole part with plain scales.
template <class F>
__device__ __forceinline__ void multiply_part(const Ring &ring, Parities &parities, float (&sums)[TOKENS / 2]) {
    u32 a[2][4][4];
    const u64 tokens = tokens_descriptor(ring.stages + STAGE_WEIGHTS<F>);
#pragma unroll
    for (int slot = 0; slot < STAGES; slot++) {
        mbarrier_wait_parity(ring.full + slot, parities.of(slot));
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            const Packed<F> packed(ring.stages + slot * STAGE_BYTES<F> + chunk * UNIT_BYTES<F>);
            // The registers are free once all products but the last four are done, and so is the last slot at the second chunk.
            wgmma_wait_group<1>();
            if (chunk == 1 && slot > 0)
                release(ring, slot - 1);
            // It never does, but keeps chunks apart: the compiler would decode them ahead, and lack registers for products that
            // run on.
            if (gridDim.y > 1)
                asm volatile("brkpt;");
            decode_chunk<F, false>(a[chunk % 2], packed);
            multiply_chunk<TOKENS>(sums, a[chunk % 2], tokens + slot * (STAGE_BYTES<F> / 16) + chunk * 64);
        }
    }
    wgmma_wait_group<0>();
    release(ring, STAGES - 1);
    parities.bits ^= (1u << STAGES) - 1;
}

// Those of any part, one chunk after the other. Instructions for both kinds of scales would be serialized: only decoding has a
// branch.
template <class F>
__device__ __forceinline__ void multiply_any(const Ring &ring, Parities &parities, bool general, int chunks,
                                             float (&sums)[TOKENS / 2]) {
    u32 a[4][4];
    for (int slot = 0; slot * CHUNKS < chunks; slot++) {
        const u8 *const stage = ring.stages + slot * STAGE_BYTES<F>;
        const u64 tokens = tokens_descriptor(stage + STAGE_WEIGHTS<F>);
        mbarrier_wait_parity(ring.full + slot, parities.of(slot));
        for (int chunk = 0; chunk < min(CHUNKS, chunks - slot * CHUNKS); chunk++) {
            const Packed<F> packed(stage + chunk * UNIT_BYTES<F>);
            if (general)
                decode_chunk<F, true>(a, packed);
            else
                decode_chunk<F, false>(a, packed);
            multiply_chunk<TOKENS>(sums, a, tokens + chunk * 64);
            wgmma_wait_group<0>();
        }
        release(ring, slot);
        parities.next(slot);
    }
}

// The products of an item.
template <class F>
__device__ __forceinline__ void multiply_item(const Ring &ring, Parities &parities, bool general, int chunks,
                                              float (&total)[TOKENS / 2]) {
    float sums[TOKENS / 2];
    for (int first = 0; first < chunks; first += PART_CHUNKS) {
        const int left = chunks - first;
#pragma unroll
        for (int i = 0; i < TOKENS / 2; i++)
            sums[i] = 0.0f;
        if (left >= PART_CHUNKS && !general)
            multiply_part<F>(ring, parities, sums);
        else
            multiply_any<F>(ring, parities, general, min(left, PART_CHUNKS), sums);
#ifdef MUTANT_LAST_PART_LOST
        if (first > 0 && left <= PART_CHUNKS)
            break;
#endif
#pragma unroll
        for (int i = 0; i < TOKENS / 2; i++)
            total[i] = first == 0 ? sums[i] : total[i] + sums[i];
    }
}

// Multiplies an item and hands the sums on, for each token that the thread has.
template <class F, class Finish>
__device__ __forceinline__ void consume_item(const Operands &operands, const Ring &ring, Parities &parities, int item, int4 tile,
                                             Finish finish) {
    const int block = item % operands.blocks;
    float total[TOKENS / 2];
    const bool general = same_of_warp(operands.general[size_t(tile.x) * operands.blocks + block]);
    multiply_item<F>(ring, parities, general, operands.chunks(), total);
#pragma unroll
    for (int i = 0; i < TOKENS / 4; i++) {
        const int token = token_of_thread(i);
        if (token >= tile.z)
            continue;
#ifdef MUTANT_ORDER_OFF_BY_ONE
        const int2 entry = operands.order[tile.y + (token + 1) % tile.z];
#else
        const int2 entry = operands.order[tile.y + token];
#endif
        finish(tile, block, token, entry.x, __int_as_float(entry.y), total[i / 2 * 4 + i % 2], total[i / 2 * 4 + 2 + i % 2]);
    }
}

// All items of this thread block.
template <class F, class Finish>
__device__ __forceinline__ void consume(const Operands &operands, const Ring &ring, Finish finish) {
    Parities parities;
    const int items = same_of_warp(operands.items());
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        const int4 tile = operands.tile(1 + item / operands.blocks);
        consume_item<F>(operands, ring, parities, item, tile, finish);
    }
}
