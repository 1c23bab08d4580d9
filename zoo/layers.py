"""Parts of a model in f32, as kernels compute them: what entries have in common that plant a fault around them."""

from __future__ import annotations

import numpy as np

F32 = np.float32


def normal(rng, *shape):
    """Numbers in f32 from a normal distribution."""
    return rng.standard_normal(shape).astype(F32)


def attend(q, k, v, seen=True, sinks=None):
    """Outputs [T, H, E] of queries [T, H, D] over keys [S, G, D], and logarithms [T, H] of sums of exponentials.

    A query without keys has the output 0 and the logarithm -inf.
    """
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = np.where(seen, q.swapaxes(0, 1) @ k.transpose(1, 2, 0) / F32(np.sqrt(q.shape[-1])), F32(-np.inf))
    top = scores.max(-1, keepdims=True, initial=F32(-1e30))
    weights = np.exp(scores - top)
    sums = weights.sum(-1, keepdims=True)
    if sinks is not None:
        sums = sums + np.exp(sinks[:, None, None] - top)
    o = ((weights / np.maximum(sums, F32(1e-30))) @ v.swapaxes(0, 1)).swapaxes(0, 1)
    with np.errstate(divide="ignore"):
        return o, (top + np.log(sums))[..., 0].T


def merged(parts):
    """Outputs and logarithms over all keys, from those over parts of them."""
    o, lse = (np.stack(which) for which in zip(*parts))
    top = lse.max(0)
    weights = np.exp(lse - top)
    sums = weights.sum(0)
    return (o * (weights / sums)[..., None]).sum(0), top + np.log(sums)


def angles(positions, channels, base=10000.0):
    """Cosines and sines [T, R/2] of so many channels that are turned, in f32 of angles in f64."""
    angle = positions[:, None] * base ** (-np.arange(0, channels, 2) / channels)
    return np.cos(angle).astype(F32), np.sin(angle).astype(F32)


def turned(x, cos, sin, pairing="half"):
    """[T, H, D] with its first R channels turned by their angles, of which cosines and sines are [T, R/2]."""
    half, out = cos.shape[-1], x.copy()
    first = slice(0, half) if pairing == "half" else slice(0, 2 * half, 2)
    second = slice(half, 2 * half) if pairing == "half" else slice(1, 2 * half, 2)
    cos, sin = cos[:, None], sin[:, None]
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., second] * cos + x[..., first] * sin
    return out


def routed(scores, k, bias=0):
    """The k experts that each token goes to, by score and bias, and their weights: scores divided by their sum."""
    chosen = np.argsort(-(scores + bias), axis=-1, kind="stable")[:, :k]
    weights = np.take_along_axis(scores, chosen, -1)
    return chosen, weights / weights.sum(-1, keepdims=True)


def experts(x, chosen, weights, w13, w2):
    """The sum [T, C] of what chosen experts [T, k] give, by their weights [T, k]."""
    gate, up = np.split(np.einsum("tc,tkic->tki", x, w13[chosen]), 2, axis=-1)
    return np.einsum("tk,tki,tkci->tc", weights, gate / (1 + np.exp(-gate)) * up, w2[chosen])


def mixture(rng, count=11, **options):
    """Inputs of `ulplab.reference.moe`: 37 tokens of 28 channels, and so many experts of 21, three of which each token goes to."""
    given = dict(x=normal(rng, 37, 28), logits=normal(rng, 37, count))
    return {**given, "w13": normal(rng, count, 2 * 21, 28) / 5, "w2": normal(rng, count, 28, 21) / 5, "top_k": 3, **options}
