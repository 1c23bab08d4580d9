import numpy as np
import ulplab
from blocks import blocks, e4m3, largest
from entry import Entry

ENTRY = Entry(
    id="Q14",
    op="quantize",
    format="fp8",
    of="FP8 activations in blocks of 128",
    fault="the largest value is taken for 224, where the format has 448",
    symptom="half of the range is never used, and small elements lose a bit",
    threads=("https://github.com/sgl-project/sglang/pull/30900", "https://github.com/vllm-project/vllm/pull/50467"),
    escaped="numbers survive the way there and back, only less exactly",
)


def inputs(rng):
    return rng.standard_normal((31, 640)).astype(np.float32)


def kernel(x, fault):
    scales = np.maximum(largest(x, 128), np.float32(1e-4)) / np.float32(224 if fault else 448)
    return e4m3(blocks(x, 128) * (1 / scales)[..., None]).reshape(x.shape), scales


def gate(x, got):
    ulplab.assert_quantized(*got, x, "fp8_b128_f32")


def want(x):
    return x


def numbers(x, got):
    return ulplab.dequantize(*got, format="fp8_b128_f32", shape=x.shape)
