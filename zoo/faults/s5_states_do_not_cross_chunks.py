import numpy as np
import states
import ulplab
from entry import Entry

ENTRY = Entry(
    id="S5",
    op="state_space",
    of="state space in chunks, slow path",
    fault="states of chunks are summed over the chunk that reads them, not over the one that wrote them",
    symptom="wrong from the second chunk on",
    threads=(
        "https://github.com/huggingface/transformers/pull/47250",
        "https://github.com/state-spaces/mamba/issues/716",
    ),
    escaped="the fix of one model was not carried to its siblings, and short texts are one chunk",
    planted=("diagonal_ssm.carry_lost",),
    absent="a state space without the delta rule",
)
CHUNK = 8


def inputs(rng, chunks=5):
    given = states.tokens(rng, chunks * CHUNK, groups=1, beta=False)
    return {name: x for name, x in given.items() if name != "state"}


def usual(rng):
    return inputs(rng, 1)


def kernel(inputs, fault):
    q, k, v, g = (inputs[name][0].reshape(-1, CHUNK, *inputs[name].shape[2:]) for name in "qkvg")
    decays = g.cumsum(1)
    parts = [states.chunk(*part) for part in zip(q, k, v, decays)]
    own, added = (np.stack(x) for x in zip(*parts))
    added = np.concatenate([0 * added[:1], added])
    ends = np.concatenate([0 * decays[:1, -1], decays[:, -1].cumsum(0)])
    later = np.tril(np.ones((len(ends), len(ends)), bool))[..., None]
    weights = np.exp(np.where(later, ends[:, None] - ends, -np.inf))
    before = np.einsum("zch,chkv->chkv" if fault else "zch,chkv->zhkv", weights, added)[:-1]
    o = own + np.exp(decays)[..., None] * np.einsum("zthk,zhkv->zthv", q, before)
    return o.reshape(inputs["v"].shape)


def gate(inputs, got):
    ulplab.assert_close(got, op="gated_delta", inputs=inputs, output="o")
