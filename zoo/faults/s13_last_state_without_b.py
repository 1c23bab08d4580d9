import numpy as np
import states
import ulplab
from entry import Entry

ENTRY = Entry(
    id="S13",
    op="state_space",
    of="selective scan with an input matrix B that is constant",
    fault="the state that is returned lacks the factor B",
    symptom="outputs are right, what is continued from the state is not",
    threads=("https://github.com/state-spaces/mamba/pull/371",),
    escaped="tests compare outputs, not the state",
    absent="a state space without the delta rule",
)


def inputs(rng):
    given = states.tokens(rng, 19, groups=1, beta=False)
    return {**given, "k": np.broadcast_to(given["k"][:, :1], given["k"].shape), "state": 0 * given["state"]}


def kernel(inputs, fault):
    o, after = states.delta(**inputs)
    b = np.ones_like(inputs["k"]) if fault else inputs["k"]
    decays = inputs["g"][0].cumsum(0)
    _, state = states.chunk(inputs["q"][0], b[0], inputs["v"][0], decays)
    return dict(o=o, state=state[None])


def gate(inputs, got):
    ulplab.assert_close(got, op="gated_delta", inputs=inputs)


def numbers(inputs, got):
    return got["o"]
