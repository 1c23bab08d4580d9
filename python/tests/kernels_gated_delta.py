"""The gated delta rule as kernels compute it: q read after the update, or together with k before it; α multiplied early or late."""

from __future__ import annotations

import numpy as np
from kernels import F32, normal, rounded, summed
from ml_dtypes import bfloat16


def normed(rng, x, eps):
    square = summed(x * x, rng)[..., None] + F32(eps)
    return x / np.sqrt(square) if rng.random() < 0.5 else x * (F32(1) / np.sqrt(square))


def kernel(
    rng,
    q,
    k,
    v,
    g,
    beta=None,
    state=None,
    cu_seqlens=None,
    scale=None,
    l2norm=False,
    eps=1e-6,
    layout="kv",
    dtype=bfloat16,
    state_dtype=None,
):
    if cu_seqlens is not None:
        words = dict(scale=scale, l2norm=l2norm, eps=eps, layout=layout, dtype=dtype, state_dtype=state_dtype)
        parts = []
        for at, rows in enumerate(map(slice, cu_seqlens[:-1], cu_seqlens[1:])):
            tensors = [None if x is None else x[:, rows] for x in (q, k, v, g, beta)]
            parts.append(kernel(rng, *tensors, None if state is None else state[at : at + 1], **words))
        return {"o": np.concatenate([part["o"] for part in parts], 1), "state": np.concatenate([part["state"] for part in parts])}
    repeat = v.shape[2] // q.shape[2]
    q, k, v, g = (x.astype(F32) for x in (q, k, v, g))
    if l2norm:
        q, k = normed(rng, q, eps), normed(rng, k, eps)
    q, k = np.repeat(q * F32(q.shape[-1] ** -0.5 if scale is None else scale), repeat, 2), np.repeat(k, repeat, 2)
    batch, tokens, heads, value = v.shape
    s = np.zeros((batch, heads, k.shape[-1], value), F32)
    if state is not None:
        s = state.astype(F32)
        s = s.swapaxes(-1, -2) if layout == "vk" else s
    # [B, HV, V, K]: sums are along the last dimension.
    s = s.swapaxes(-1, -2).copy()
    g = g[..., None] if g.ndim == 3 else g
    o = np.zeros(v.shape, F32)
    one_pass, base_two = rng.random() < 0.5, rng.random() < 0.5
    for t in range(tokens):
        alpha = np.exp2(g[:, t] * F32(np.log2(np.e))) if base_two else np.exp(g[:, t])
        row = k[:, t][:, :, None, :]
        s = s * alpha[:, :, None, :]
        d = v[:, t]
        if beta is not None:
            d = beta.astype(F32)[:, t][..., None] * (d - summed(s * row, rng))
        query = q[:, t][:, :, None, :]
        if one_pass:
            o[:, t] = summed(s * query, rng) + summed(row * query, rng) * d
        s = s + row * d[..., None]
        if not one_pass:
            o[:, t] = summed(s * query, rng)
    s = s if layout == "vk" else s.swapaxes(-1, -2)
    stored = state_dtype or (state.dtype if state is not None else F32)
    return {"o": rounded(o, dtype), "state": rounded(s, stored)}


def inputs(rng, batch, tokens, heads, values, key, value, dtype=bfloat16, channels=False, size=1.0):
    gates = (batch, tokens, values, key) if channels else (batch, tokens, values)
    return {
        "q": normal(rng, batch, tokens, heads, key, dtype=dtype, scale=size),
        "k": normal(rng, batch, tokens, heads, key, dtype=dtype, scale=size),
        "v": normal(rng, batch, tokens, values, value, dtype=dtype),
        "g": -np.exp(rng.normal(-2.0, 2.0, gates)).astype(np.float32),
    }


def draw(rng, dtype):
    key, value, layout = int(rng.choice([8, 64])), int(rng.choice([8, 20])), str(rng.choice(["kv", "vk"]))
    tokens, heads = int(rng.choice([1, 1, 2, 12])), int(rng.choice([1, 2]))
    l2norm = rng.random() < 0.6
    given = inputs(rng, 2, tokens, heads, 4, key, value, dtype, rng.random() < 0.5, 1.0 if l2norm else key**-0.5)
    given |= {"layout": layout, "l2norm": l2norm}
    if rng.random() < 0.8:
        given["beta"] = rng.uniform(0, 2 if rng.random() < 0.2 else 1, (2, tokens, 4)).astype(np.float32)
    if rng.random() < 0.7:
        shape = (2, 4, key, value) if layout == "kv" else (2, 4, value, key)
        given["state"] = normal(rng, *shape, dtype=np.float32 if rng.random() < 0.5 else dtype)
    if rng.random() < 0.3:
        # The same tokens in one row, cut into as many sequences as there are states, one of which may be empty.
        for name in ("q", "k", "v", "g", "beta"):
            if name in given:
                given[name] = given[name].reshape(1, -1, *given[name].shape[2:])
        given["cu_seqlens"] = np.array([0, rng.integers(0, 2 * tokens + 1), 2 * tokens], np.int32)
    return given


def given(rng):
    step = inputs(rng, 2, 1, 3, 6, 16, 16, channels=True, size=3e-3)
    step |= {"beta": rng.uniform(0, 1, (2, 1, 6)), "state": normal(rng, 2, 6, 16, 16), "l2norm": True}
    scan = inputs(rng, 2, 4, 3, 6, 16, 20, size=0.25)
    scan |= {"beta": rng.uniform(0, 1, (2, 4, 6)), "state": normal(rng, 2, 6, 20, 16, dtype=np.float32), "layout": "vk"}
    packed = inputs(rng, 1, 9, 3, 6, 16, 20, size=0.25)
    packed |= {"beta": rng.uniform(0, 1, (1, 9, 6)), "state": normal(rng, 3, 6, 16, 20), "cu_seqlens": np.array([0, 4, 4, 9], np.int32)}
    return [step, scan, packed]
