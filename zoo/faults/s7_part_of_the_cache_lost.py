import numpy as np
import ulplab
from entry import Entry

ENTRY = Entry(
    id="S7",
    op="causal_conv1d",
    of="causal convolution before a recurrence, text in several calls",
    fault="the cache between two calls lacks the oldest input",
    symptom="as bad as random online, though training and static validation are normal",
    threads=("https://github.com/fla-org/flash-linear-attention/issues/494",),
    escaped="validation gives the whole text in one call",
)
WIDTH = 4


def inputs(rng, cuts=(13,)):
    def drawn(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    return dict(x=drawn(2, 6, 29), weight=drawn(6, WIDTH), bias=drawn(6), activation="silu"), cuts


def usual(rng):
    return inputs(rng, ())


def kernel(inputs, fault):
    given, cuts = inputs
    x, outputs = given["x"], []
    cache = np.zeros((*x.shape[:2], WIDTH - 1), x.dtype)
    for part in np.split(x, cuts, -1):
        seen = np.concatenate([cache, part], -1)
        sums = np.lib.stride_tricks.sliding_window_view(seen, WIDTH, -1)
        sums = (sums * given["weight"][:, None]).sum(-1) + given["bias"][:, None]
        outputs.append(sums / (1 + np.exp(-sums)))
        cache = seen[..., -(WIDTH - 1) :].copy()
        cache[..., :fault] = 0
    return np.concatenate(outputs, -1)


def gate(inputs, got):
    ulplab.assert_close(got, op="causal_conv1d", inputs=inputs[0], output="y")
