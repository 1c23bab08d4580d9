"""Recurrences in f32, as kernels compute them: the gated delta rule token by token, and a chunk of a state space."""

import numpy as np


def tokens(rng, length, heads=2, groups=2, keys=12, values=10, batch=1, beta=True):
    """Inputs of `ulplab.reference.gated_delta`, `groups` heads of v for each of k; without beta, a state space."""

    def drawn(*shape):
        return rng.standard_normal((batch, *shape)).astype(np.float32)

    wide = heads * groups
    given = dict(q=drawn(length, heads, keys), k=drawn(length, heads, keys) / np.float32(keys**0.5))
    given.update(v=drawn(length, wide, values), g=-np.abs(drawn(length, wide)) / 4, state=drawn(wide, keys, values))
    return {**given, "beta": 1 / (1 + np.exp(-drawn(length, wide)))} if beta else {**given, "scale": 1.0}


def of(inputs, begin=None, end=None, **changed):
    """The inputs of tokens `begin` up to `end`, with other ones in the place of those that are named."""
    cut = {name: x[:, begin:end] if np.ndim(x) and name != "state" else x for name, x in inputs.items()}
    return {**cut, **changed}


def delta(q, k, v, g, state, beta=None, scale=None):
    """Outputs [B, T, HV, V] of the gated delta rule, and states [B, T + 1, HV, K, V]: first, and after tokens."""
    groups = v.shape[2] // q.shape[2]
    scale = np.float32(q.shape[-1] ** -0.5 if scale is None else scale)
    q, k = (x.repeat(groups, 2) for x in (q * scale, k))
    outputs, states = [], [state]
    for t in range(q.shape[1]):
        state = state * np.exp(g[:, t])[..., None, None]
        added = v[:, t]
        if beta is not None:
            added = beta[:, t, :, None] * (added - np.einsum("bhk,bhkv->bhv", k[:, t], state))
        state = state + k[:, t, :, :, None] * added[:, :, None]
        outputs.append(np.einsum("bhk,bhkv->bhv", q[:, t], state))
        states.append(state)
    return np.stack(outputs, 1), np.stack(states, 1)


def chunk(q, k, v, decays):
    """The outputs that tokens [T, H, ·] of a chunk give each other, and their part of the state; `decays` [T, H] are sums."""
    seen = np.tril(np.ones((len(q), len(q)), bool))[..., None]
    weight = np.exp(np.where(seen, decays[:, None] - decays, -np.inf)) * np.einsum("thk,shk->tsh", q, k)
    left = np.exp(decays[-1] - decays)[..., None] * k
    return np.einsum("tsh,shv->thv", weight, v), np.einsum("thk,thv->hkv", left, v)
