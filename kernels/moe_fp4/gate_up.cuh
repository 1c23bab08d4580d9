// The first product of all experts, and what lies between the products.
#pragma once

#include "moe_fp4/pipeline.cuh"

// Stages of an item of the next launch that are brought to L2: those that a thread block of it asks for at once, and two more, so that
// memory does not rest until this launch has ended and the other has its first products.
constexpr int AHEAD = STAGES + 2;

// While the last products go on, brings to L2 what the thread block of this number of the next launch begins with: `packed`, blocks of
// rows with so many chunks. Blocks of the next launch that have room beside this one copied it themselves.
template <class F>
__device__ __forceinline__ void prefetch_next(const Operands &operands, const u8 *packed, int blocks, int chunks) {
    const int item = blockIdx.x, number = item / blocks, tiles = operands.items() / operands.blocks;
    if (number >= tiles || item < int(gridDim.x) - tiles * operands.blocks)
        return;
    const size_t block = size_t(operands.tile(1 + number).x) * blocks + item % blocks;
    for (int stage = 0; stage < AHEAD && stage * CHUNKS < chunks; stage++)
        prefetch_stage<F>(packed, block, stage, chunks);
}

template <class F>
__device__ __forceinline__ void gate_up(const Operands &operands, const float *tensors, const u8 *packed_down, u8 *packed_hidden,
                                        bf16 *hidden, int D, int I, float limit) {
    extern __shared__ __align__(1024) u8 shared[];
    __shared__ u64 barriers[2 * STAGES];
    const Ring ring(shared, barriers);
    const int chunks = (I + 63) / 64;
    if (threadIdx.x == CONSUMERS) {
        produce<F, false>(operands, ring);
        prefetch_next<F>(operands, packed_down, (D + 127) / 128, chunks);
    }
    if (threadIdx.x >= CONSUMERS)
        return;
    // What the next launch reads before this one has ended is there from here on: the tiles.
    wait_on_dependent_grids();
    launch_dependent_grids();
    const auto scale = [&](int expert) { return gate_up_tensors(tensors, expert); };
    consume<F>(operands, ring, scale, [&](int4 tile, float2 tensor, int block, int token, int2 entry, float gate, float up) {
        const int of_block = int(threadIdx.x) / 4, unit = block * 64 + of_block;
        float out = 0.0f;
        if (unit < I)
            out = activate(gate * tensor.x, up * tensor.y, limit, __int_as_float(entry.y), tile.x == operands.E);
        from_f32(*(bf16 *)(packed_hidden + packed_token(tile.w, token, unit / 8, chunks) + unit % 8 * 2), out);
        if (hidden != nullptr && unit < I)
            from_f32(hidden[size_t(entry.x) * I + unit], out);
    });
}
