import numpy as np
import states
import ulplab
from entry import Entry

ENTRY = Entry(
    id="C2",
    op="gated_delta",
    of="gated delta rule",
    fault="the state decays before the error is taken, or the decay is a factor in front of the whole update",
    symptom="the two are the same function: code that looks unlike the paper is no bug",
    threads=("https://github.com/fla-org/flash-linear-attention/issues/885",),
)


def inputs(rng):
    return states.tokens(rng, 21, groups=1)


def kernel(inputs, chosen):
    if not chosen:
        o, after = states.delta(**inputs)
        return dict(o=o, state=after[:, -1])
    q, k, v, g, beta, state = (inputs[name] for name in ("q", "k", "v", "g", "beta", "state"))
    outputs = []
    for t in range(q.shape[1]):
        erased = np.eye(k.shape[-1], dtype=k.dtype) - beta[:, t, :, None, None] * k[:, t, :, :, None] * k[:, t, :, None]
        written = beta[:, t, :, None, None] * k[:, t, :, :, None] * v[:, t, :, None]
        state = np.exp(g[:, t])[..., None, None] * (erased @ state) + written
        outputs.append(np.einsum("bhk,bhkv->bhv", q[:, t], state) / np.float32(q.shape[-1] ** 0.5))
    return dict(o=np.stack(outputs, 1), state=state)


def gate(inputs, got):
    ulplab.assert_close(got, op="gated_delta", inputs=inputs)


def numbers(inputs, got):
    return got["o"]
