// Rows of activations in swap_ffn.cu: the threads that share a row, their fragments of it, and the forms in which it is written as
// an operand of the products.
#pragma once

#include "lib/formats.cuh"
#include "lib/cluster.cuh"
#include "lib/tma.cuh"
#include "lib/wgmma.cuh"

constexpr int ROW_THREADS = 256, SUMS = 6, PARTS = 32, BANKS = 4, COLLAPSE = 8, REDUCED = 224;
constexpr int TILE_ROWS = 128, TILE = TILE_ROWS * 128; // rows of tiles of activations, and bytes

// The byte of an activation in swizzled tiles of 128 rows and 128 bytes; tiles of the same rows lie next to each other.
__device__ __forceinline__ size_t activation_byte(int row, int byte, int row_bytes) {
    return ((size_t)(row / TILE_ROWS) * (row_bytes / 128) + byte / 128) * TILE + swizzle_128b(row % TILE_ROWS, byte / 16 % 8) +
           byte % 16;
}

// x / (1 + e⁻ˣ), to a few units of the last place. Subnormal powers and reciprocals become 0; nothing is left of x then.
__device__ __forceinline__ float silu(float x) {
    const float inverse = rcp_approx_ftz(1.0f + ex2_approx_ftz(x * -1.4426950408889634f));
    return x * inverse;
}

// SiLU of two numbers with one reciprocal, which costs as many instructions as e⁻ˣ does. Numbers below −42 become a few times
// 10⁻¹⁸.
__device__ __forceinline__ void silu_pair(float &x, float &y) {
#ifdef MUTANT_PAIR_UNCLAMPED
    const auto one_more = [](float x) { return 1.0f + ex2_approx_ftz(x * -1.4426950408889634f); };
#else
    const auto one_more = [](float x) { return 1.0f + ex2_approx_ftz(fminf(x * -1.4426950408889634f, 61.0f)); };
#endif
    const float below_x = one_more(x), below_y = one_more(y);
    const float inverse = rcp_approx_ftz(below_x * below_y);
    x *= inverse * below_y, y *= inverse * below_x;
}

// The inverse root mean square of a row, from its sum of squares.
__device__ __forceinline__ float inverse_rms(float squares, int D, float eps) {
    return 1.0f / sqrtf(squares / (float)D + eps);
}

// THREADS threads that share a row: a CTA, or some warps of one.
template <int THREADS> struct Team {
    static constexpr int WARPS = THREADS / 32;
    float *partials; // WARPS * (SUMS + 1) numbers in shared memory
    int barrier;

    // Adds over each warp; `sum` then adds the warps. It may be called once between two barriers.
    template <int N> __device__ __forceinline__ void add(const float (&s)[N]) const {
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float sum = warp_sum(s[i]);
            if (threadIdx.x % 32 == 0)
                partials[threadIdx.x % THREADS / 32 * N + i] = sum;
        }
        named_barrier_sync(barrier, THREADS);
    }

    template <int N> __device__ __forceinline__ float sum(int i) const {
        float sum = partials[i];
#pragma unroll
        for (int warp = 1; warp < WARPS; warp++)
            sum += partials[warp * N + i];
        return sum;
    }

    __device__ __forceinline__ u32 largest(u32 x) const {
        u32 *const other = (u32 *)partials + WARPS * SUMS;
        x = warp_max(x);
        if (threadIdx.x % 32 == 0)
            other[threadIdx.x % THREADS / 32] = x;
        named_barrier_sync(barrier, THREADS);
#pragma unroll
        for (int warp = 0; warp < WARPS; warp++)
            x = max(x, other[warp]);
        return x;
    }
};

// ---- operands: a team has a row, each of its threads N float4

__device__ __forceinline__ float4 load_vec4(const float *from, int at) {
    return ((const float4 *)from)[at];
}

__device__ __forceinline__ float4 load_vec4(const bf16 *from, int at) {
    const uint2 in = ((const uint2 *)from)[at];
    return make_float4(__uint_as_float(in.x << 16), __uint_as_float(in.x & 0xffff0000), __uint_as_float(in.y << 16),
                       __uint_as_float(in.y & 0xffff0000));
}

template <int N, int THREADS = ROW_THREADS> struct RowFragment {
    float4 x[N];

    // The number of vector i among all float4 of the row.
    static __device__ __forceinline__ int at(int i) {
        return threadIdx.x % THREADS + i * THREADS;
    }

    // Vectors beyond the row are zeros.
    template <class In> __device__ __forceinline__ void load(const In *row, int columns) {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = at(i) < columns / 4 ? load_vec4(row, at(i)) : make_float4(0, 0, 0, 0);
    }

    __device__ __forceinline__ void store(float *row, int columns) const {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (at(i) < columns / 4)
                ((float4 *)row)[at(i)] = x[i];
    }

    __device__ __forceinline__ float dot(const RowFragment &y) const {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < N; i++)
            sum = fmaf(x[i].x, y.x[i].x, fmaf(x[i].y, y.x[i].y, fmaf(x[i].z, y.x[i].z, fmaf(x[i].w, y.x[i].w, sum))));
        return sum;
    }

    __device__ __forceinline__ void add(const RowFragment &y) {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = make_float4(x[i].x + y.x[i].x, x[i].y + y.x[i].y, x[i].z + y.x[i].z, x[i].w + y.x[i].w);
    }

    __device__ __forceinline__ void multiply(float factor, const RowFragment &y) {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = make_float4(x[i].x * factor * y.x[i].x, x[i].y * factor * y.x[i].y, x[i].z * factor * y.x[i].z,
                               x[i].w * factor * y.x[i].w);
    }

    __device__ __forceinline__ u32 amax() const {
        u32 amax = 0;
#pragma unroll
        for (int i = 0; i < N; i++)
            amax = max(max(amax, max(__float_as_uint(fabsf(x[i].x)), __float_as_uint(fabsf(x[i].y)))),
                       max(__float_as_uint(fabsf(x[i].z)), __float_as_uint(fabsf(x[i].w))));
        return amax;
    }
};

// Operands in bf16, row by row.
struct Bf16Rows {
    unsigned char *to;

    // Whether the numbers are divided by the rms, or the epilogue of the product does it.
    static constexpr bool normed = true;

    template <int N> __device__ __forceinline__ void write(const RowFragment<N> &n, int row, int columns) const {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (n.at(i) < columns / 4)
                *(uint2 *)(to + ((size_t)row * columns + 4 * n.at(i)) * 2) = to_bf16x4(n.x[i]);
    }
};

// The scale of a row, which maps its largest magnitude to 448.
__device__ __forceinline__ float scale_of(u32 amax) {
    return amax ? __uint_as_float(amax) / E4m3::max : 1.0f;
}

// Operands in E4M3, row by row, with a scale for each row.
struct E4m3Rows {
    unsigned char *to;
    float *scales;

    static constexpr bool normed = true;

    template <int N> __device__ __forceinline__ void write(const RowFragment<N> &n, int row, int columns) const {
        __shared__ u32 partials[ROW_THREADS / 32];
        const float scale = scale_of(block_max(n.amax(), partials));
        if (threadIdx.x == 0)
            scales[row] = scale;
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float4 x = n.x[i];
            const u32 codes = E4m3::encode2(x.x / scale, x.y / scale) | E4m3::encode2(x.z / scale, x.w / scale) << 16;
            if (n.at(i) < columns / 4)
                *(u32 *)(to + (size_t)row * columns + 4 * n.at(i)) = codes;
        }
    }
};

// The E8M0 exponent of MXFP8: the least power of two by which the largest magnitude, given by its bits, is at most 448; 255 if it
// is not finite.
__device__ __forceinline__ u32 exponent_of(u32 largest) {
    const int field = largest >> 23;
    return field == 255 ? 255 : max(field - 8 + ((largest & 0x7fffff) > 0x600000), 1);
}

// The power of two of an exponent, and its inverse.
__device__ __forceinline__ float power_of(u32 exponent) {
    return __uint_as_float(exponent << 23);
}

__device__ __forceinline__ float inverse_power_of(u32 exponent) {
    return exponent == 255 ? __uint_as_float(0x7fffffff) : __uint_as_float((254 - exponent) << 23);
}

// Leaves headroom of 4 bits: codes of E4M3 are as exact if the largest is 28 as if it is 448.
__device__ __forceinline__ u32 with_headroom(u32 exponent) {
    return exponent == 255 ? 255 : exponent + 4;
}

// The exponent of some numbers of a row: the one the row had `before` if it fits, since all columns need the same for the product.
__device__ __forceinline__ u32 next_exponent(u32 largest, u32 before) {
    const u32 exponent = exponent_of(largest);
#ifdef MUTANT_EXPONENT_NEVER_LOWERED
    return largest == 0 || exponent <= before ? before : with_headroom(exponent);
#endif
    return largest == 0 || (exponent <= before && exponent + 7 >= before) ? before : with_headroom(exponent);
}

// The exponents of E4M3 n lie after it: [columns / 128, 128 rows, 4] for each block of 128 rows.
__device__ __forceinline__ u8 *exponents_of(unsigned char *n, int rows, int columns, int block) {
    return n + (size_t)rows * columns + (size_t)block * TILE_ROWS * (columns / 32);
}

// After these lie the exponents with which rows were last multiplied.
__device__ __forceinline__ u8 *row_exponents_of(unsigned char *n, int rows, int columns) {
    return exponents_of(n, rows, columns, rows / TILE_ROWS);
}

// n in swizzled tiles: bf16, or CODES of MXFP8, with an exponent for 32 numbers; of each sixteen codes, two of the first eight and
// two of the second in turn.
template <bool CODES, int THREADS> struct TiledRows {
    unsigned char *to;
    int rows;
    Team<THREADS> team;

    static constexpr bool normed = false;

    template <int N> __device__ __forceinline__ void write(const RowFragment<N, THREADS> &n, int row, int columns) const {
        if constexpr (CODES) {
            // The exponent of the whole row's largest magnitude serves as well.
            const u32 exponent = with_headroom(exponent_of(team.largest(n.amax())));
            const float by = inverse_power_of(exponent);
#pragma unroll
            for (int i = 0; i < N; i++) {
                if (n.at(i) >= columns / 4)
                    continue;
                const int in_sixteen = n.at(i) % 4;
                unsigned char *const at =
                    to + activation_byte(row, n.at(i) / 4 * 16, columns) + in_sixteen % 2 * 8 + in_sixteen / 2 * 2;
                *(u16 *)at = E4m3::encode2(n.x[i].x * by, n.x[i].y * by);
                *(u16 *)(at + 4) = E4m3::encode2(n.x[i].z * by, n.x[i].w * by);
            }
            const int rank = threadIdx.x % THREADS;
            if (rank < columns / 128)
                ((u32 *)exponents_of(to, rows, columns, row / TILE_ROWS))[rank * TILE_ROWS + row % TILE_ROWS] =
                    exponent * 0x01010101u;
        } else {
#pragma unroll
            for (int i = 0; i < N; i++)
                if (n.at(i) < columns / 4)
                    *(uint2 *)(to + activation_byte(row, 8 * n.at(i), 2 * columns)) = to_bf16x4(n.x[i]);
        }
    }
};

template <class Operand, int N, int THREADS>
__device__ __forceinline__ void write_operand(Operand operand, RowFragment<N, THREADS> &x, float squares,
                                              const RowFragment<N, THREADS> &weight, int row, int D, float eps) {
    x.multiply(Operand::normed ? inverse_rms(squares, D, eps) : 1.0f, weight);
    operand.write(x, row, D);
}
