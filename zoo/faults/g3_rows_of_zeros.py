import numpy as np
import ulplab
from entry import Entry
from ml_dtypes import float8_e4m3fn

ENTRY = Entry(
    id="G3",
    op="matmul",
    format="nvfp4",
    of="NVFP4 product, tiles of 16 rows",
    fault="rows of the last tile are zeros if it is less than half full",
    symptom="zeros in some rows at some numbers of rows",
    threads=("https://github.com/flashinfer-ai/flashinfer/issues/3398",),
    escaped="the tests' numbers of rows were few and round",
)
TILE = 16


def inputs(rng, rows=37):
    return [rng.standard_normal((n, 96)).astype(np.float32) for n in (rows, 21)]


def usual(rng):
    return inputs(rng, 32)


def quantized(inputs):
    return [ulplab.quantize(x, "nvfp4", "vllm") for x in inputs]


def kernel(inputs, fault):
    a, b = (x.dequantize() for x in quantized(inputs))
    y = a @ b.T
    tail = len(y) % TILE
    if fault and 0 < tail < TILE // 2:
        y[-tail:] = 0
    return y


def gate(inputs, got):
    a, b = quantized(inputs)
    given = dict(a=a.codes, b=b.codes, a_codes="e2m1", b_codes="e2m1", b_rows="n")
    given.update(a_scale=a.scales.view(float8_e4m3fn), b_scale=b.scales.view(float8_e4m3fn))
    alpha = 1 / (a.global_scale.item() * b.global_scale.item())
    ulplab.assert_close(got, op="matmul", inputs={**given, "alpha": alpha})


def source(inputs):
    a, b = inputs
    return a @ b.T
