// The arguments of a step of a compressor: where its numbers are, and what of the state belongs to a token.
#pragma once

#include "lib/common.cuh"

__device__ __forceinline__ float infinity() {
    return __uint_as_float(0x7f800000);
}

// The arguments, and where things are.
template <class T> struct Step {
    const float *kv, *gate, *ape, *weight, *cos, *sin;
    const int *position;
    float *ring_kv, *ring_gate;
    T *entries;
    float *stages;
    int rows, rate, dim, turned, capacity, overlap;
    float eps;

    __device__ __forceinline__ int width() const {
        return dim * (1 + overlap);
    }

    __device__ __forceinline__ int slots() const {
        return rate * (1 + overlap);
    }

    __device__ __forceinline__ bool closes(int t) const {
        return t >= 0 && (t + 1) % rate == 0;
    }

    // The first token of the window of token t.
    __device__ __forceinline__ int window(int t) const {
        return t / rate * rate;
    }

    // The first token that is pooled with token t.
    __device__ __forceinline__ int first_pooled(int t) const {
        const int first = window(t) - rate * overlap;
#ifdef MUTANT_ABSENT_POOLED
        return first;
#else
        return max(first, 0);
#endif
    }

    // Where a row of the state begins.
    __device__ __forceinline__ size_t slot(int row, int token) const {
        return ((size_t)row * slots() + (token + slots()) % slots()) * width();
    }

    // Where the channels of a row of the state are that are pooled with token t.
    __device__ __forceinline__ size_t pooled(int row, int token, int t) const {
#ifdef MUTANT_HALVES_EXCHANGED
        const bool second = overlap && token < window(t);
#else
        const bool second = overlap && token >= window(t);
#endif
        return slot(row, token) + (second ? dim : 0);
    }

    __device__ __forceinline__ const float *ape_of(int t) const {
#ifdef MUTANT_APE_OF_NEXT
        t++;
#endif
        return ape + (size_t)(t % rate) * width();
    }

    __device__ __forceinline__ float inverse_rms(float squares) const {
#ifdef MUTANT_EPS_MISSING
        return rsqrtf(squares / dim);
#else
        return rsqrtf(squares / dim + eps);
#endif
    }

    // The row of a table by which the entry of token t is turned.
    __device__ __forceinline__ const float *turn(const float *table, int t) const {
#ifdef MUTANT_ROPE_AT_LAST
        return table + (size_t)t * (turned / 2);
#else
        return table + (size_t)window(t) * (turned / 2);
#endif
    }

    __device__ __forceinline__ T *entry(int row, int t) const {
#ifdef MUTANT_ENTRY_LATE
        t += rate;
#endif
        return entries + ((size_t)row * capacity + t / rate) * dim;
    }

    // Pooled, normed or rotated values of a row.
    __device__ __forceinline__ float *stage(int row, int stage) const {
        return stages + ((size_t)row * 3 + stage) * dim;
    }
};
