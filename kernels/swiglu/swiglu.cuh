// SwiGLU with clamped pre-activations: silu(min(g, c)) · clamp(u, −c, c), in f32 and not rounded until it is stored.
#pragma once

#include "lib/vec.cuh"

// NaN must come through; minima and maxima of C drop it. If e^−g or its reciprocal leaves the range of f32, the result is −0. The
// exponential and the reciprocal are the machine's own.
__device__ __forceinline__ float swiglu(float gate, float up, float limit) {
#ifdef MUTANT_CLAMP_BELOW
    gate = gate < -limit ? -limit : gate;
#endif
#ifdef MUTANT_NAN_DROPPED
    gate = fminf(gate, limit), up = fmaxf(fminf(up, limit), -limit);
#else
    gate = min_nan(gate, limit), up = max_nan(min_nan(up, limit), -limit);
#endif
    const float inverse = rcp_approx_ftz(1.0f + ex2_approx_ftz(gate * -1.44269504f)); // log2(e)
    return gate * inverse * up;
}

// Computes rows [gate, up] of 2·cols by vectors of the result; the next pair of vectors is loaded while the last is computed. All
// lanes of a warp call emit(state, at, y) together, some of them out of bounds; neighbouring lanes have neighbouring vectors.
// `prepare` makes the state once the first loads are on their way.
template <class T, class Prepare, class Emit, class... Hint>
__device__ __forceinline__ void swiglu_vec8(const T *gate_up, float limit, int rows, int cols, Prepare prepare, Emit emit,
                                            Hint... hint) {
    const int across = cols / 8, count = rows * across, stride = gridDim.x * blockDim.x;
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    // The column of the next vector and the place of its gate: they are updated, because divisions are slow.
    int column = at % across;
    size_t from = (size_t)at + at / across * across;
    const int columns = stride % across, skip = stride + stride / across * across;
    Vec8<T> gate, up, next_gate, next_up;
    const auto load = [&](Vec8<T> &gate, Vec8<T> &up, int at) {
        if (at < count) {
#ifdef MUTANT_GATE_UP_SWAPPED
            up.load(gate_up, from, hint...), gate.load(gate_up, from + across, hint...);
#else
            gate.load(gate_up, from, hint...), up.load(gate_up, from + across, hint...);
#endif
        } else {
            gate.zero(), up.zero();
        }
        column += columns, from += skip;
        if (column >= across)
#ifdef MUTANT_WRAP_LOST
            column -= across;
#else
            column -= across, from += across;
#endif
    };
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
