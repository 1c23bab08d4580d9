import numpy as np
import ulplab
from layers import attend, normal
from entry import Entry

ENTRY = Entry(
    id="A6",
    op="attention",
    of="attention with a sink for each head",
    fault="the denominator lacks the exponential of the sink",
    symptom="1.0, where equal values give 0.3013",
    threads=("https://github.com/modular/modular/pull/6591",),
    escaped="other GPUs have a kernel with the sink, and this one, which they fall back to, was not tested with it",
    planted=("record_attention.sink_left_out", "sparse_attention.sink_left_out"),
)


def inputs(rng):
    q, k, v = normal(rng, 1, 45, 6, 36), normal(rng, 1, 51, 2, 36), normal(rng, 1, 51, 2, 20)
    return dict(q=q, k=k, v=v, sinks=rng.uniform(3, 4, 6).astype(np.float32))


def kernel(inputs, fault):
    q, k, v = (inputs[name][0] for name in "qkv")
    return attend(q, k, v, sinks=None if fault else inputs["sinks"])[0][None]


def gate(inputs, got):
    ulplab.assert_close(got, op="attention", inputs=inputs, output="o")
