import numpy as np
import ulplab
from entry import Entry

ENTRY = Entry(
    id="N3",
    op="rmsnorm",
    of="RMSNorm of Gemma's kind, whose weights are stored less 1",
    fault="1 is added to weights that have it already",
    symptom="fluent text, or pictures, of the wrong subject",
    threads=("https://github.com/utensils/mold/issues/1074", "https://github.com/linkedin/Liger-Kernel/issues/74"),
    escaped="only the fallback for little memory reads files in which the 1 is folded in",
)


def inputs(rng):
    x, weight = rng.standard_normal((20, 320)), rng.standard_normal(320) / 8
    return dict(x=x.astype(np.float32), weight=weight.astype(np.float32), zero_centered=1)


def kernel(inputs, fault):
    x, folded = inputs["x"], 1 + inputs["weight"]
    rows = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-6))
    return rows * (1 + folded if fault else folded)


def gate(inputs, got):
    ulplab.assert_close(got, op="rmsnorm", inputs=inputs)
