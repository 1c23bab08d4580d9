import numpy as np
import ulplab
from layers import attend, normal
from entry import Entry

ENTRY = Entry(
    id="A5",
    op="attention",
    of="attention with a sliding window",
    fault="the window has one key more",
    symptom="each query sees one key that it should not",
    threads=("https://github.com/huggingface/transformers/issues/39408", "https://github.com/zml/zml/pull/763"),
    escaped="one key of many has little weight, and one project's test had the window off",
)
WINDOW = 125


def inputs(rng):
    q, k, v = normal(rng, 1, 67, 4, 36), normal(rng, 1, 190, 2, 36), normal(rng, 1, 190, 2, 20)
    return dict(q=q, k=k, v=v, window=WINDOW)


def kernel(inputs, fault):
    q, k, v = (inputs[name][0] for name in "qkv")
    back = np.arange(len(k) - len(q), len(k))[:, None] - np.arange(len(k))
    return attend(q, k, v, (back >= 0) & (back < WINDOW + fault))[0][None]


def gate(inputs, got):
    ulplab.assert_close(got, op="attention", inputs=inputs, output="o")
