import numpy as np
import ulplab
from layers import attend, normal
from entry import Entry

ENTRY = Entry(
    id="X2",
    op="attention",
    of="causal attention",
    fault="the mask is not applied",
    symptom="the test passes at a correlation of 0.086",
    threads=("https://github.com/Xilinx/mlir-air/issues/1427",),
    escaped="values lay in 0.5 to 1, and tolerances of 0.5 and 20 % pass everything between -0.2 and 1.7",
)


def inputs(rng):
    return dict(q=normal(rng, 1, 45, 4, 28), k=normal(rng, 1, 45, 2, 28), v=normal(rng, 1, 45, 2, 20), causal=1)


def usual(rng):
    drawn = inputs(rng)
    return {name: rng.uniform(0.5, 1, x.shape).astype(np.float32) if np.ndim(x) else x for name, x in drawn.items()}


def kernel(inputs, fault):
    q, k, v = (inputs[name][0] for name in "qkv")
    return attend(q, k, v, True if fault else np.tri(len(q), dtype=bool))[0][None]


def gate(inputs, got):
    ulplab.assert_close(got, op="attention", inputs=inputs, output="o")
