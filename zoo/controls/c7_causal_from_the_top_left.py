import numpy as np
import ulplab
from entry import Entry

ENTRY = Entry(
    id="C7",
    op="attention",
    of="causal attention with more keys than queries",
    fault="the first query sees the first key alone, or the last query sees all keys",
    symptom="both conventions are published: a fix from one to the other is no evidence of a bug",
    threads=("https://github.com/ROCm/flash-attention/pull/185", "https://github.com/NVIDIA/cutlass/issues/2336"),
)
QUERIES, KEYS = 11, 29


def inputs(rng):
    def drawn(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    return dict(q=drawn(1, QUERIES, 3, 20), k=drawn(1, KEYS, 3, 20), v=drawn(1, KEYS, 3, 14), causal=1)


def kernel(inputs, chosen):
    q, k, v = (inputs[name] for name in "qkv")
    scores = np.einsum("bthd,bshd->bhts", q, k) / np.float32(q.shape[-1] ** 0.5)
    seen = np.arange(KEYS) <= np.arange(QUERIES)[:, None] + (0 if chosen else KEYS - QUERIES)
    weights = np.exp(np.where(seen, scores, -np.inf) - scores.max(-1, keepdims=True))
    return chosen, np.einsum("bhts,bshe->bthe", weights / weights.sum(-1, keepdims=True), v)


def gate(inputs, got):
    chosen, o = got
    first = {name: inputs[name][:, :QUERIES] for name in "kv"} if chosen else {}
    ulplab.assert_close(o, op="attention", inputs={**inputs, **first}, output="o")
