import numpy as np
import ulplab
from entry import Entry
from ml_dtypes import float8_e4m3fn

ENTRY = Entry(
    id="C12",
    op="matmul",
    format="fp8",
    of="FP8 product on tensor cores",
    fault="sums keep 13 bits of fraction, or 22",
    symptom="what was measured is contested: the width is a parameter of the gate, not a tolerance",
    threads=("https://github.com/deepseek-ai/DeepGEMM/issues/37",),
)
TERMS = 32


def inputs(rng):
    a, b = (rng.standard_normal((rows, 192)).astype(float8_e4m3fn) for rows in (5, 9))
    return dict(a=a, b=b, b_rows="n")


def kernel(inputs, chosen):
    bits = 22 if chosen else 13
    a, b = (inputs[name].astype(np.float64) for name in "ab")
    sums = np.zeros((len(a), len(b), 1))
    for begin in range(0, a.shape[1], TERMS):
        part = slice(begin, begin + TERMS)
        terms = np.concatenate([sums, a[:, None, part] * b[None, :, part]], -1)
        unit = 2.0 ** (np.frexp(np.abs(terms).max(-1, keepdims=True))[1] - 1 - bits)
        sums = np.trunc(np.trunc(terms / unit).sum(-1, keepdims=True)) * unit
    return chosen, sums[..., 0].astype(np.float32)


def gate(inputs, got):
    chosen, y = got
    ulplab.assert_close(y, op="matmul", inputs=inputs, accumulate="f32" if chosen else "fp8_tensor_core")


def numbers(inputs, got):
    return got[1]
