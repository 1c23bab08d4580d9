import numpy as np
import ulplab
from entry import Entry
from ml_dtypes import float8_e4m3fn

ENTRY = Entry(
    id="L4",
    op="matmul",
    format="fp8",
    of="FP8 product with scales of 1 × 128 blocks, which lie by columns",
    fault="the scales' strides say that they lie by rows",
    symptom="GSM8K 1 to 2 points lower, from 2 tokens on",
    threads=("https://github.com/sgl-project/sglang/pull/29275", "https://github.com/sgl-project/sglang/pull/31727"),
    escaped="tests of the producer compare values, and one token is right in either order",
)


def inputs(rng, tokens=6):
    a, b = (rng.standard_normal((rows, 384)).astype(np.float32) for rows in (tokens, 10))
    return [x * rng.lognormal(0, 1, (len(x), 1)).astype(np.float32) for x in (a, b)]


def usual(rng):
    return inputs(rng, 1)


def quantized(inputs):
    return [ulplab.quantize(x, "fp8_b128_f32") for x in inputs]


def kernel(inputs, fault):
    a, b = operands = quantized(inputs)
    stored = a.scales.T.copy()
    scales = stored.reshape(a.scales.shape) if fault else stored.T
    parts = [x.codes.view(float8_e4m3fn).astype(np.float32).reshape(len(x.codes), -1, 128) for x in operands]
    return (np.einsum("mgk,ngk->mng", *parts) * scales[:, None] * b.scales).sum(-1)


def gate(inputs, got):
    a, b = operands = quantized(inputs)
    codes = {name: x.codes.view(float8_e4m3fn) for name, x in zip("ab", operands)}
    ulplab.assert_close(got, op="matmul", inputs=dict(**codes, a_scale=a.scales, b_scale=b.scales, b_rows="n"))


def source(inputs):
    a, b = inputs
    return a @ b.T
