import numpy as np
import states
import ulplab
from entry import Entry

ENTRY = Entry(
    id="S11",
    op="gated_delta",
    of="gated delta rule after speculative decoding",
    fault="the step after two accepted drafts reads the state of the first",
    symptom="greedy text changes; a sibling went from 20 of 20 to 0",
    threads=("https://github.com/vllm-project/vllm/pull/52942", "https://github.com/vllm-project/vllm/issues/39273"),
    escaped="other drafters draft in every step, and no plain step follows",
    silent="no drafts are decoded",
)
DRAFTED = 5


def inputs(rng, accepted=3):
    return states.tokens(rng, DRAFTED + 1, batch=2), accepted


def usual(rng):
    return inputs(rng, 1)


def kernel(inputs, fault):
    given, accepted = inputs
    o, slots = states.delta(**states.of(given, 0, DRAFTED))
    state = slots[:, 1] if fault else slots[:, accepted]
    step, after = states.delta(**states.of(given, DRAFTED, state=state))
    return dict(o=np.concatenate([o[:, :accepted], step], 1), state=after[:, -1])


def gate(inputs, got):
    given, accepted = inputs
    kept = [*range(accepted), DRAFTED]
    text = {name: x[:, kept] if np.ndim(x) and name != "state" else x for name, x in given.items()}
    ulplab.assert_close(got, op="gated_delta", inputs=text)


def numbers(inputs, got):
    return got["o"]
