import numpy as np
import ulplab
from layers import normal
from entry import Entry

ENTRY = Entry(
    id="S6",
    op="gated_delta",
    of="gated delta rule with a decay of each channel, in chunks",
    fault="the decay between two tokens is a product of exponentials, of which one overflows",
    symptom="NaN where a decay is 6.5e-12, as in the second layer of a model; 7.5e-2 off at milder ones",
    threads=(
        "https://github.com/pytorch/executorch/pull/21417",
        "https://github.com/fla-org/flash-linear-attention/issues/649",
    ),
    escaped="decays of tests were mild, or only known to be at most 1",
)
TOKENS, HEADS, KEY, VALUE, CHUNK = 31, 2, 28, 20, 14


def drawn(rng, decays):
    q, k, v = (normal(rng, 1, TOKENS, HEADS, channels) for channels in (KEY, KEY, VALUE))
    g = np.log(rng.choice(decays, (1, TOKENS, HEADS, KEY))).astype(np.float32)
    return dict(q=q, k=k / 6, v=v, g=g, beta=rng.uniform(0, 1, (1, TOKENS, HEADS)).astype(np.float32))


def inputs(rng):
    return drawn(rng, [6.5e-12, 0.5, 0.9, 0.99])


def usual(rng):
    return drawn(rng, [0.9, 0.95, 0.99])


@np.errstate(all="ignore")
def chunk(q, k, v, g, beta, state, fault):
    sums = np.cumsum(g, 0)
    between = np.exp(sums)[:, None] * np.exp(-sums) if fault else np.exp(np.minimum(sums[:, None] - sums, 0))
    qk, kk = (np.tril(np.einsum("tc,sc,tsc->ts", x, k, between)) for x in (q, k))
    read = beta[:, None] * (v - (k * np.exp(sums)) @ state)
    d = np.linalg.solve(np.eye(len(q), dtype=np.float32) + np.tril(beta[:, None] * kk, -1), read)
    o = ((q * np.exp(sums)) @ state + qk @ d) / np.float32(np.sqrt(KEY))
    return o, np.exp(sums[-1])[:, None] * state + (k * np.exp(sums[-1] - sums)).T @ d


def kernel(inputs, fault):
    o, states = np.zeros_like(inputs["v"]), np.zeros((1, HEADS, KEY, VALUE), np.float32)
    for head in range(HEADS):
        for first in range(0, TOKENS, CHUNK):
            part = [x[0, first : first + CHUNK, head] for x in inputs.values()]
            o[0, first : first + CHUNK, head], states[0, head] = chunk(*part, states[0, head], fault)
    return {"o": o, "state": states}


def gate(inputs, got):
    ulplab.assert_close(got, op="gated_delta", inputs=inputs)


def numbers(inputs, got):
    return got["o"]
