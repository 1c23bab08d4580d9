// The first product of all experts, and what lies between the products.
#pragma once

#include "moe_fp4/pipeline.cuh"

template <class F>
__device__ __forceinline__ void gate_up(const Operands &operands, const float *tensors, u8 *packed_hidden, bf16 *hidden, int E,
                                        int I, float limit) {
    extern __shared__ __align__(1024) u8 shared[];
    __shared__ u64 barriers[2 * STAGES];
    const Ring ring(shared, barriers);
    // What the next launch reads before this one has ended is there from here on: the tiles.
    wait_on_dependent_grids();
    launch_dependent_grids();
    if (threadIdx.x == CONSUMERS)
        produce<F, false>(operands, ring);
    if (threadIdx.x >= CONSUMERS)
        return;
    const int chunks = (I + 63) / 64;
    consume<F>(operands, ring, [&](int4 tile, int block, int token, int place, float weight, float gate, float up) {
        const int of_block = int(threadIdx.x) / 4, unit = block * 64 + of_block;
        const float2 tensor = gate_up_tensors(tensors, tile.x);
        float out = 0.0f;
        if (unit < I)
            out = activate(gate * tensor.x, up * tensor.y, limit, weight, tile.x == E);
        from_f32(*(bf16 *)(packed_hidden + packed_token(tile.w, token, unit / 8, chunks) + unit % 8 * 2), out);
        if (hidden != nullptr && unit < I)
            from_f32(hidden[size_t(place) * I + unit], out);
    });
}
