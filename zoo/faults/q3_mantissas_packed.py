import numpy as np
import ulplab
from entry import Entry

ENTRY = Entry(
    id="Q3",
    op="quantize",
    format="fp8",
    of="FP8 activations, four power-of-two scales packed into a word",
    fault="f32 scales that are no powers of two are packed, and mantissa bits reach the scale beside",
    symptom="NaN when one token is decoded, and text without sense",
    threads=("https://github.com/sgl-project/sglang/pull/25733",),
    escaped="scales of tests were powers of two, whose mantissa bits are 0",
)


def inputs(rng):
    return rng.standard_normal((13, 1536)).astype(np.float32)


def usual(rng):
    x = inputs(rng).reshape(13, 12, 128)
    x[..., 0] = 448 * np.exp2(rng.integers(-6, -4, (13, 12)))
    return x.reshape(13, 1536)


def kernel(x, fault):
    quantized = ulplab.quantize(x, "fp8_b128_f32" if fault else "e4m3/b128:f32(act_quant)")
    bits = quantized.scales.view(np.uint32)
    words = bits[:, ::4] >> 23 | bits[:, 1::4] >> 15 | bits[:, 2::4] >> 7 | bits[:, 3::4] << 1
    return quantized.codes, words.view(np.uint8)


def gate(x, got):
    ulplab.assert_quantized(*got, x, "fp8_b128")


def numbers(x, got):
    return ulplab.dequantize(*got, format="fp8_b128", shape=x.shape)
