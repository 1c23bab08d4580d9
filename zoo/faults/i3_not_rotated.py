import numpy as np
import ulplab
from layers import normal
from entry import Entry, decoded

ENTRY = Entry(
    id="I3",
    op="indexer",
    format="mxfp4",
    of="MXFP4 quantize of an indexer's keys after a Hadamard rotation",
    fault="neither queries nor keys are rotated",
    symptom="products of queries and keys have 4 to 5 times the error, if some channels are large",
    threads=("https://github.com/vllm-project/vllm/pull/55459",),
    escaped="the flag was stored and never read, and data of one size in all channels do not show it",
    absent="an indexer",
)
CHANNELS = 64
HADAMARD = np.ones((1, 1))
while len(HADAMARD) < CHANNELS:
    HADAMARD = np.kron([[1, 1], [1, -1]], HADAMARD)


def drawn(rng, large):
    """Queries and keys of multiples of 1/16, so that sums of a rotation are exact in any order."""
    q, k = normal(rng, 43, CHANNELS), normal(rng, 151, CHANNELS)
    for x in (q, k):
        x[:, [3, 20, 38, 51]] *= large
    return [np.round(16 * x) / 16 for x in (q, k)]


def inputs(rng):
    return drawn(rng, 12)


def usual(rng):
    return drawn(rng, 1)


def rotated(x):
    return (x @ HADAMARD / np.sqrt(CHANNELS)).astype(np.float32)


def kernel(inputs, fault):
    return [ulplab.quantize(x if fault else rotated(x), "mxfp4") for x in inputs]


def gate(inputs, got):
    for x, quantized in zip(inputs, got):
        ulplab.assert_quantized(quantized.codes, quantized.scales, rotated(x), "mxfp4")


def numbers(inputs, got):
    """How large the error of all products is, relative to them."""
    (q, k), (near_q, near_k) = inputs, map(decoded, got)
    return np.linalg.norm(near_q @ near_k.T - q @ k.T) / np.linalg.norm(q @ k.T)
