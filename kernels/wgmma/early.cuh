// What a product reads of an earlier launch before its loop begins: the first stages' rows of x. Weights of these stages are copied
// before the earlier launch has ended, and groups of `cp.async` end in order, so x would wait for all of them if it came that way.
#pragma once

#include "lib/ptx.cuh"

// Columns of T rows, 128 bytes for each of COUNT stages, for 128 threads; T rows follow the 64 of weights in a stage.
template <int T, int COUNT> struct EarlyRows {
    static constexpr int CHUNKS = T * 8, PASSES = (COUNT * CHUNKS + 127) / 128, STAGE = (64 + T) * 128;
    uint4 bytes[PASSES];

    // `from(stage, row, chunk)` is where 16 bytes are, or null where zeros are meant.
    template <class From> __device__ __forceinline__ void load(From from) {
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) {
            const int i = pass * 128 + threadIdx.x, stage = i / CHUNKS;
            const uint4 *const at = stage < COUNT ? from(stage, i / 8 % T, i % 8) : nullptr;
            // Past L1, which may have lines of before.
            bytes[pass] = at != nullptr ? __ldcg(at) : make_uint4(0, 0, 0, 0);
        }
    }

    // Tensor cores see them after `fence_proxy_async_smem` and a barrier.
    __device__ __forceinline__ void store(u8 *stages) const {
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) {
            const int i = pass * 128 + threadIdx.x, stage = i / CHUNKS, row = i / 8 % T, chunk = i % 8;
            if (stage < COUNT)
                *(uint4 *)(stages + stage * STAGE + (64 + row) * 128 + ((chunk ^ row) & 7) * 16) = bytes[pass];
        }
    }
};
