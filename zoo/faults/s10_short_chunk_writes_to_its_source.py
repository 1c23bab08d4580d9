import numpy as np
import ulplab
from entry import Entry

ENTRY = Entry(
    id="S10",
    op="causal_conv1d",
    of="causal convolution, states in blocks of a prefix cache",
    fault="a chunk shorter than the taps writes its state to the block that it read",
    symptom="the shared block is spoilt, its own is never written",
    threads=("https://github.com/vllm-project/vllm/pull/56196",),
    escaped="zeros of fresh memory decode to plausible text, and chunks are longer",
)
WIDTH = 4
SOURCE, OWN = 2, 5


def inputs(rng, tokens=2):
    def drawn(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    return dict(x=drawn(1, 6, tokens), weight=drawn(6, WIDTH), blocks=drawn(7, 6, WIDTH - 1))


def usual(rng):
    return inputs(rng, 29)


def kernel(inputs, fault):
    blocks = inputs["blocks"].copy()
    seen = np.concatenate([blocks[SOURCE], inputs["x"][0]], -1)
    short = inputs["x"].shape[-1] < WIDTH - 1
    blocks[SOURCE if fault and short else OWN] = seen[:, -(WIDTH - 1) :]
    y = (np.lib.stride_tricks.sliding_window_view(seen, WIDTH, -1) * inputs["weight"][:, None]).sum(-1)
    return y[None], blocks


def gate(inputs, got):
    y, blocks = got
    before = inputs["blocks"]
    given = dict(x=inputs["x"], weight=inputs["weight"], state=before[SOURCE][None])
    ulplab.assert_close(dict(y=y, state=blocks[OWN][None]), op="causal_conv1d", inputs=given)
    others = [n for n in range(len(before)) if n != OWN and not np.array_equal(blocks[n], before[n])]
    assert not others, f"blocks {others} are written, and belong to others"


def numbers(inputs, got):
    return got[0]
