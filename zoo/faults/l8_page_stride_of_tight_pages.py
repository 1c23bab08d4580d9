import numpy as np
import ulplab
from entry import Entry
from numpy.lib.stride_tricks import as_strided

ENTRY = Entry(
    id="L8",
    op="attention",
    of="attention over pages of a KV cache",
    fault="a page is taken to begin right after the tokens of the page before, whatever the pool holds between",
    symptom="GSM8K 95 % to 0 %",
    threads=("https://github.com/vllm-project/vllm/pull/47493", "https://github.com/vllm-project/vllm/issues/47783"),
    escaped="exact while pages are tight, and the new layout was not run with this reader",
)
PAGES, TOKENS, HEADS, K, V = 11, 6, 2, 24, 40


def drawn(rng, gap):
    """Keys and values in one pool each, `gap` numbers between pages."""
    q = rng.standard_normal((3, 5, 6, K)).astype(np.float32)
    pools = [rng.standard_normal(PAGES * (TOKENS * HEADS * size + gap)).astype(np.float32) for size in (K, V)]
    table = rng.permutation(PAGES)[:9].reshape(3, 3)
    return q, pools, gap, table, np.array([17, 9, 13])


def inputs(rng):
    return drawn(rng, gap=20)


def usual(rng):
    return drawn(rng, gap=0)


def paged(inputs, gap):
    """What `ulplab` is given, for pages that begin `gap` numbers after the last token of the page before."""
    q, pools, _, table, lengths = inputs

    def pages(pool, size):
        strides = (TOKENS * HEADS * size + gap, HEADS * size, size, 1)
        return as_strided(pool, (PAGES, TOKENS, HEADS, size), [4 * stride for stride in strides], writeable=False)

    k, v = (pages(pool, size) for pool, size in zip(pools, (K, V)))
    return dict(q=q, k=k, v=v, block_table=table, seq_lens=lengths, causal=1)


def kernel(inputs, fault):
    return ulplab.reference.attention(**paged(inputs, 0 if fault else inputs[2]))["o"].value.astype(np.float32)


def gate(inputs, got):
    ulplab.assert_close(got, op="attention", inputs=paged(inputs, inputs[2]), output="o")
