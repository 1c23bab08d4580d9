import numpy as np
import ulplab
from layers import attend, normal
from entry import Entry

ENTRY = Entry(
    id="A1",
    op="attention",
    of="attention over a paged cache",
    fault="weights of unused slots are 0, but their values are multiplied all the same",
    symptom="NaN, as 0 times NaN",
    threads=(
        "https://github.com/Dao-AILab/flash-attention/issues/2374",
        "https://github.com/vllm-project/vllm/issues/936",
        "https://github.com/vllm-project/vllm/pull/53856",
    ),
    escaped="tests allocate zeros",
    silent="new memory holds zeros, and a text in one shot has no unused slots",
)
PAGE = 9


def drawn(rng, unused):
    k, v = (normal(rng, 7, PAGE, 2, channels) for channels in (28, 20))
    table, lengths = rng.permutation(7)[:6].reshape(2, 3), np.array([22, 13])
    for pages, length in zip(table, lengths):
        for slot in range(length, 3 * PAGE):
            k[pages[slot // PAGE], slot % PAGE] = v[pages[slot // PAGE], slot % PAGE] = unused
    return dict(q=normal(rng, 2, 1, 6, 28), k=k, v=v, block_table=table, seq_lens=lengths)


def inputs(rng):
    return drawn(rng, np.nan)


def usual(rng):
    return drawn(rng, 0)


def kernel(inputs, fault):
    outputs = []
    for q, pages, length in zip(inputs["q"], inputs["block_table"], inputs["seq_lens"]):
        k, v = (inputs[name][pages].reshape(3 * PAGE, 2, -1) for name in "kv")
        used = np.arange(3 * PAGE) < length
        v = v if fault else np.where(used[:, None, None], v, 0)
        outputs.append(attend(q, k, v, used)[0])
    return np.stack(outputs)


def gate(inputs, got):
    ulplab.assert_close(got, op="attention", inputs=inputs, output="o")
