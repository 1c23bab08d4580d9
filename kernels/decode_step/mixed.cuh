// The mixtures of streams of `served` and `served_many`: what the block before gives is mixed in on the way, as `mhc_post` does, and what the next block
// reads is stored as it reads it. Two launches do so: the first reads the streams as they will be, and the second keeps them.
#pragma once

#include "decode_step/fused.cuh"

namespace mixed {

using mhc_pre_parts::load_four;
constexpr int STREAMS = 4;

// x [tokens, STREAMS, dim] with y [tokens, dim] mixed in by post [tokens, STREAMS] and comb [tokens, STREAMS, STREAMS], which is kept
// elsewhere: thread blocks that have not begun still read x.
struct Streams {
    const float *x;
    float *next;
    const float *y, *post, *comb;
    int dim;

    __device__ __forceinline__ void load(int token, int stream, int channel, float (&to)[4]) const {
        const float *const from = x + (u32)(token * STREAMS * dim + channel);
#ifdef MUTANT_SUMS_BEFORE_POST
        load_four<false>(from + stream * dim, to);
        return;
#endif
        const float share = post[token * STREAMS + stream];
        float out[4], old[STREAMS][4];
        load_four<false>(y + (u32)(token * dim + channel), out);
#pragma unroll
        for (int j = 0; j < STREAMS; j++)
            load_four<false>(from + j * dim, old[j]);
#pragma unroll
        for (int c = 0; c < 4; c++)
            to[c] = share * out[c];
#pragma unroll
        for (int j = 0; j < STREAMS; j++) {
            const float between = comb[(token * STREAMS + j) * STREAMS + stream];
#pragma unroll
            for (int c = 0; c < 4; c++)
                to[c] = fmaf(between, old[j][c], to[c]);
        }
    }

    // All of this was there when the launch before this one began, whose sums are all that it wrote.
    __device__ __forceinline__ void load_all(int token, int channel, float (&to)[STREAMS][4]) const {
        float out[4], old[STREAMS][4];
        load_four<true>(y + (size_t)token * dim + channel, out);
#pragma unroll
        for (int j = 0; j < STREAMS; j++)
            load_four<true>(x + ((size_t)token * STREAMS + j) * dim + channel, old[j]);
        float share[4], between[STREAMS][4];
        load_four<true>(post + token * STREAMS, share);
#pragma unroll
        for (int j = 0; j < STREAMS; j++)
            load_four<true>(comb + (token * STREAMS + j) * STREAMS, between[j]);
#pragma unroll
        for (int k = 0; k < STREAMS; k++) {
#pragma unroll
            for (int c = 0; c < 4; c++) {
                to[k][c] = share[k] * out[c];
#pragma unroll
                for (int j = 0; j < STREAMS; j++)
                    to[k][c] = fmaf(between[j][k], old[j][c], to[k][c]);
            }
        }
    }

    __device__ __forceinline__ void keep(int token, int channel, const float (&v)[STREAMS][4]) const {
#ifndef MUTANT_STREAMS_NOT_KEPT
#pragma unroll
        for (int stream = 0; stream < STREAMS; stream++)
            *(float4 *)(next + ((size_t)token * STREAMS + stream) * dim + channel) =
                make_float4(v[stream][0], v[stream][1], v[stream][2], v[stream][3]);
#endif
    }
};

// Four channels of a token as bfloat16, and as they are, which may go nowhere.
struct ToHalf {
    float *kept;
    bf16 *half;
    int dim;

    __device__ __forceinline__ void store(int token, int channel, float4 x) const {
        if (channel >= dim)
            return;
        const size_t at = (size_t)token * dim + channel;
        if (kept != nullptr)
            *(float4 *)(kept + at) = x;
        *(uint2 *)(half + at) = to_halves(x);
    }
};

// The same, and codes. A lane has four channels of a block, a warp all of them.
template <class F> struct ToCodes {
    ToHalf plain;
    u8 *codes;
    typename F::Stored *scales;

    __device__ __forceinline__ void store(int token, int channel, float4 x) const {
        static_assert(F::width == 4 * 32, "a warp has a block");
        plain.store(token, channel, x);
        const int dim = plain.dim, block = channel / F::width;
        const bool there = channel < dim;
        const u32 four = four_codes<F>(there ? x : float4{}, block, dim, scales + (size_t)token * blocks_of<F>(dim) + block);
        if (there)
            *(u32 *)(codes + (size_t)token * dim + channel) = four;
    }
};

} // namespace mixed

// Few tokens are loaded at once, since each takes five numbers for one. Of what the next launch counts, nothing has arrived.
KERNEL(decode_step_sums, __launch_bounds__(32 * mhc_pre_parts::QUADS, 3))(const float *x, const float *y, const float *post,
                                                                          const float *comb, const float *fn, float *sums,
                                                                          u32 *arrived, int tokens, int dim) {
    mhc_pre_parts::parts_sums<4>(mixed::Streams{x, nullptr, y, post, comb, dim}, fn, sums, tokens, dim);
    for (int token = threadIdx.x; token < tokens && blockIdx.x + blockIdx.y == 0; token += blockDim.x)
        arrived[token] = 0;
}
