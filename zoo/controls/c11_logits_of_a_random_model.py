import numpy as np
import ulplab
from entry import Entry
from ml_dtypes import bfloat16

ENTRY = Entry(
    id="C11",
    op="rmsnorm",
    of="last norm and logits of a model with random weights",
    fault="the norm rounds to bf16 before its weight, or once at the end",
    symptom="logits are nearly equal: the last bit changes the text, though each operation is right",
    threads=("https://github.com/vllm-project/vllm/pull/53837",),
)


def inputs(rng):
    def drawn(*shape):
        return (0.02 * rng.standard_normal(shape)).astype(bfloat16)

    return dict(x=drawn(150, 256), weight=1 + drawn(256), head=drawn(401, 256))


def kernel(inputs, chosen):
    x, weight, head = (inputs[name].astype(np.float32) for name in ("x", "weight", "head"))
    rows = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-6))
    rows = rows.astype(bfloat16).astype(np.float32) if chosen else rows
    y = (rows * weight).astype(bfloat16)
    return chosen, y, (y.astype(np.float32) @ head.T).astype(bfloat16)


def gate(inputs, got):
    chosen, y, logits = got
    norm = dict(x=inputs["x"], weight=inputs["weight"], cast="before_weight" if chosen else "after_weight")
    ulplab.assert_close(y, op="rmsnorm", inputs=norm)
    ulplab.assert_close(logits, op="matmul", inputs=dict(a=y, b=inputs["head"], b_rows="n"))


def numbers(inputs, got):
    return got[1]
