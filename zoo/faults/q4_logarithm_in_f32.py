import numpy as np
import ulplab
from blocks import blocks, e4m3, largest, power_above
from entry import Entry

ENTRY = Entry(
    id="Q4",
    op="quantize",
    format="fp8",
    of="FP8 quantize, blocks of 128 with power-of-two scales",
    fault="the exponent is the ceiling of a logarithm in f32, which is whole just above a power of two, too",
    symptom="scales are half of those that the product works with, and the largest elements saturate",
    threads=("https://github.com/sgl-project/sglang/pull/29956",),
    escaped="the largest element of a block at random is never that near to a power of two",
)


def inputs(rng):
    """The largest element of every fifth block is just above 448 · 2ᵏ."""
    x = usual(rng) / 100
    x[:, 256] = 448 * np.exp2(rng.integers(-12, -8, len(x))) * (1 + 2**-23)
    return x


def usual(rng):
    return rng.standard_normal((23, 640)).astype(np.float32)


def kernel(x, fault):
    exact = np.maximum(largest(x, 128), np.float32(1e-4)) * np.float32(1 / 448)
    scales = np.exp2(np.ceil(np.log2(exact))) if fault else power_above(exact)
    return e4m3(blocks(x, 128) / scales[..., None]).reshape(x.shape), (np.log2(scales) + 127).astype(np.uint8)


def gate(x, got):
    ulplab.assert_quantized(*got, x, "fp8_b128", rule="act_quant")


def numbers(x, got):
    return ulplab.dequantize(*got, format="fp8_b128", shape=x.shape)
