import numpy as np
import ulplab
from entry import Entry

ENTRY = Entry(
    id="C5",
    op="rmsnorm",
    of="RMSNorm without weight and ε",
    fault="rows are normalised once, or twice",
    symptom="a normalised row has unit size already: no check of values can tell, and none should",
    threads=("https://github.com/ggml-org/llama.cpp/pull/1925",),
)


def inputs(rng):
    return dict(x=(3 * rng.standard_normal((24, 320))).astype(np.float32), eps=0.0)


def kernel(inputs, chosen):
    y = inputs["x"]
    for _ in range(1 + chosen):
        y = y / np.sqrt((y * y).mean(-1, keepdims=True))
    return y


def gate(inputs, got):
    ulplab.assert_close(got, op="rmsnorm", inputs=inputs)


def numbers(inputs, got):
    return got
