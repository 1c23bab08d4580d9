import numpy as np
import ulplab
from entry import Entry

ENTRY = Entry(
    id="C10",
    op="top_k",
    of="choice of keys by an indexer",
    fault="the first keys are always chosen, or compete like all others",
    symptom="the published indexer forces none: a choice without them is no bug",
    threads=("https://github.com/ml-explore/mlx-lm/issues/1443", "https://github.com/ml-explore/mlx-lm/issues/1552"),
)
FIRST, K = 3, 17


def inputs(rng):
    return rng.standard_normal((9, 203)).astype(np.float32)


def scores(inputs, chosen):
    x = inputs.copy()
    x[:, :FIRST] = np.inf if chosen else x[:, :FIRST] - 2
    return x


def kernel(inputs, chosen):
    rest = scores(inputs, False)[:, FIRST * chosen :]
    order = np.argsort(-rest, -1, kind="stable")[:, : K - FIRST * chosen] + FIRST * chosen
    return chosen, np.concatenate([np.tile(np.arange(FIRST), (len(rest), 1)), order], 1) if chosen else order


def gate(inputs, got):
    chosen, indices = got
    ulplab.assert_close(indices, op="top_k", inputs=dict(x=scores(inputs, chosen), k=K), output="indices")
