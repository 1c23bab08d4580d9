// The products of both launches: a producer warp copies stages of 256 columns, in bulk, and two consumer warpgroups multiply 64 rows
// of a matrix each by the tokens of a tile. Weights go into the registers that wgmma takes as A.
//
// An item is a tile of tokens and a block of 128 rows; thread blocks take items in turn, and the producer goes on to the next
// while consumers are at the last. Two thread blocks share a multiprocessor.
//
// The budget of a multiprocessor for MXFP4 weights at the rate of a copy, 4.27 TB/s or 18 bytes a cycle of 1.8 GHz, which are 34 codes
// and, of 32 lanes with two codes each, 0.53 registers of A in each of the four schedulers' 4 instructions a cycle:
//   integer units   2 instructions a cycle in all: for four registers 5 shifts, of which the compiler makes multiplications of some,
//                   and 7 logical ones: 3 for a register at most, 1.6 a cycle
//   others          1 multiplication for a register, the factors of scales 0.5: 0.8 a cycle
//   tensor cores    an m64n8k16 for 32 registers: one in 60 cycles
//   in flight       up to 70 KB of weights, and 2 stages of the other thread block's
// An NVFP4 register takes 2 multiplications and 1.5 instructions for scales.
#pragma once

#include "moe_fp4/layout.cuh"

constexpr int CONSUMERS = 256, THREADS = CONSUMERS + 32;
constexpr int STAGES = 4;
// Chunks of 64 columns of a stage, and of a part that is summed from 0.
constexpr int CHUNKS = 4, PART_CHUNKS = 16;

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

// A slot of the ring, and the parity of the round.
struct Slot {
    int number = 0;
    u32 parity = 0;

    __device__ __forceinline__ void next() {
        if (++number == STAGES)
            number = 0, parity ^= 1;
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
    int early = 0;
    if (EARLY) {
        fence_proxy_async();
        for (Cursor at(operands); at.valid() && early < STAGES; at.next(), early++)
            request_weights(at, early, early);
        wait_on_dependent_grids();
    }
    // Bulk copies see what the launches before have written.
    fence_proxy_async();
    Slot slot;
    int requested = 0;
    for (Cursor at(operands); at.valid(); at.next(), slot.next(), requested++) {
        int to = slot.number;
        if (requested >= early) {
            mbarrier_wait_parity(ring.empty + slot.number, slot.parity ^ 1);
#ifdef MUTANT_SLOT_OVERWRITTEN
            to = requested >= STAGES ? (to + 1) % STAGES : to;
#endif
            request_weights(at, slot.number, to);
        }
        request_tokens(at, slot.number, to);
    }
}

// ---- consumers

// Which of 128 rows, and of the tokens, a consumer thread has: sums 0 and 1 of each four are those of `row`, 2 and 3 those of the eighth
// below; 4 j to 4 j + 3 are of tokens 8 j + `token` and the next.
struct Lane {
    int thread, warp, row, token;

    __device__ __forceinline__ Lane() : thread(threadIdx.x), warp(thread / 32), row(warp * 16 + thread % 32 / 4) {
        token = thread % 4 * 2;
    }
};

// The products of 64 columns of all rows and tokens.
template <class F, bool GENERAL, int T>
__device__ __forceinline__ void multiply_chunk(float (&sums)[T / 2], u32 (&a)[4][4], const Lane &lane, const u8 *unit,
                                               u64 tokens) {
    const uint4 four = ((const uint4 *)unit)[lane.thread];
    const u32 words[4] = {four.x, four.y, four.z, four.w};
    const Scales<F, GENERAL> scales(unit + UNIT_CODES + (lane.warp * 8 + lane.thread % 32 / 4) * (128 / F::block));
#pragma unroll
    for (int step = 0; step < 4; step++)
#pragma unroll
        for (int reg = 0; reg < 4; reg++)
            a[step][reg] = scales.times(extracted(words[step], reg), reg % 2, step * 16 / F::block);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; step++)
        Step<Bf16, T>::registers(sums, a[step], tokens + step * 2);
    wgmma_commit_group();
}

// The products of an item.
template <class F, bool GENERAL, int T>
__device__ __forceinline__ void multiply_item(const Ring &ring, Slot &slot, const Lane &lane, int chunks, float (&total)[T / 2]) {
    // Groups of tokens lie CHUNKS KB apart, not 1 KB.
    constexpr u64 STRIDE = u64(CHUNKS - 1) * 64 << 32;
    float sums[T / 2];
    u32 a[2][4][4];
#pragma unroll
    for (int i = 0; i < T / 2; i++)
        sums[i] = 0.0f;
    for (int first = 0; first < chunks; first += CHUNKS) {
        mbarrier_wait_parity(ring.full + slot.number, slot.parity);
        const u8 *const stage = ring.stages + slot.number * STAGE_BYTES<F>;
        const u64 tokens = wgmma_descriptor(smem_address(stage + STAGE_WEIGHTS<F>)) + STRIDE;
        if (first + CHUNKS <= chunks) {
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; chunk++) {
                // The registers are free once all products but the last four are done.
                wgmma_wait_group<1>();
                multiply_chunk<F, GENERAL, T>(sums, a[chunk % 2], lane, stage + chunk * UNIT_BYTES<F>, tokens + chunk * 64);
            }
        } else {
            for (int chunk = 0; chunk < chunks - first; chunk++) {
                wgmma_wait_group<0>();
                multiply_chunk<F, GENERAL, T>(sums, a[0], lane, stage + chunk * UNIT_BYTES<F>, tokens + chunk * 64);
            }
        }
        wgmma_wait_group<0>();
        if (lane.thread % 32 == 0)
            mbarrier_arrive(ring.empty + slot.number);
        __syncwarp();
        slot.next();
        const int done = first + CHUNKS;
        if (done % PART_CHUNKS == 0 || done >= chunks) {
#ifdef MUTANT_LAST_PART_LOST
            if (first >= PART_CHUNKS && done >= chunks)
                break;
#endif
#pragma unroll
            for (int i = 0; i < T / 2; i++) {
                total[i] = first < PART_CHUNKS ? sums[i] : total[i] + sums[i];
                sums[i] = 0.0f;
            }
        }
    }
}

// Multiplies an item and hands the sums on: finish(expert, block, row, token, place, weight, upper and lower sum) for each token that
// the thread has.
template <class F, int T, class Finish>
__device__ __forceinline__ void consume_item(const Operands &operands, const Ring &ring, Slot &slot, const Lane &lane, int item,
                                             int4 tile, Finish finish) {
    const int block = item % operands.blocks;
    const auto token = [&](int i) { return i / 2 * 8 + lane.token + i % 2; };
    int2 entries[T / 4];
#pragma unroll
    for (int i = 0; i < T / 4; i++) {
        entries[i] = make_int2(0, 0);
        if (token(i) < tile.z)
            entries[i] = operands.order[tile.y + token(i)];
    }
    float total[T / 2];
    if (operands.general[size_t(tile.x) * operands.blocks + block])
        multiply_item<F, true, T>(ring, slot, lane, operands.chunks(), total);
    else
        multiply_item<F, false, T>(ring, slot, lane, operands.chunks(), total);
#pragma unroll
    for (int i = 0; i < T / 4; i++) {
        if (token(i) >= tile.z)
            continue;
#ifdef MUTANT_ORDER_OFF_BY_ONE
        entries[i] = operands.order[tile.y + (token(i) + 1) % tile.z];
#endif
        finish(tile, block, token(i), entries[i].x, __int_as_float(entries[i].y), total[i / 2 * 4 + i % 2],
               total[i / 2 * 4 + 2 + i % 2]);
    }
}

// All items of this thread block.
template <class F, class Finish>
__device__ __forceinline__ void consume(const Operands &operands, const Ring &ring, const Lane &lane, Finish finish) {
    Slot slot;
    const int items = operands.items();
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        const int4 tile = operands.tile(1 + item / operands.blocks);
        if (tile.z <= 8)
            consume_item<F, 8>(operands, ring, slot, lane, item, tile, finish);
        else
            consume_item<F, 16>(operands, ring, slot, lane, item, tile, finish);
    }
}
