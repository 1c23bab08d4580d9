import numpy as np
import ulplab
from entry import Entry
from states import delta, of, tokens

ENTRY = Entry(
    id="S1",
    op="gated_delta",
    of="gated delta rule, a prompt in two chunks",
    fault="the state is stored [K, V], and the next chunk takes the same memory for [V, K]",
    symptom="retrieval from long contexts fails; in another project GSM8K is 0.0",
    threads=("https://github.com/vllm-project/vllm/issues/41292", "https://github.com/ROCm/ATOM/issues/1750"),
    escaped="models have 128 of both, so no shape tells, and a first chunk starts from zeros",
    planted=("delta_handover.layout_confused", "delta_prefill.layout_confused", "delta_decode.layout_confused"),
)
FIRST = 13


def inputs(rng):
    return tokens(rng, 22)


def usual(rng):
    return tokens(rng, FIRST)


def kernel(inputs, fault):
    o, states = delta(**of(inputs, 0, FIRST))
    state = states[:, -1]
    if inputs["q"].shape[1] > FIRST:
        if fault:
            batch, heads, keys, values = state.shape
            state = state.reshape(batch, heads, values, keys).swapaxes(-1, -2)
        rest, states = delta(**of(inputs, FIRST, state=state))
        o, state = np.concatenate([o, rest], 1), states[:, -1]
    return {"o": o, "state": state}


def gate(inputs, got):
    ulplab.assert_close(got, op="gated_delta", inputs=inputs)


def numbers(inputs, got):
    return got["o"]
