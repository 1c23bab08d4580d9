import numpy as np
import ulplab
from layers import attend, normal
from entry import Entry

ENTRY = Entry(
    id="A10",
    op="attention",
    of="attention over a paged cache, in a graph that is replayed",
    fault="the graph reads tables with the stride at its capture; they are packed by the longest row of the batch",
    symptom="the first row is right, later rows read stale pages",
    threads=("https://github.com/vllm-project/vllm/pull/51318",),
    escaped="a unit test asserted the packing, and the first row does not show it",
    silent="a batch has one row, and the first row is right",
)
PAGE, WIDEST = 5, 6


def drawn(rng, rows):
    """A call of so many rows with 2 or 3 pages each, and the buffer of tables as the capture left it."""
    k, v = normal(rng, 19, PAGE, 2, 28), normal(rng, 19, PAGE, 2, 20)
    table, lengths = rng.permutation(19)[: 3 * rows].reshape(rows, 3), rng.integers(2 * PAGE, 3 * PAGE, rows)
    given = dict(q=normal(rng, rows, 1, 6, 28), k=k, v=v, block_table=table, seq_lens=lengths)
    return given, rng.integers(0, 19, rows * WIDEST)


def inputs(rng):
    return drawn(rng, 4)


def usual(rng):
    return drawn(rng, 1)


def kernel(inputs, fault):
    given, buffer = inputs
    table, tables = given["block_table"], buffer.copy()
    tables[: table.size] = table.reshape(-1)
    outputs = []
    for row, (q, length) in enumerate(zip(given["q"], given["seq_lens"])):
        pages = tables[row * (WIDEST if fault else 3) :][:3]
        k, v = (given[name][pages].reshape(3 * PAGE, 2, -1)[:length] for name in "kv")
        outputs.append(attend(q, k, v)[0])
    return np.stack(outputs)


def gate(inputs, got):
    ulplab.assert_close(got, op="attention", inputs=inputs[0], output="o")
