import numpy as np
import ulplab
from blocks import blocks
from entry import Entry, decoded

ENTRY = Entry(
    id="Q17",
    op="quantize",
    format="mxfp4",
    of="MXFP4 weights, two codes a byte",
    fault="a byte holds elements j and j + 16 of a block, where readers expect 2j and 2j + 1",
    symptom="fluent text without sense from every file of another writer",
    threads=("https://github.com/kekzl/imp/pull/567",),
    escaped="own files were written and read in the same order",
)


def inputs(rng):
    return rng.standard_normal((47, 224)).astype(np.float32)


def split(codes):
    halves = np.stack([codes & 15, codes >> 4], -1).reshape(len(codes), -1, 2, 16)
    return (halves[:, :, 0] | halves[:, :, 1] << 4).reshape(codes.shape)


def joined(codes):
    bytes_ = blocks(codes, 16)
    halves = np.concatenate([bytes_ & 15, bytes_ >> 4], -1)
    return (halves[..., ::2] | halves[..., 1::2] << 4).reshape(codes.shape)


def kernel(x, fault):
    """What is written, and what its own reader makes of it."""
    right = ulplab.quantize(x, "mxfp4")
    written = split(right.codes) if fault else right.codes
    return written, right.scales, decoded(right, codes=joined(written) if fault else written)


def gate(x, got):
    ulplab.assert_quantized(*got[:2], x, "mxfp4")


def numbers(x, got):
    return got[2]
