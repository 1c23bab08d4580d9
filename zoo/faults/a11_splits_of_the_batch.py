import numpy as np
import ulplab
from layers import attend, merged, normal
from entry import Entry

ENTRY = Entry(
    id="A11",
    op="attention",
    of="decode attention, keys in parts that are merged",
    fault="the number of parts depends on how many rows are in the batch",
    symptom="1 to 2 ulp by batch, and another text at temperature 0",
    threads=("https://github.com/deepseek-ai/FlashMLA/issues/212",),
    escaped="the same call gives the same bits, and the difference is below every tolerance",
)


def inputs(rng):
    return dict(q=normal(rng, 9, 1, 6, 28), k=normal(rng, 9, 77, 2, 28), v=normal(rng, 9, 77, 2, 20))


def kernel(inputs, fault):
    def decode(q, k, v):
        splits = max(1, 8 // len(q)) if fault else 3
        rows = []
        for row in range(len(q)):
            parts = zip(np.array_split(k[row], splits), np.array_split(v[row], splits))
            rows.append(merged([attend(q[row], *part) for part in parts])[0])
        return np.stack(rows)

    return decode


def gate(inputs, got):
    ulplab.assert_close(got(**inputs), op="attention", inputs=inputs, output="o")
    ulplab.assert_invariant(got, inputs)


def numbers(inputs, got):
    return got(**inputs)
