"""Mixtures of experts as kernels compute them: weights multiplied before or after the second product, ties broken in any way."""

from __future__ import annotations

import numpy as np
from kernels import F32, normal, rounded, summed
from ml_dtypes import bfloat16

STORED = {"f32": F32, "bf16": bfloat16, "f16": np.float16}


def linear(rng, x, w):
    return summed(x[..., None, :] * w, rng)


def expert(rng, x, w13, w2, limit, stored, weight=None):
    """Rows through an expert; a weight multiplies what the second product takes."""
    gate, up = (rounded(part, stored).astype(F32) for part in np.split(linear(rng, x, w13), 2, -1))
    if limit is not None:
        gate, up = np.minimum(gate, F32(limit)), np.clip(up, F32(-limit), F32(limit))
    hidden = gate / (F32(1) + np.exp(-gate)) * up
    hidden = rounded(hidden if weight is None else hidden * weight, stored).astype(F32)
    return linear(rng, hidden, w2)


def kernel(
    rng,
    x,
    w13,
    w2,
    top_k,
    logits=None,
    router=None,
    shared_w13=None,
    shared_w2=None,
    selection_bias=None,
    scores="softmax",
    renormalize=True,
    scaling_factor=1.0,
    groups=1,
    top_groups=None,
    limit=None,
    stored="f32",
    dtype=bfloat16,
):
    x, w13, w2, stored = x.astype(F32), w13.astype(F32), w2.astype(F32), STORED[stored]
    logits = linear(rng, x, router.astype(F32)) if logits is None else logits.astype(F32)
    if scores == "softmax":
        score = np.exp(logits - logits.max(-1, keepdims=True))
        score = score / summed(score, rng)[..., None]
    elif scores == "sqrtsoftplus":
        score = np.sqrt(np.maximum(logits, F32(0)) + np.log1p(np.exp(-np.abs(logits))))
    else:
        score = F32(1) / (F32(1) + np.exp(-logits))
    key = score if selection_bias is None else score + selection_bias.astype(F32)
    if top_groups is not None:
        of_groups = key.reshape(len(key), groups, -1)
        best = np.sort(of_groups, -1)[..., -2 if selection_bias is not None else -1 :].sum(-1, dtype=F32)
        mixed = rng.permutation(groups)
        kept = mixed[np.argsort(-best[:, mixed], -1, kind="stable")[:, :top_groups]]
        hidden = np.ones((len(key), groups), bool)
        np.put_along_axis(hidden, kept, False, -1)
        key = np.where(np.repeat(hidden, key.shape[-1] // groups, -1), F32(-np.inf), key)
    # Equal keys in any order.
    mixed = rng.permutation(key.shape[-1])
    chosen = mixed[np.argsort(-key[:, mixed], -1, kind="stable")[:, :top_k]]
    weights = np.take_along_axis(score, chosen, -1)
    if renormalize:
        weights = weights / weights.sum(-1, keepdims=True, dtype=F32)
    weights = weights * F32(scaling_factor)
    before, cast = rng.random() < 0.5, rng.random() < 0.3
    if cast:
        # transformers: the weight has the type of what it is multiplied by.
        before, weights = False, rounded(weights, stored).astype(F32)
    y = np.zeros(x.shape, F32)
    for token in range(len(x)):
        for slot in rng.permutation(top_k):
            at, weight = chosen[token, slot], weights[token, slot]
            out = expert(rng, x[token], w13[at], w2[at], limit, stored, weight if before else None)
            out = rounded(out, stored).astype(F32) if cast else out
            out = rounded(out if before else out * weight, stored).astype(F32)
            y[token] = rounded(y[token] + out, stored).astype(F32)
    if shared_w13 is not None:
        y += rounded(expert(rng, x, shared_w13.astype(F32), shared_w2.astype(F32), limit, stored), stored).astype(F32)
    return rounded(y, dtype)


def sizes(rng, tokens, dim, experts, inner, dtype=bfloat16):
    return {
        "x": normal(rng, tokens, dim, dtype=dtype),
        "w13": normal(rng, experts, 2 * inner, dim, dtype=dtype, scale=dim**-0.5),
        "w2": normal(rng, experts, dim, inner, dtype=dtype, scale=inner**-0.5),
    }


def draw(rng, dtype):
    tokens, dim, experts, inner = 5, int(rng.choice([8, 96])), int(rng.choice([1, 6, 16])), int(rng.choice([4, 40]))
    given = sizes(rng, tokens, dim, experts, inner, dtype)
    given |= {"top_k": int(rng.integers(1, min(experts, 4) + 1)), "scores": str(rng.choice(["softmax", "sigmoid", "sqrtsoftplus"]))}
    if rng.random() < 0.3:
        given["router"] = normal(rng, experts, dim, dtype=dtype, scale=dim**-0.5)
    elif rng.random() < 0.5:
        # Many ties.
        given["logits"] = rng.integers(-2, 3, (tokens, experts)).astype(np.float32) / 2
    else:
        given["logits"] = normal(rng, tokens, experts, dtype=dtype, scale=float(rng.choice([1.0, 4.0])))
    if rng.random() < 0.4:
        given["selection_bias"] = rng.standard_normal(experts).astype(np.float32)
    if experts == 16 and rng.random() < 0.6:
        given["groups"], given["top_groups"] = 4, int(rng.integers(1, 4))
    if rng.random() < 0.3:
        given["renormalize"] = False
    if rng.random() < 0.3:
        given["scaling_factor"] = 2.5
    if rng.random() < 0.3:
        given["limit"] = 1.0
    if rng.random() < 0.4:
        given["shared_w13"] = normal(rng, 2 * 12, dim, dtype=dtype, scale=dim**-0.5)
        given["shared_w2"] = normal(rng, dim, 12, dtype=dtype, scale=0.3)
    if rng.random() < 0.5 and dtype is not np.float32:
        given["stored"] = "bf16" if dtype is bfloat16 else "f16"
    return given


def given(rng):
    full = sizes(rng, 20, 32, 7, 24)
    full |= {
        "logits": normal(rng, 20, 7),
        "shared_w13": normal(rng, 24, 32, scale=0.3),
        "shared_w2": normal(rng, 32, 12, scale=0.3),
        "selection_bias": rng.standard_normal(7).astype(np.float32),
        "top_k": 3,
        "scores": "sigmoid",
        "scaling_factor": 2.5,
        "limit": 0.8,
    }
    grouped = sizes(rng, 40, 32, 12, 8)
    grouped |= {"logits": normal(rng, 40, 12), "top_k": 3, "groups": 4, "top_groups": 2}
    biased = {**grouped, "selection_bias": rng.standard_normal(12).astype(np.float32)}
    # A bias whose steps in bf16 are as large as differences of scores.
    coarse = sizes(rng, 40, 16, 31, 8)
    coarse |= {"logits": normal(rng, 40, 31), "selection_bias": rng.uniform(6.8, 7.1, 31).astype(np.float32), "top_k": 5,
        "scores": "sigmoid"}
    return [full, grouped, biased, coarse]
