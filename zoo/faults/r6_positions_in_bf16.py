import numpy as np
import ulplab
from entry import Entry
from ml_dtypes import bfloat16

ENTRY = Entry(
    id="R6",
    op="rope",
    of="tables of RoPE's cosines and sines",
    fault="positions and frequencies are rounded to bf16 before they are multiplied",
    symptom="texts diverge in long contexts; the cosine at position 15962 is -0.88, not -0.55",
    threads=(
        "https://github.com/huggingface/candle/pull/3520",
        "https://github.com/huggingface/transformers/issues/25681",
    ),
    escaped="integers up to 256 are exact in bf16, and tests are short",
)
FREQUENCIES = (10000.0 ** (-np.arange(0, 44, 2) / 44)).astype(np.float32)


def inputs(rng):
    return np.sort(rng.choice(16_000, 150, replace=False)).astype(np.float32)


def usual(rng):
    return np.arange(40, dtype=np.float32)


def kernel(positions, fault):
    """The angles that the tables are of."""
    if fault:
        return (positions.astype(bfloat16)[:, None] * FREQUENCIES.astype(bfloat16)).astype(np.float32)
    return positions[:, None] * FREQUENCIES


def gate(positions, got):
    ulplab.assert_close(got, op="matmul", inputs=dict(a=positions[:, None], b=FREQUENCIES[None]))


def numbers(positions, got):
    return np.concatenate([np.cos(got), np.sin(got)])
