import numpy as np
import states
import ulplab
from entry import Entry

ENTRY = Entry(
    id="S9",
    op="gated_delta",
    of="gated delta rule with a decay of each value channel",
    fault="with that gate on, the rule corrects keys instead of values",
    symptom="another recurrence than the rule's",
    threads=("https://github.com/fla-org/flash-linear-attention/issues/623",),
    escaped="the gate is an option that no test turned on",
)


def inputs(rng):
    given = states.tokens(rng, 17, heads=1, groups=1, keys=12, values=10)
    return {**given, "g": -np.abs(rng.standard_normal(given["v"].shape)).astype(np.float32) / 4}


def kernel(inputs, fault):
    q, k, v, g, beta = (inputs[name][0] for name in ("q", "k", "v", "g", "beta"))
    state = inputs["state"][0, 0]
    outputs = []
    for t in range(len(q)):
        state = state * np.exp(g[t, 0])
        if fault:
            state = state + beta[t] * np.outer(k[t, 0] - state @ v[t, 0], v[t, 0])
        else:
            state = state + beta[t] * np.outer(k[t, 0], v[t, 0] - k[t, 0] @ state)
        outputs.append(q[t, 0] @ state / np.float32(q.shape[-1] ** 0.5))
    return np.stack(outputs)


def gate(inputs, got):
    # a value channel never meets another: each is a head of one channel, with a decay of its own
    channels = inputs["v"].shape[-1]
    heads = dict(v=inputs["v"].swapaxes(2, 3), g=inputs["g"][:, :, 0], beta=inputs["beta"].repeat(channels, 2))
    heads["state"] = inputs["state"].transpose(0, 3, 2, 1)
    ulplab.assert_close(got[None, ..., None], op="gated_delta", inputs={**inputs, **heads}, output="o")
