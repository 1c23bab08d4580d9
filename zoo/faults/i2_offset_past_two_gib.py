import numpy as np
import ulplab
from layers import normal
from entry import Entry

ENTRY = Entry(
    id="I2",
    op="matmul",
    of="scores of an indexer over a paged cache",
    fault="the offset of a page in bytes is a product of 32 bits, and past 2 GiB the guarded load gives 0",
    symptom="scores beyond block 2143 are 0.0, and chance decides which of them are selected",
    threads=("https://github.com/vllm-project/vllm/issues/52109",),
    escaped="the cache of tests was below 2 GiB",
    absent="an indexer",
)
PAGE, CHANNELS, STRIDE = 3, 52, 1_002_000


def drawn(rng, past):
    """Queries, the numbers of pages, so many of them past 2 GiB, and what is in them: no other page is there."""
    numbers = [rng.choice(2144, 7 - past, replace=False), 2144 + rng.choice(2000, past, replace=False)]
    return normal(rng, 5, CHANNELS), rng.permutation(np.concatenate(numbers)), normal(rng, 7, PAGE, CHANNELS)


def inputs(rng):
    return drawn(rng, 3)


def usual(rng):
    return drawn(rng, 0)


def kernel(inputs, fault):
    q, numbers, pages = inputs
    cache = {int(number) * STRIDE: page for number, page in zip(numbers, pages)}
    offsets = numbers.astype(np.int32 if fault else np.int64) * STRIDE
    keys = np.concatenate([cache.get(int(offset), np.zeros_like(pages[0])) for offset in offsets])
    return q @ keys.T


def gate(inputs, got):
    q, _, pages = inputs
    ulplab.assert_close(got, op="matmul", inputs=dict(a=q, b=pages.reshape(-1, CHANNELS), b_rows="n"))
