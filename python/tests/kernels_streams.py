"""Residual streams and an indexer's scores as kernels compute them: products and heads in any order."""

from __future__ import annotations

import numpy as np
from kernels import F32, normal, rounded, summed
from ml_dtypes import bfloat16


def mhc_post(rng, x, y, post, comb, dtype=bfloat16):
    x, y, post, comb = (given.astype(F32) for given in (x, y, post, comb))
    old = [comb[..., stream, :, None] * x[..., stream, None, :] for stream in range(x.shape[-2])]
    products = np.stack([*old, post[..., None] * y[..., None, :]], -1)
    return rounded(summed(products, rng), dtype)


def draw_mhc_post(rng, dtype):
    rows, streams, cols = int(rng.choice([1, 5])), int(rng.choice([1, 2, 4])), int(rng.choice([1, 7, 512]))
    return given_mhc_post(rng, (rows, streams, cols), dtype)


def given_mhc_post(rng, sizes=(9, 4, 30), dtype=bfloat16):
    rows, streams, cols = sizes
    return {
        "x": normal(rng, rows, streams, cols, dtype=dtype),
        "y": normal(rng, rows, cols, dtype=dtype, scale=float(rng.choice([0.1, 10.0]))),
        "post": rng.uniform(0, 2, (rows, streams)).astype(F32),
        "comb": rng.uniform(0, 1, (rows, streams, streams)).astype(F32),
    }


def index_scores(rng, q, k, weights, counts=None, scale=1.0, dtype=bfloat16):
    q, k, weights = q.astype(F32), k.astype(F32), weights.astype(F32)
    own = k[:, None] if k.ndim == 3 else k[None, None]
    products = np.maximum(summed(q[:, :, None] * own, rng), F32(0))
    first = rng.random() < 0.5
    terms = products * (weights * F32(scale) if first else weights)[..., None]
    scores = summed(np.moveaxis(terms if first else terms * F32(scale), 1, -1), rng)
    if counts is not None:
        scores[np.arange(scores.shape[1]) >= counts[:, None]] = -np.inf
    return rounded(scores, dtype)


def draw_index_scores(rng, dtype):
    queries, heads, dim, entries = (int(rng.choice(sizes)) for sizes in ([1, 5], [1, 4, 64], [1, 24, 128], [1, 7, 33]))
    own = (queries,) if rng.random() < 0.5 else ()
    given = {
        "q": normal(rng, queries, heads, dim, dtype=dtype),
        "k": normal(rng, *own, entries, dim, dtype=dtype),
        "weights": rng.standard_normal((queries, heads)).astype(F32),
        "scale": float(F32((heads * dim) ** -0.5)),
    }
    if rng.random() < 0.5:
        given["counts"] = rng.integers(0, entries + 1, queries).astype(np.int32)
    return given


def given_index_scores(rng):
    given = {"q": normal(rng, 9, 5, 24), "weights": rng.standard_normal((9, 5)).astype(F32), "scale": 0.5}
    counts = np.array([13, 1, 5, 0, 7, 2, 12, 3, 9], np.int32)
    return [{**given, "k": normal(rng, 13, 24), "counts": counts}, {**given, "k": normal(rng, 9, 13, 24)}]


def sigmoid(x):
    with np.errstate(over="ignore"):
        return F32(1) / (F32(1) + np.exp(-x))


def normed(rng, x, weight, eps):
    y = x / np.sqrt(summed(x * x, rng)[..., None] / F32(x.shape[-1]) + F32(eps))
    return y if weight is None else y * weight.astype(F32)


def logits_of(rng, flat, projection, base, scale, norm_eps):
    """Products with the projection, of the streams as they are, or normed."""
    products = summed(flat[..., None, :] * projection, rng)
    inverse = F32(1) / np.sqrt(summed(flat * flat, rng)[..., None] / F32(flat.shape[-1]) + F32(norm_eps))
    return products * inverse * scale + base


def hyper_head(rng, x, base, scale, weight=None, norm_eps=1e-6, eps=1e-6, norm="rms", dtype=bfloat16, **given):
    x, projection = x.astype(F32), given["fn"].astype(F32)
    logits = logits_of(rng, x.reshape(*x.shape[:-2], -1), projection, base, scale[0], norm_eps)
    h = summed(np.moveaxis((sigmoid(logits) + F32(eps))[..., None] * x, -2, -1), rng)
    return rounded(normed(rng, h, weight, norm_eps) if norm == "rms" else h, dtype)


def projected(rng, streams, channels, width, dtype, rows):
    """Streams, and what turns them to logits."""
    return {
        "x": normal(rng, *rows, streams, channels, dtype=dtype, scale=float(rng.choice([0.01, 1.0, 30.0]))),
        "fn": (rng.standard_normal((width, streams * channels)) * (streams * channels) ** -0.5).astype(F32),
        "base": (0.5 * rng.standard_normal(width)).astype(F32),
    }


def draw_hyper_head(rng, dtype):
    streams, channels = int(rng.choice([1, 2, 4])), int(rng.choice([1, 7, 128, 1024]))
    given = projected(rng, streams, channels, streams, dtype, [int(rng.choice([1, 5]))])
    given |= {"scale": np.array([1.2], F32), "norm_eps": float(rng.choice([1e-6, 1e-5]))}
    if rng.random() < 0.7:
        given["weight"] = (1 + 0.1 * rng.standard_normal(channels)).astype(F32)
    if rng.random() < 0.3:
        given["norm"] = "none"
    return given


def given_hyper_head(rng):
    """Streams and weights of streams so small that what is added to them counts."""
    given = projected(rng, 4, 40, 4, bfloat16, [9]) | {"x": normal(rng, 9, 4, 40, scale=0.004)}
    given |= {"base": np.array([-13, -14, -12, -15], F32), "scale": np.array([1.2], F32), "norm_eps": 1e-5}
    return [given | {"weight": (1 + 0.1 * rng.standard_normal(40)).astype(F32)}, given | {"norm": "none"}]


def sinkhorn(rng, logits, iterations, eps):
    comb = np.exp(logits - logits.max(-1, keepdims=True))
    comb = comb / summed(comb, rng)[..., None] + F32(eps)
    for iteration in range(iterations):
        if iteration:
            comb = comb / (summed(comb, rng)[..., None] + F32(eps))
        comb = comb / (summed(np.moveaxis(comb, -2, -1), rng)[..., None, :] + F32(eps))
    return comb


def mhc_pre(rng, x, base, scale, weight=None, norm_eps=1e-6, eps=1e-6, iterations=20, norm="rms", dtype=bfloat16, **given):
    x, projection, streams = x.astype(F32), given["fn"].astype(F32), x.shape[-2]
    scales = np.repeat(scale, [streams, streams, streams * streams])
    logits = logits_of(rng, x.reshape(*x.shape[:-2], -1), projection, base, scales, norm_eps)
    pre, post, comb = np.split(logits, [streams, 2 * streams], -1)
    y = summed(np.moveaxis((sigmoid(pre) + F32(eps))[..., None] * x, -2, -1), rng)
    comb = sinkhorn(rng, comb.reshape(*comb.shape[:-1], streams, streams), iterations, eps)
    y = normed(rng, y, weight, norm_eps) if norm == "rms" else y
    return {"y": rounded(y, dtype), "post": rounded(F32(2) * sigmoid(post), F32), "comb": rounded(comb, F32)}


def draw_mhc_pre(rng, dtype):
    streams, channels = int(rng.choice([1, 2, 4])), int(rng.choice([1, 7, 128, 1024]))
    given = projected(rng, streams, channels, 2 * streams + streams**2, dtype, [int(rng.choice([1, 5]))])
    given |= {"scale": np.array([0.9, 1.1, rng.choice([1.3, 6.0])], F32), "iterations": int(rng.choice([1, 3, 20]))}
    if rng.random() < 0.7:
        given["weight"] = (1 + 0.1 * rng.standard_normal(channels)).astype(F32)
    if rng.random() < 0.3:
        given["norm"] = "none"
    return given


def given_mhc_pre(rng):
    """Logits so large that the last iteration counts, and streams and weights so small that what is added to them does."""
    given = projected(rng, 4, 40, 24, bfloat16, [30]) | {"scale": np.array([0.9, 1.1, 6.0], F32), "iterations": 4, "norm_eps": 1e-5}
    given |= {"x": normal(rng, 30, 4, 40, scale=0.004), "weight": (1 + 0.1 * rng.standard_normal(40)).astype(F32)}
    given["base"][:4] = [-13, -14, -12, -15]
    return [given]
