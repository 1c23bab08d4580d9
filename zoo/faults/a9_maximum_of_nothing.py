import numpy as np
import ulplab
from entry import Entry

ENTRY = Entry(
    id="A9",
    op="attention",
    of="softmax over keys in blocks of 16, masked ones among them",
    fault="the running maximum begins with -inf, and -inf less -inf is NaN",
    symptom="NaN in rows whose first block is masked as a whole",
    threads=("https://github.com/vllm-project/vllm/pull/48366",),
    escaped="tests put valid keys first, and the padding behind them",
)
BLOCK = 16


def inputs(rng, masked=slice(0, 21)):
    x = (3 * rng.standard_normal((9, 5 * BLOCK))).astype(np.float32)
    x[::2, masked] = -np.inf
    return dict(x=x)


def usual(rng):
    return inputs(rng, slice(59, None))


def kernel(inputs, fault):
    x = inputs["x"]
    top = np.full((len(x), 1), -np.inf if fault else -1e30, np.float32)
    total = np.zeros_like(top)
    for block in np.split(x, x.shape[1] // BLOCK, 1):
        larger = np.maximum(top, block.max(1, keepdims=True))
        with np.errstate(invalid="ignore"):
            total = total * np.exp(top - larger) + np.exp(block - larger).sum(1, keepdims=True)
        top = larger
    return np.exp(x - top) / total


def gate(inputs, got):
    ulplab.assert_close(got, op="softmax", inputs=inputs)
