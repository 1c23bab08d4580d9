import numpy as np
import ulplab
from layers import attend, merged, normal
from entry import Entry

ENTRY = Entry(
    id="A2",
    op="attention",
    of="attention over a cached prefix and over new tokens, merged",
    fault="the prefix's kernel gives logarithms to base 2, and the merge takes them for natural ones",
    symptom="an error of 0.105 where 0.0005 is right, with every prefix that is found in the cache",
    threads=(
        "https://github.com/sgl-project/sglang/issues/40903",
        "https://github.com/flashinfer-ai/flashinfer/issues/4485",
    ),
    escaped="each kernel is right alone, and only a prefix hit merges",
)
NEW = 23


def drawn(rng, prefix):
    keys = prefix + NEW
    return dict(q=normal(rng, 1, NEW, 6, 28), k=normal(rng, 1, keys, 2, 28), v=normal(rng, 1, keys, 2, 20), causal=1)


def inputs(rng):
    return drawn(rng, 61)


def usual(rng):
    return drawn(rng, 0)


def kernel(inputs, fault):
    q, k, v = (inputs[name][0] for name in "qkv")
    prefix = len(k) - NEW
    parts = [attend(q, k[prefix:], v[prefix:], np.tri(NEW, dtype=bool))]
    if prefix:
        o, lse = attend(q, k[:prefix], v[:prefix])
        parts.append((o, lse * np.float32(np.log2(np.e)) if fault else lse))
    return merged(parts)[0][None]


def gate(inputs, got):
    ulplab.assert_close(got, op="attention", inputs=inputs, output="o")
