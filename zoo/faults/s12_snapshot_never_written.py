import numpy as np
import states
import ulplab
from entry import Entry

ENTRY = Entry(
    id="S12",
    op="state_space",
    of="state space after rejected drafts",
    fault="the snapshot that a rollback adopts is written by no kernel",
    symptom="0 of 26,378,240 bytes were written; drafts accepted in 0 to 9 % of cases",
    threads=("https://github.com/kekzl/imp/pull/1503",),
    escaped="memory held the last snapshot or zeros, and few accepted drafts were taken for a fact",
    silent="no drafts are decoded",
)
ACCEPTED, DRAFTED = 2, 7


def inputs(rng):
    given = states.tokens(rng, DRAFTED, beta=False)
    return given, rng.standard_normal(given["state"].shape).astype(np.float32)


def kernel(inputs, fault):
    given, snapshot = inputs
    o, after = states.delta(**given)
    if not fault:
        snapshot = after[:, ACCEPTED]
    return dict(o=o[:, :ACCEPTED], state=snapshot)


def gate(inputs, got):
    ulplab.assert_close(got, op="gated_delta", inputs=states.of(inputs[0], 0, ACCEPTED))


def numbers(inputs, got):
    return got["o"]
