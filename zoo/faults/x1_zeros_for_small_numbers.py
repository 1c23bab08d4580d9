import numpy as np
import ulplab
from entry import Entry

ENTRY = Entry(
    id="X1",
    op="softmax",
    of="softmax over many columns, as a generated kernel was asked for",
    fault="the kernel returns zeros",
    symptom="4 of 60 problems count as solved, twice by models that nobody had told",
    threads=("https://github.com/ScalingIntelligence/KernelBench/issues/165",),
    escaped="outputs are smaller than the absolute tolerance, and zeros were never tried on the check",
)


def inputs(rng):
    return dict(x=(rng.standard_normal((9, 3001)) / 2).astype(np.float32))


def kernel(inputs, fault):
    weights = np.exp(inputs["x"] - inputs["x"].max(-1, keepdims=True))
    return np.zeros_like(weights) if fault else weights / weights.sum(-1, keepdims=True)


def gate(inputs, got):
    ulplab.assert_close(got, op="softmax", inputs=inputs)
