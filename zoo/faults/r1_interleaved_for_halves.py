import numpy as np
import ulplab
from layers import angles, normal, turned
from entry import Entry

ENTRY = Entry(
    id="R1",
    op="rope",
    of="RoPE of an indexer's keys, and its top-k",
    fault="neighbouring channels are a pair, where the model was trained with channels of two halves",
    symptom="accuracy is lost in long contexts",
    threads=(
        "https://github.com/vllm-project/vllm-ascend/pull/7341",
        "https://github.com/sgl-project/sglang/issues/13530",
    ),
    escaped="a fix was removed by accident, and contexts up to k keys select all of them, whatever their scores",
    absent="an indexer",
)
TURNED, TOP_K = 36, 45


def drawn(rng, tokens):
    cos, sin = angles(np.arange(tokens), TURNED)
    return dict(x=normal(rng, tokens, 1, 52), cos=cos, sin=sin), normal(rng, 52)


def inputs(rng):
    return drawn(rng, 210)


def usual(rng):
    return drawn(rng, TOP_K)


def kernel(inputs, fault):
    given, query = inputs
    keys = turned(**given, pairing="interleaved" if fault else "half")
    return keys, np.sort(np.argsort(-keys[:, 0] @ query, kind="stable")[:TOP_K])


def gate(inputs, got):
    ulplab.assert_close(got[0], op="rope", inputs={**inputs[0], "pairing": "half"})


def numbers(inputs, got):
    return got[1]
