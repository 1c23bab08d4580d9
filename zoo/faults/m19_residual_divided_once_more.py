import numpy as np
import ulplab
from layers import normal
from entry import Entry

ENTRY = Entry(
    id="M19",
    op="matmul",
    of="residual stream divided by the experts' factor, so that f16 holds it",
    fault="each dense layer at the start divides it once more",
    symptom="meaningless text of a model with three dense layers",
    threads=("https://github.com/vllm-project/vllm/pull/14809",),
    escaped="the author had a model with one dense layer in mind",
)
FACTOR = 2.5


def inputs(rng, dense=3):
    """The embeddings, and what dense layers add to them."""
    return normal(rng, 1 + dense, 37, 28)


def usual(rng):
    return inputs(rng, 1)


def kernel(parts, fault):
    residual = parts[0]
    for layer, added in enumerate(parts[1:]):
        if fault or layer == 0:
            residual = residual / np.float32(FACTOR)
        residual = residual + added / np.float32(FACTOR)
    return residual


def gate(parts, got):
    sums = dict(a=parts.reshape(len(parts), -1).T, b=np.ones((len(parts), 1), np.float32), alpha=1 / FACTOR)
    ulplab.assert_close(got.reshape(-1, 1), op="matmul", inputs=sums)
