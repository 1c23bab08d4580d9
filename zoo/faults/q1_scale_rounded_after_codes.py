import numpy as np
import ulplab
from entry import Entry

ENTRY = Entry(
    id="Q1",
    op="quantize",
    format="fp8",
    of="FP8 quantize, blocks of 128 with power-of-two scales",
    fault="codes are of x / s, and the power of two above s is stored",
    symptom="numbers up to twice as large; acceptance of drafts 2.76 to 2.69",
    threads=("https://github.com/sgl-project/sglang/pull/28418",),
    escaped="another path applies f32 scales after the product, and the metric of the end hardly moves",
)


def inputs(rng):
    return rng.standard_normal((64, 512)).astype(np.float32)


def kernel(x, fault):
    right = ulplab.quantize(x, "fp8_b128")
    if not fault:
        return right.codes, right.scales
    exact = ulplab.quantize(x, "fp8_b128_f32")
    return exact.codes, right.scales


def gate(x, got):
    ulplab.assert_quantized(*got, x, "fp8_b128")


def numbers(x, got):
    return ulplab.dequantize(*got, format="fp8_b128", shape=x.shape)
