import numpy as np
import states
import ulplab
from entry import Entry

ENTRY = Entry(
    id="S3",
    op="state_space",
    of="prefill of a state space in chunks, several sequences in one row of tokens",
    fault="the state of a sequence decays from the start of the chunk, not of the sequence",
    symptom="wrong from the first token on if a sequence begins inside a chunk",
    threads=("https://github.com/vllm-project/vllm/pull/23279",),
    escaped="sequences of the tests began where chunks begin",
    absent="a state space without the delta rule",
)
CHUNK = 16


def inputs(rng, lengths=(11, 30, 9)):
    return dict(lengths=lengths, sequences=[states.tokens(rng, n, groups=1, beta=False) for n in lengths])


def usual(rng):
    return inputs(rng, (2 * CHUNK, CHUNK, 9))


def kernel(inputs, fault):
    q, k, v, g = (np.concatenate([x[name] for x in inputs["sequences"]], 1)[0] for name in "qkvg")
    outputs, begin = [], 0
    for length, sequence in zip(inputs["lengths"], inputs["sequences"]):
        state, end = sequence["state"][0], begin + length
        while begin < end:
            start = begin // CHUNK * CHUNK
            part = slice(begin, min(end, start + CHUNK))
            before = 0 if fault else g[start:begin].sum(0)
            decays = g[start : part.stop].cumsum(0)[begin - start :]
            own, added = states.chunk(q[part], k[part], v[part], decays)
            outputs.append(own + np.exp(decays - before)[..., None] * np.einsum("thk,hkv->thv", q[part], state))
            state = np.exp(decays[-1] - before)[:, None, None] * state + added
            begin = part.stop
    return np.concatenate(outputs)


def gate(inputs, got):
    begin = 0
    for length, sequence in zip(inputs["lengths"], inputs["sequences"]):
        ulplab.assert_close(got[None, begin : begin + length], op="gated_delta", inputs=sequence, output="o")
        begin += length
