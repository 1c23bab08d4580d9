import numpy as np
import ulplab
from entry import Entry
from states import delta, of, tokens

ENTRY = Entry(
    id="S2",
    op="state_space",
    of="state-space model, a later chunk of a prompt",
    fault="the state before the chunk is dropped if the batch has one sequence",
    symptom="the second chunk of a single long prompt is wrong",
    threads=("https://github.com/vllm-project/vllm/pull/22034",),
    escaped="tests had several sequences",
)


def inputs(rng):
    return tokens(rng, 13, beta=False)


def usual(rng):
    return tokens(rng, 13, batch=2, beta=False)


def kernel(inputs, fault):
    state = inputs["state"]
    o, states = delta(**of(inputs, state=np.zeros_like(state) if fault and len(state) == 1 else state))
    return {"o": o, "state": states[:, -1]}


def gate(inputs, got):
    ulplab.assert_close(got, op="gated_delta", inputs=inputs)


def numbers(inputs, got):
    return got["o"]
