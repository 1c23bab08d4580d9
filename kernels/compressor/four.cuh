// Four neighbouring channels of a thread, from the softmax over slots to the entry.
#pragma once

#include "compressor/step.cuh"

// Pooled, normed and rotated.
constexpr int STAGES = 3;

struct Four {
    float x[4];

    static __device__ __forceinline__ Four of(float x) {
        return {x, x, x, x};
    }

    static __device__ __forceinline__ Four load(const float *from) {
        const float4 in = *(const float4 *)from;
        return {in.x, in.y, in.z, in.w};
    }

    __device__ __forceinline__ void store(float *to) const {
        *(float4 *)to = make_float4(x[0], x[1], x[2], x[3]);
    }

    __device__ __forceinline__ void store(bf16 *to) const {
        *(uint2 *)to = to_bf16x4(make_float4(x[0], x[1], x[2], x[3]));
    }

    __device__ __forceinline__ void add(const Four &other) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] += other.x[i];
    }

    __device__ __forceinline__ void raise(const Four &other) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = fmaxf(x[i], other.x[i]);
    }

    // That of the lane half a warp away.
    __device__ __forceinline__ Four across() const {
        Four other;
#pragma unroll
        for (int i = 0; i < 4; i++)
            other.x[i] = __shfl_xor_sync(0xffffffff, x[i], 16);
        return other;
    }

    __device__ __forceinline__ float squares() const {
        return fmaf(x[0], x[0], fmaf(x[1], x[1], fmaf(x[2], x[2], x[3] * x[3])));
    }
};

// The softmax of some slots: the sum of their shares, and of the values that they weigh.
struct Shares {
    Four sum, out;

    template <int N> __device__ __forceinline__ Shares(const Four (&gate)[N], const Four (&value)[N], const Four &top) {
        sum = out = Four::of(0.0f);
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float share = expf(gate[n].x[i] - top.x[i]);
                sum.x[i] += share;
                out.x[i] = fmaf(share, value[n].x[i], out.x[i]);
            }
        }
    }

    __device__ __forceinline__ Four pooled() const {
        Four mean;
#pragma unroll
        for (int i = 0; i < 4; i++)
            mean.x[i] = out.x[i] / sum.x[i];
        return mean;
    }
};

// Norms and turns pooled values, which `to` stores.
template <class T, class To>
__device__ __forceinline__ void finish(const Step<T> &step, const To &to, int row, int t, int channel, const Four &pooled,
                                       const Four &weight, float scale) {
    Four normed, rotated;
#pragma unroll
    for (int i = 0; i < 4; i++)
        normed.x[i] = rotated.x[i] = pooled.x[i] * scale * weight.x[i];
    const int turned = channel - (step.dim - step.turned);
    if (turned >= 0) {
        const float2 cos = *(const float2 *)(step.turn(step.cos, t) + turned / 2);
        const float2 sin = *(const float2 *)(step.turn(step.sin, t) + turned / 2);
        rotated.x[0] = normed.x[0] * cos.x - normed.x[1] * sin.x;
        rotated.x[1] = normed.x[1] * cos.x + normed.x[0] * sin.x;
        rotated.x[2] = normed.x[2] * cos.y - normed.x[3] * sin.y;
        rotated.x[3] = normed.x[3] * cos.y + normed.x[2] * sin.y;
    }
    to.store(step, row, t, channel, {pooled, normed, rotated});
}

// All stages of four channels go to memory, and the entry.
struct ToMemory {
    // Called when the launches before have ended.
    __device__ __forceinline__ void begin(int) const {}

    // What there is where no window closes.
    template <class T> __device__ __forceinline__ void none(const Step<T> &step, int row, int stage, int channel) const {
        Four::of(0.0f).store(step.stage(row, stage) + channel);
    }

    template <class T>
    __device__ __forceinline__ void store(const Step<T> &step, int row, int t, int channel, const Four (&stages)[STAGES]) const {
#pragma unroll
        for (int stage = 0; stage < STAGES; stage++)
            stages[stage].store(step.stage(row, stage) + channel);
        stages[STAGES - 1].store(step.entry(row, t) + channel);
    }
};
