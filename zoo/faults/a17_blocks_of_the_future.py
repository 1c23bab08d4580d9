import numpy as np
import ulplab
from layers import attend, normal
from entry import Entry

ENTRY = Entry(
    id="A17",
    op="attention",
    of="attention over compressed blocks of keys",
    fault="the comparison of the mask is the wrong way round: blocks of the future are seen",
    symptom="the loss of training goes smoothly to 0",
    threads=("https://github.com/tilde-research/nsa-release/issues/3",),
    escaped="the loss looks good, better than it can be",
    absent="compressed blocks of keys",
)
BLOCK, BLOCKS = 4, 9


def inputs(rng):
    """Queries of tokens that have a whole block behind them, and a key of each block."""
    tokens = BLOCK * BLOCKS - BLOCK + 1
    return dict(q=normal(rng, tokens, 6, 28), k=normal(rng, BLOCKS, 2, 28), v=normal(rng, BLOCKS, 2, 20))


def kernel(inputs, fault):
    token = np.arange(len(inputs["q"]))[:, None] + BLOCK - 1
    end = np.arange(BLOCKS) * BLOCK + BLOCK - 1
    return attend(**inputs, seen=end > token if fault else end <= token)[0]


def gate(inputs, got):
    # each query is a sequence of its own, which has as many keys as blocks have ended
    q, k, v = (inputs[name] for name in "qkv")
    rows = dict(q=q[:, None], k=np.tile(k, (len(q), 1, 1, 1)), v=np.tile(v, (len(q), 1, 1, 1)))
    lengths = (np.arange(len(q)) + BLOCK) // BLOCK
    ulplab.assert_close(got[:, None], op="attention", inputs={**rows, "seq_lens": lengths}, output="o")
