import numpy as np
import ulplab
from entry import Entry
from ml_dtypes import float8_e4m3fn

ENTRY = Entry(
    id="C8",
    op="matmul",
    format="fp8",
    of="FP8 product with scales of 1 × 128 blocks",
    fault="scales lie in memory by rows, or by columns, each with strides that say so",
    symptom="a likely cause of lost accuracy that measuring refuted: order in memory is no value",
    threads=("https://github.com/sgl-project/sglang/pull/31617",),
)


def inputs(rng):
    a, b = (rng.standard_normal((rows, 384)).astype(np.float32) for rows in (6, 10))
    return [ulplab.quantize(x * rng.lognormal(0, 2, (len(x), 1)).astype(np.float32), "fp8_b128_f32") for x in (a, b)]


def operands(inputs, chosen):
    a, b = inputs
    codes = [x.codes.view(float8_e4m3fn) for x in inputs]
    a_scale = np.asfortranarray(a.scales) if chosen else np.ascontiguousarray(a.scales)
    return dict(a=codes[0], a_scale=a_scale, b=codes[1], b_scale=b.scales, b_rows="n")


def kernel(inputs, chosen):
    given = operands(inputs, chosen)
    parts = [given[name].astype(np.float32).reshape(len(given[name]), -1, 128) for name in "ab"]
    sums = np.einsum("mgk,ngk->mng", *parts)
    return chosen, (sums * given["a_scale"][:, None] * given["b_scale"]).sum(-1)


def gate(inputs, got):
    chosen, y = got
    ulplab.assert_close(y, op="matmul", inputs=operands(inputs, chosen))


def numbers(inputs, got):
    return got[1]
