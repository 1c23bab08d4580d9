// SwiGLU with clamped pre-activations: silu(min(g, c)) · clamp(u, −c, c), in f32 and not rounded until it is stored.
#pragma once

#include "common.cuh"

// Comparisons let NaN through, which minima and maxima would drop. Where e^−g overflows the result is −0.
__device__ __forceinline__ float swiglu(float gate, float up, float limit) {
#ifdef MUTANT_CLAMP_BELOW
    gate = gate < -limit ? -limit : gate;
#endif
#ifdef MUTANT_NAN_DROPPED
    gate = fminf(gate, limit), up = fmaxf(fminf(up, limit), -limit);
#else
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up;
    up = up < -limit ? -limit : up;
#endif
    return __fdividef(gate, 1.0f + expf(-gate)) * up;
}

// Rows [gate, up] of 2·cols by eights of the result, whose pairs are loaded while those before are worked on. Calls
// emit(state, eight, y) for all lanes of a warp together, some of which may be beyond the last; neighbouring lanes hold
// neighbouring eights. `prepare` makes the state once the first are on their way.
template <class T, class Prepare, class Emit>
__device__ __forceinline__ void swiglu_eights(const T *gate_up, float limit, int rows, int cols, Prepare prepare, Emit emit) {
    const int across = cols / 8, count = rows * across, stride = gridDim.x * blockDim.x;
    Eight<T> gate, up, next_gate, next_up;
    const auto load = [=](Eight<T> &gate, Eight<T> &up, int at) {
        if (at < count) {
            const size_t from = (size_t)at + at / across * across;
#ifdef MUTANT_GATE_UP_SWAPPED
            up.load(gate_up, from), gate.load(gate_up, from + across);
#else
            gate.load(gate_up, from), up.load(gate_up, from + across);
#endif
        } else {
            gate.zero(), up.zero();
        }
    };
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    load(gate, up, at);
    const auto state = prepare();
    for (; at - (int)(threadIdx.x % 32) < count; at += stride) {
        load(next_gate, next_up, at + stride);
        float y[8], u[8];
        gate.unpack(y), up.unpack(u);
#pragma unroll
        for (int i = 0; i < 8; i++)
            y[i] = swiglu(y[i], u[i], limit);
        emit(state, at, y);
        gate = next_gate, up = next_up;
    }
}
