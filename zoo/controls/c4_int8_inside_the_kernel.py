import numpy as np
import ulplab
from entry import Entry

ENTRY = Entry(
    id="C4",
    op="matmul",
    format="int8",
    of="product with weights of four bits",
    fault="the kernel quantizes activations to int8 in blocks of 32, or does not",
    symptom="the loss is intended: a gate that repeats the cast can be tight, one that does not must be wide",
    threads=("https://github.com/SKaiNET-developers/SKaiNET/issues/944",),
)
ROWS, COLUMNS, K, BLOCK = 5, 7, 96, 32


def inputs(rng):
    return dict(
        a=rng.standard_normal((ROWS, K)).astype(np.float32),
        b=rng.integers(-8, 8, (COLUMNS, K)).astype(np.int8),
        b_scale=rng.uniform(0.01, 0.1, (COLUMNS, K // BLOCK)).astype(np.float32),
        b_rows="n",
    )


def int8(a):
    """Codes, and a scale of each block: amax / 127."""
    blocks = a.reshape(len(a), -1, BLOCK)
    scale = np.abs(blocks).max(-1) / np.float32(127)
    return np.rint(blocks / scale[..., None]).astype(np.int8).reshape(a.shape), scale


def kernel(inputs, chosen):
    codes, scale = int8(inputs["a"]) if chosen else (inputs["a"], np.ones((ROWS, K // BLOCK), np.float32))
    parts = [x.reshape(len(x), -1, BLOCK).astype(np.float32) for x in (codes, inputs["b"])]
    sums = np.einsum("mgk,ngk->mng", *parts)
    return chosen, (sums * scale[:, None] * inputs["b_scale"]).sum(-1)


def gate(inputs, got):
    chosen, y = got
    cast = dict(zip(("a", "a_scale"), int8(inputs["a"]))) if chosen else {}
    ulplab.assert_close(y, op="matmul", inputs={**inputs, **cast})
