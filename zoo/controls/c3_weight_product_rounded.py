import numpy as np
import ulplab
from entry import Entry
from ml_dtypes import bfloat16

ENTRY = Entry(
    id="C3",
    op="rmsnorm",
    of="RMSNorm in bf16",
    fault="rows are rounded to bf16 before they are multiplied by the weight, or not",
    symptom="up to 3e-2 of an element between two legal definitions: a reference must say where it rounds",
    threads=("https://github.com/vllm-project/vllm/issues/42325",),
)


def inputs(rng):
    return dict(
        x=(3 * rng.standard_normal((32, 512))).astype(bfloat16), weight=(1 + rng.standard_normal(512) / 4).astype(bfloat16)
    )


def kernel(inputs, chosen):
    x, weight = (inputs[name].astype(np.float32) for name in ("x", "weight"))
    rows = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-6))
    rows = rows.astype(bfloat16).astype(np.float32) if chosen else rows
    return chosen, (rows * weight).astype(bfloat16)


def gate(inputs, got):
    chosen, y = got
    ulplab.assert_close(y, op="rmsnorm", inputs={**inputs, "cast": "before_weight" if chosen else "after_weight"})


def numbers(inputs, got):
    return got[1]
