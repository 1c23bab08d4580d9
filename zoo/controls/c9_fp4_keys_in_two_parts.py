import numpy as np
import ulplab
from entry import Entry

ENTRY = Entry(
    id="C9",
    op="attention",
    format="nvfp4",
    of="decode attention with NVFP4 keys and values",
    fault="keys are gone through in one part, or in two that are merged",
    symptom="splitting was under suspicion for corruption that it does not make: a suspect can be cleared",
    threads=("https://github.com/flashinfer-ai/flashinfer/issues/4749",),
)
KEYS, CUT = 77, 41


def inputs(rng):
    def read(heads, size):
        x = rng.standard_normal((KEYS, heads, size)) * rng.lognormal(0, 1, (KEYS, 1, 1))
        return ulplab.quantize(x.astype(np.float32), "nvfp4").dequantize()[None]

    return dict(q=rng.standard_normal((1, 1, 3, 48)).astype(np.float32), k=read(3, 48), v=read(3, 32))


def part(q, k, v):
    """Sum of weights, weighted sum of values, and the maximum that weights are relative to."""
    scores = np.einsum("hd,shd->hs", q, k) / np.float32(q.shape[-1] ** 0.5)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - top)
    return weights.sum(-1, keepdims=True), np.einsum("hs,she->he", weights, v), top


def kernel(inputs, chosen):
    q, k, v = inputs["q"][0, 0], inputs["k"][0], inputs["v"][0]
    parts = [part(q, k[rows], v[rows]) for rows in ((slice(CUT), slice(CUT, None)) if chosen else (slice(None),))]
    top = np.max([top for _, _, top in parts], 0)
    total, values = (sum(x[i] * np.exp(x[2] - top) for x in parts) for i in (0, 1))
    return (values / total)[None, None]


def gate(inputs, got):
    ulplab.assert_close(got, op="attention", inputs=inputs, output="o")


def numbers(inputs, got):
    return got
