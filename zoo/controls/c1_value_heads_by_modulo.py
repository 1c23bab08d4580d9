import numpy as np
import states
import ulplab
from entry import Entry

ENTRY = Entry(
    id="C1",
    op="gated_delta",
    of="gated delta rule with more value heads than key heads",
    fault="value head h has the key head h mod H, or h divided by the group",
    symptom="both mappings are in use: a checkpoint goes with one of them",
    threads=("https://github.com/ggml-org/llama.cpp/pull/25315",),
)
HEADS, GROUPS = 2, 3


def inputs(rng):
    return states.tokens(rng, 21, HEADS, GROUPS)


def kernel(inputs, chosen):
    order = np.arange(HEADS * GROUPS)
    head = order % HEADS if chosen else order // GROUPS
    o, after = states.delta(**{**inputs, "q": inputs["q"][:, :, head], "k": inputs["k"][:, :, head]})
    return chosen, dict(o=o, state=after[:, -1])


def gate(inputs, got):
    chosen, outputs = got
    tiled = {name: np.tile(inputs[name], (1, 1, GROUPS, 1)) for name in ("q", "k")} if chosen else {}
    ulplab.assert_close(outputs, op="gated_delta", inputs={**inputs, **tiled})
