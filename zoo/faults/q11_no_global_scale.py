import numpy as np
import ulplab
from blocks import blocks, e2m1
from entry import Entry, decoded
from ml_dtypes import float8_e4m3fn

ENTRY = Entry(
    id="Q11",
    op="matmul",
    format="nvfp4",
    of="NVFP4 quantize with a static scale above the scales",
    fault="values are divided by the scale of their block only",
    symptom="all codes are 0",
    threads=("https://github.com/jax-ml/jax/pull/30467",),
    escaped="the product was compared with that of the same quantized operands: 0 with 0",
)


def inputs(rng):
    return rng.standard_normal((21, 176)).astype(np.float32), rng.standard_normal((34, 176)).astype(np.float32)


def quantized(x, fault):
    right = ulplab.quantize(x, "nvfp4", "vllm")
    scales = right.scales.view(float8_e4m3fn).astype(np.float32)
    factors = 1 / scales if fault else 1 / (scales * (1 / right.global_scale))
    return e2m1(blocks(x, 16) * factors[..., None]), right.scales, right.global_scale


def kernel(inputs, fault):
    return [quantized(x, fault) for x in inputs]


def gate(inputs, got):
    for x, (codes, scales, g) in zip(inputs, got):
        ulplab.assert_quantized(codes, scales, x, "nvfp4", g, rule="vllm")


def want(inputs):
    return numbers(inputs, kernel(inputs, True))


def numbers(inputs, got):
    a, b = (decoded(ulplab.quantize(x, "nvfp4", "vllm"), codes=part[0]) for x, part in zip(inputs, got))
    return a @ b.T


def source(inputs):
    a, b = inputs
    return a @ b.T
