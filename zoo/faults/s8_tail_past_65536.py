import numpy as np
import ulplab
from entry import Entry

ENTRY = Entry(
    id="S8",
    op="rmsnorm",
    of="gate on the output of linear attention",
    fault="the mask of the kernel ends at token 65,536",
    symptom="exact up to there, no gate afterwards",
    threads=("https://github.com/fla-org/flash-linear-attention/issues/906",),
    escaped="no test was so long",
    planted=("experts.rows_of_the_grid", "moe_fp4.rows_of_the_grid"),
)
LAST = 65_536


def inputs(rng, tokens=LAST + 9):
    x, gates = rng.standard_normal((2, tokens, 2)).astype(np.float32)
    return dict(x=x, gate=gates)


def usual(rng):
    return inputs(rng, 4099)


def kernel(inputs, fault):
    x, gates = inputs["x"], inputs["gate"]
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-6))
    gated = slice(LAST if fault else None)
    y[gated] *= (gates / (1 + np.exp(-gates)))[gated]
    return y


def gate(inputs, got):
    ulplab.assert_close(got, op="rmsnorm", inputs=inputs)
