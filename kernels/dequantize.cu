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

// reference: core/formats/quantize.rs

#include "lib/formats.cuh"

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
constexpr int VECTORS = 2;

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

#define BOTH(FORMAT, DTYPE, T)                                                                                 \
    extern "C" __global__ void __launch_bounds__(256) dequantize_simple_##FORMAT##_##DTYPE(                    \
        const u8 *data, const FORMAT::Stored *scale, const float *amax, T *y, int rows, int cols) {            \
        simple<FORMAT>(data, scale, amax, y, rows, cols);                                                      \
    }                                                                                                          \
    extern "C" __global__ void __launch_bounds__(256) dequantize_fast_##FORMAT##_##DTYPE(                      \
        const FORMAT::Codes *data, const FORMAT::Stored *scale, const float *amax, T *y, int rows, int cols) { \
        fast<FORMAT>(data, scale, amax, y, rows, cols);                                                        \
    }

#define ENTRIES(FORMAT, ...) BOTH(FORMAT, bf16, bf16) BOTH(FORMAT, f32, float)

FOR_ALL_FORMATS(ENTRIES)
