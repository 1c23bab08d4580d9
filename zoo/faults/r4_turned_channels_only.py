import numpy as np
import ulplab
from layers import angles, normal, turned
from entry import Entry

ENTRY = Entry(
    id="R4",
    op="rope",
    of="RoPE of the first channels of each head",
    fault="only channels that are turned are stored; the others keep what the buffer held",
    symptom="the right token comes first in 0.66 of cases, and in 0.83 with the fix",
    threads=("https://github.com/gittensor-ai-lab/sparkinfer/pull/518",),
    escaped="the path begins at 4096 tokens, and a buffer that was used before holds plausible numbers",
)
TURNED = 20


def drawn(rng):
    cos, sin = angles(np.arange(37), TURNED)
    return dict(x=normal(rng, 37, 3, 76), cos=cos, sin=sin)


def inputs(rng):
    given = drawn(rng)
    return given, normal(rng, *given["x"].shape)


def usual(rng):
    given = drawn(rng)
    return given, turned(**given)


def kernel(inputs, fault):
    given, buffer = inputs
    stored = slice(0, TURNED if fault else None)
    y = buffer.copy()
    y[..., stored] = turned(**given)[..., stored]
    return y


def gate(inputs, got):
    ulplab.assert_close(got, op="rope", inputs=inputs[0])
