import numpy as np
import ulplab
from blocks import blocks
from entry import Entry

ENTRY = Entry(
    id="Q5",
    op="quantize",
    format="fp8",
    of="FP8 KV cache in blocks of 64, E4M3 encoded in software",
    fault="the largest exponent counts as overflow: all from 256 on becomes 448",
    symptom="the largest elements of a block are up to 75 % too large",
    threads=("https://github.com/sgl-project/sglang/pull/40581",),
    escaped="other devices cast in hardware, and few elements of a block are that large",
)


def inputs(rng):
    return rng.standard_normal((37, 448)).astype(np.float32)


def encode(values, fault):
    magnitude = np.minimum(np.abs(values), np.float32(448))
    exponent = np.maximum(np.frexp(magnitude)[1] - 1, -6)
    steps = np.rint(np.ldexp(magnitude, 3 - exponent)).astype(np.int32)
    codes = (exponent + 6) * 8 + steps
    codes = np.where(codes >= 15 << 3, 0x7E, codes) if fault else codes
    return (codes | np.signbit(values) << 7).astype(np.uint8)


def kernel(x, fault):
    scales = ulplab.quantize(x, "fp8_b64").scales
    powers = np.ldexp(np.float32(1), scales.astype(np.int32) - 127)
    return encode(blocks(x, 64) / powers[..., None], fault).reshape(x.shape), scales


def gate(x, got):
    ulplab.assert_quantized(*got, x, "fp8_b64")


def numbers(x, got):
    return ulplab.dequantize(*got, format="fp8_b64", shape=x.shape)
