/*
[[variant]]
name = "simple"
doc = "one thread for each element"

[[variant.launch]]
entry = "dequantize_simple_{format}_{dtype}"
grid = ["ceil(T * C, 256)"]
block = [256]
args = ["data", "scale", "amax", "y", "T", "C"]

[[variant]]
name = "fast"
doc = "two vectors of eight for each thread, contiguous for each thread block"
needs = ["C % W == 0"]

[[variant.launch]]
entry = "dequantize_fast_{format}_{dtype}"
grid = ["ceil(T * C, 4096)"]
block = [256]
args = ["data", "scale", "amax", "y", "T", "C"]

[[variant]]
name = "bulk"
doc = "four vectors of eight for each thread; a bulk copy takes the numbers of a warp from shared memory: the fastest of many rows"
arch = "sm_90a"
needs = ["C % W == 0"]

[[variant.launch]]
entry = "dequantize_bulk_{format}_{dtype}"
grid = ["ceil(T * C, 8192)"]
block = [256]
args = ["data", "scale", "amax", "y", "T", "C"]

[[mutant]]
name = "nibble_order"
doc = "of two 4-bit codes the first from the high nibble"

[[mutant]]
name = "subnormal_scale_flushed"
doc = "the scale 2^-127 taken for zero"

[[mutant]]
name = "neighbour_scale"
doc = "the scale of the block before"
*/

// reference: crates/core/formats/quantize.rs

#include "lib/formats.cuh"
#include "lib/tma.cuh"

#ifdef MUTANT_NEIGHBOUR_SCALE
#define BLOCK(index) ((index) - ((index) > 0))
#else
#define BLOCK(index) (index)
#endif

template <class F, class T>
__device__ void simple(const u8 *data, const typename F::Stored *scales, const float *amax, T *y, int rows, int cols) {
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= (size_t)rows * cols)
        return;
    const int across = (cols + F::width - 1) / F::width;
    const int block = (int)(at / cols) * across + (int)(at % cols) / F::width;
    const typename F::Level level(amax);
    const float factor = F::Rule::decode(scales[BLOCK(block)], level);
    const u32 code = F::Element::bits == 8 ? data[at] : data[at / 2] >> F::Element::shift(at % 2);
    from_f32(y[at], F::Element::decode(code) * factor);
}

// The vectors of a thread; all loads are issued before the first is used.
constexpr int VECTORS = 2, BULK_VECTORS = 4;

template <class F, class T>
__device__ void fast(const typename F::Codes *data, const typename F::Stored *scales, const float *amax, T *y, int rows,
                     int cols) {
    const int count = rows * (cols / 8), first = blockIdx.x * VECTORS * blockDim.x + threadIdx.x;
    typename F::Codes codes[VECTORS];
    typename F::Stored scale[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const int at = first + i * blockDim.x;
        if (at < count) {
            codes[i] = __ldcs(data + at);
            scale[i] = __ldg(scales + BLOCK(at / F::lanes));
        }
    }
    const typename F::Level level(amax);
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const int at = first + i * blockDim.x;
        if (at >= count)
            break;
        const float factor = F::Rule::decode(scale[i], level);
        float out[8];
        F::Element::decode8(codes[i], out);
#pragma unroll
        for (int k = 0; k < 8; k++)
            out[k] *= factor;
        Vec8<T>::store(y, at, out);
    }
}

// A warp's numbers lie next to each other, and leave by way of shared memory.
template <class F, class T>
__device__ void bulk(const typename F::Codes *data, const typename F::Stored *scales, const float *amax, T *y, int rows,
                     int cols) {
    __shared__ __align__(128) T tiles[8][BULK_VECTORS * 32 * 8];
    const int count = rows * (cols / 8), lane = threadIdx.x % 32;
    const int begin = (blockIdx.x * blockDim.x + threadIdx.x - lane) * BULK_VECTORS;
    T *const tile = tiles[threadIdx.x / 32];
    typename F::Codes codes[BULK_VECTORS];
    typename F::Stored scale[BULK_VECTORS];
#pragma unroll
    for (int i = 0; i < BULK_VECTORS; i++) {
        const int at = begin + i * 32 + lane;
        if (at < count) {
            codes[i] = __ldcs(data + at);
            scale[i] = __ldg(scales + BLOCK(at / F::lanes));
        }
    }
    const typename F::Level level(amax);
#pragma unroll
    for (int i = 0; i < BULK_VECTORS; i++) {
        if (begin + i * 32 + lane >= count)
            break;
        const float factor = F::Rule::decode(scale[i], level);
        float out[8];
        F::Element::decode8(codes[i], out);
#pragma unroll
        for (int k = 0; k < 8; k++)
            out[k] *= factor;
        Vec8<T>::store(tile, i * 32 + lane, out);
    }
    fence_proxy_async_smem();
    __syncwarp();
    if (lane == 0 && begin < count) {
        tma_store_1d(y + (size_t)begin * 8, tile, min(count - begin, BULK_VECTORS * 32) * 8 * (int)sizeof(T));
        tma_store_wait_read();
    }
}

#define BOTH(FORMAT, DTYPE, T)                                                                                                 \
    KERNEL(dequantize_simple_##FORMAT##_##DTYPE, __launch_bounds__(256))(const u8 *data, const FORMAT::Stored *scale,          \
                                                                         const float *amax, T *y, int rows, int cols) {        \
        simple<FORMAT>(data, scale, amax, y, rows, cols);                                                                      \
    }                                                                                                                          \
    KERNEL(dequantize_fast_##FORMAT##_##DTYPE, __launch_bounds__(256))(const FORMAT::Codes *data, const FORMAT::Stored *scale, \
                                                                       const float *amax, T *y, int rows, int cols) {          \
        fast<FORMAT>(data, scale, amax, y, rows, cols);                                                                        \
    }                                                                                                                          \
    KERNEL(dequantize_bulk_##FORMAT##_##DTYPE, __launch_bounds__(256))(const FORMAT::Codes *data, const FORMAT::Stored *scale, \
                                                                       const float *amax, T *y, int rows, int cols) {          \
        bulk<FORMAT>(data, scale, amax, y, rows, cols);                                                                        \
    }

#define ENTRIES(FORMAT, ...) BOTH(FORMAT, bf16, bf16) BOTH(FORMAT, f32, float)

FOR_ALL_FORMATS(ENTRIES)
