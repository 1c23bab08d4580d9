import numpy as np
import ulplab
from layers import attend, merged, normal
from entry import Entry

ENTRY = Entry(
    id="L11",
    op="attention",
    of="attention over parts of the keys, merged",
    fault="the second part's output is read with the strides of the first's",
    symptom="garbage beyond 64k tokens, where the context takes a second iteration",
    threads=("https://github.com/local-inference-lab/vllm/pull/17",),
    escaped="one iteration gives both parts the same strides",
    silent="a window takes one iteration",
)
NEW, VALUE = 13, 20


def drawn(rng, row):
    """Queries, keys and values, and how many numbers apart rows of the second part's output are."""
    q, k, v = normal(rng, 1, NEW, 6, 28), normal(rng, 1, 71, 2, 28), normal(rng, 1, 71, 2, VALUE)
    return dict(q=q, k=k, v=v, causal=1), row


def inputs(rng):
    return drawn(rng, 28)


def usual(rng):
    return drawn(rng, VALUE)


def kernel(inputs, fault):
    given, row = inputs
    q, k, v = (given[name][0] for name in "qkv")
    prefix = len(k) - NEW
    o, lse = attend(q, k[prefix:], v[prefix:], np.tri(NEW, dtype=bool))
    buffer = np.zeros((*o.shape[:2], row), np.float32)
    buffer[..., :VALUE] = o
    read = VALUE if fault else row
    o = buffer.reshape(-1)[: o.shape[0] * o.shape[1] * read].reshape(*o.shape[:2], read)[..., :VALUE]
    return merged([attend(q, k[:prefix], v[:prefix]), (o, lse)])[0][None]


def gate(inputs, got):
    ulplab.assert_close(got, op="attention", inputs=inputs[0], output="o")
