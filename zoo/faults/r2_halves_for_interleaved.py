import numpy as np
import ulplab
from layers import angles, normal, turned
from entry import Entry

ENTRY = Entry(
    id="R2",
    op="rope",
    of="RoPE of an indexer's keys, and its top-k",
    fault="channels of the two halves are turned as a pair, where the model has neighbouring channels",
    symptom="15 of the 20 best keys are found",
    threads=("https://github.com/1bit-MONSTER/1bit-MONSTER/pull/2421",),
    escaped="nothing is selected of contexts up to k keys, and the test was skipped unless its data were there",
    planted=("rope.halves",),
    absent="an indexer",
)
TURNED, TOP_K = 28, 20


def drawn(rng, tokens):
    cos, sin = angles(np.arange(tokens), TURNED)
    return dict(x=normal(rng, tokens, 1, 44), cos=cos, sin=sin), normal(rng, 44)


def inputs(rng):
    return drawn(rng, 130)


def usual(rng):
    return drawn(rng, TOP_K - 1)


def kernel(inputs, fault):
    given, query = inputs
    keys = turned(**given, pairing="half" if fault else "interleaved")
    return keys, np.sort(np.argsort(-keys[:, 0] @ query, kind="stable")[:TOP_K])


def gate(inputs, got):
    ulplab.assert_close(got[0], op="rope", inputs={**inputs[0], "pairing": "interleaved"})


def numbers(inputs, got):
    return got[1]
