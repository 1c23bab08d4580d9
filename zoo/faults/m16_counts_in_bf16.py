import numpy as np
import ulplab
from entry import Entry
from ml_dtypes import bfloat16

ENTRY = Entry(
    id="M16",
    op="count",
    of="counts of tokens of each expert, summed up over batches",
    fault="counts are kept in bf16",
    symptom="40,840 becomes 41,216 or 40,704; updates of the bias change their sign",
    threads=("https://github.com/NVIDIA/Megatron-LM/pull/7081",),
    escaped="counts up to 256 are exact, and a relative error of 1 % looks small",
    absent="counts of tokens in its forward pass",
)
EXPERTS = 11


def inputs(rng, tokens=1500):
    return rng.integers(0, EXPERTS, (9, tokens))


def usual(rng):
    return inputs(rng, 190)


def kernel(chosen, fault):
    counts = np.zeros(EXPERTS, bfloat16 if fault else np.int64)
    for batch in chosen:
        counts = (counts + np.bincount(batch, minlength=EXPERTS).astype(counts.dtype)).astype(counts.dtype)
    return counts.astype(np.int64)


def gate(chosen, got):
    ulplab.assert_close(got, np.bincount(chosen.ravel(), minlength=EXPERTS), rtol=0)
