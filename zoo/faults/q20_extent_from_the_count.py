import numpy as np
import ulplab
from entry import Entry
from ml_dtypes import float8_e4m3fn

ENTRY = Entry(
    id="Q20",
    op="matmul",
    format="fp8",
    of="FP8 weights in tiles of 128 × 128, the last one cut off",
    fault="the height of a tile is taken to be the rows divided by the scales: 116 for 576 rows, not 128",
    symptom="GSM8K 95.5 to 90.0",
    threads=("https://github.com/NVIDIA/TensorRT-LLM/pull/14793",),
    escaped="weights were cut into parts with a scale for each row, and there the quotient was right",
)


def drawn(rng, rows):
    w = rng.standard_normal((rows, 256)) * np.exp2(rng.integers(-3, 4, (5, 1))).repeat(128, 0)[:rows]
    return rng.standard_normal((7, 256)).astype(np.float32), w.astype(np.float32)


def inputs(rng):
    return drawn(rng, 576)


def usual(rng):
    return drawn(rng, 640)


def kernel(inputs, fault):
    x, w = inputs[0], ulplab.quantize(inputs[1], "fp8_b128x128")
    rows, count = w.shape[0], len(w.scales)
    height = -(-rows // count) if fault else 128
    scales = w.scales[np.arange(rows) // height].repeat(128, 1)
    return x @ (w.codes.view(float8_e4m3fn).astype(np.float32) * scales).T


def gate(inputs, got):
    x, w = inputs[0], ulplab.quantize(inputs[1], "fp8_b128x128")
    b = dict(b=w.codes.view(float8_e4m3fn), b_scale=w.scales, b_rows="n")
    ulplab.assert_close(got, op="matmul", inputs=dict(b, a=x))


def source(inputs):
    x, w = inputs
    return x @ w.T
