// RMSNorm of rows: y = w ⊙ x · (mean(x²) + ε)^−½, in f32 and not rounded until it is stored.
#pragma once

#include "common.cuh"

__device__ __forceinline__ float inverse_rms(float sum, int cols, float eps) {
#ifdef MUTANT_NO_EPS
    eps = 0.0f;
#endif
    return rsqrtf(sum * __frcp_rn((float)cols) + eps);
}

// (mean(x²) + ε)^−½ of a row by one warp.
template <class T> __device__ float inverse_rms_of(const T *row, int cols, float eps) {
    float sum = 0.0f;
    for (int i = threadIdx.x % 32; i < cols; i += 32) {
        const float x = to_f32(row[i]);
        sum = __fmaf_rn(x, x, sum);
    }
    return inverse_rms(warp_sum(sum), cols, eps);
}

// Eight consecutive weights.
__device__ __forceinline__ void load_weights(const float *weight, int at, float (&out)[8]) {
    const float4 low = __ldg((const float4 *)weight + 2 * at), high = __ldg((const float4 *)weight + 2 * at + 1);
    out[0] = low.x, out[1] = low.y, out[2] = low.z, out[3] = low.w;
    out[4] = high.x, out[5] = high.y, out[6] = high.z, out[7] = high.w;
}

// The products x·w of a row and the sum of squares. There are no weights where there are no eights.
template <int V, class T, class There>
__device__ __forceinline__ float multiply(const Eight<T> (&x)[V], const float *weight, There there, float (&product)[V][8]) {
    // Two chains of additions, of which neither waits for the other.
    float sum[2] = {};
#pragma unroll
    for (int v = 0; v < V; v++) {
        const int at = first_eight<V>() + v * 32;
        float w[8] = {};
        if (there(at))
            load_weights(weight, at, w);
        x[v].unpack(product[v]);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sum[i % 2] = __fmaf_rn(product[v][i], product[v][i], sum[i % 2]);
            product[v][i] *= w[i];
        }
    }
    return sum[0] + sum[1];
}

// One row by a thread block, `V` eights a thread. Calls emit(state, row, product, inverse, there) with all threads: y of an
// eight is product · inverse, zeros where there is none. `prepare` makes the state once the row is on its way.
template <int V, class T, class There, class Prepare, class Emit, class... Policy>
__device__ __forceinline__ void norm_eights(const T *x, const float *weight, float eps, int cols, There there, Prepare prepare,
                                            Emit emit, Policy... policy) {
    __shared__ float room[32];
    Eight<T> in[V];
#pragma unroll
    for (int v = 0; v < V; v++) {
        const int at = first_eight<V>() + v * 32;
        if (there(at))
            in[v].load(x, (size_t)blockIdx.x * (cols / 8) + at, policy...);
        else
            in[v].zero();
    }
    float product[V][8];
    const float sum = multiply(in, weight, there, product);
    const auto state = prepare();
#ifdef MUTANT_ROW_INDEX
    const int row = 0;
#else
    const int row = blockIdx.x;
#endif
    emit(state, row, product, inverse_rms(block_sum(sum, room), cols, eps), there);
}

template <int V, class T, class Prepare, class Emit, class... Policy>
__device__ __forceinline__ void norm_row(const T *x, const float *weight, float eps, int cols, Prepare prepare, Emit emit, Policy... policy) {
    if (cols == V * 8 * (int)blockDim.x)
        norm_eights<V>(x, weight, eps, cols, All(), prepare, emit, policy...);
    else
        norm_eights<V>(x, weight, eps, cols, Below{cols / 8}, prepare, emit, policy...);
}

// Rows that wait in shared memory, of those that a thread block is to work on.
constexpr int WAITING = 3;

// The same of many rows by thread blocks that stay, `V` eights a thread, whose eights are exactly those of a row. Rows are
// copied to shared memory while others are worked on; `ring` has room for WAITING of them.
template <int V, bool HINT = true, class T, class Prepare, class Emit>
__device__ __forceinline__ void norm_rows(const T *x, const float *weight, float eps, int rows, int cols, T *ring,
                                          Prepare prepare, Emit emit) {
    __shared__ float room[2][32];
    __shared__ u64 arrival[WAITING];
    const int bytes = cols * sizeof(T);
    const auto fetch = [=](int row, int slot) {
        if (threadIdx.x == 0 && row < rows)
            HINT ? copy_to_shared(ring + slot * cols, x + (size_t)row * cols, bytes, arrival + slot) : copy_to_shared_plain(ring + slot * cols, x + (size_t)row * cols, bytes, arrival + slot);
    };
    if (threadIdx.x == 0)
        for (int slot = 0; slot < WAITING; slot++)
            arrival_init(arrival + slot);
    __syncthreads();
    for (int slot = 0; slot < WAITING; slot++)
        fetch(blockIdx.x + slot * gridDim.x, slot);
    const auto state = prepare();
    int turn = 0, slot = 0, parity = 0;
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        arrival_wait(arrival + slot, parity);
        Eight<T> in[V];
#pragma unroll
        for (int v = 0; v < V; v++)
            in[v].load_shared(ring + slot * cols, first_eight<V>() + v * 32);
        float product[V][8];
        const float sum = block_sum(multiply(in, weight, All(), product), room[turn]);
        // All threads have read the row before the sum's barrier; the room of the turn before may still be read.
        fetch(row + WAITING * gridDim.x, slot);
#ifdef MUTANT_ROW_INDEX
        emit(state, blockIdx.x, product, inverse_rms(sum, cols, eps), All());
#else
        emit(state, row, product, inverse_rms(sum, cols, eps), All());
#endif
        turn ^= 1, slot++;
        if (slot == WAITING)
            slot = 0, parity ^= 1;
    }
}

// ==== probes: weights in registers
template <int V, int SLOTS, bool HINT = true, class T, class Prepare, class Emit>
__device__ __forceinline__ void norm_ring(const T *x, const float *weight, float eps, int rows, int cols, T *ring,
                                          Prepare prepare, Emit emit) {
    __shared__ float room[2][32];
    __shared__ u64 arrival[SLOTS];
    const int bytes = cols * sizeof(T);
    const auto fetch = [=](int row, int slot) {
        if (threadIdx.x == 0 && row < rows)
            HINT ? copy_to_shared(ring + slot * cols, x + (size_t)row * cols, bytes, arrival + slot) : copy_to_shared_plain(ring + slot * cols, x + (size_t)row * cols, bytes, arrival + slot);
    };
    if (threadIdx.x == 0)
        for (int slot = 0; slot < SLOTS; slot++)
            arrival_init(arrival + slot);
    __syncthreads();
    for (int slot = 0; slot < SLOTS; slot++)
        fetch(blockIdx.x + slot * gridDim.x, slot);
    float w[V][8];
#pragma unroll
    for (int v = 0; v < V; v++)
        load_weights(weight, first_eight<V>() + v * 32, w[v]);
    const auto state = prepare();
    int turn = 0, slot = 0, parity = 0;
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        arrival_wait(arrival + slot, parity);
        float product[V][8];
        float sum[2] = {};
#pragma unroll
        for (int v = 0; v < V; v++) {
            Eight<T> in;
            in.load_shared(ring + slot * cols, first_eight<V>() + v * 32);
            in.unpack(product[v]);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                sum[i % 2] = __fmaf_rn(product[v][i], product[v][i], sum[i % 2]);
                product[v][i] *= w[v][i];
            }
        }
        const float all = block_sum(sum[0] + sum[1], room[turn]);
        fetch(row + SLOTS * gridDim.x, slot);
        emit(state, row, product, inverse_rms(all, cols, eps), All());
        turn ^= 1, slot++;
        if (slot == SLOTS)
            slot = 0, parity ^= 1;
    }
}
