import numpy as np
import ulplab
from entry import Entry
from ml_dtypes import float8_e4m3fn

ENTRY = Entry(
    id="L6",
    op="matmul",
    format="fp8",
    of="FP8 product with a scale of each row",
    fault="the scale of row 0 is that of all rows",
    symptom="91 to 94 % of elements off before the fix",
    threads=("https://github.com/ROCm/aiter/pull/1258",),
    escaped="no test took this path",
)


def inputs(rng):
    a, b = (rng.standard_normal((rows, 75)).astype(np.float32) for rows in (11, 13))
    return [x * rng.lognormal(0, 0.3, (len(x), 1)).astype(np.float32) for x in (a, b)]


def quantized(inputs):
    return [ulplab.quantize(x, "fp8_token") for x in inputs]


def kernel(inputs, fault):
    a, b = operands = quantized(inputs)
    sums = np.einsum("mk,nk->mn", *(x.codes.view(float8_e4m3fn).astype(np.float32) for x in operands))
    return sums * (a.scales[:1] if fault else a.scales) * b.scales.T


def gate(inputs, got):
    a, b = operands = quantized(inputs)
    codes = {name: x.codes.view(float8_e4m3fn) for name, x in zip("ab", operands)}
    ulplab.assert_close(got, op="matmul", inputs=dict(**codes, a_scale=a.scales, b_scale=b.scales, b_rows="n"))


def source(inputs):
    a, b = inputs
    return a @ b.T
