"""Operations as kernels compute them: in float32, in an order of their own, rounded once at the end. The bounds must hold for all of
these, and faults planted in them must be found."""

from __future__ import annotations

import numpy as np
from ml_dtypes import bfloat16

F32 = np.float32


def rounded(x, dtype):
    """The numbers as a type has them."""
    return np.asarray(x, F32).astype(dtype)


def normal(rng, *shape, dtype=bfloat16, scale=1.0):
    """Numbers of a normal distribution, in a type."""
    return rounded(rng.standard_normal(shape) * scale, dtype)


def summed(x, rng):
    """Sums of the last dimension in float32: in pieces of some size, each one by one, the pieces in any order."""
    size = int(rng.choice([1, 4, 16, 32, 128]))
    x = np.asarray(x, F32)
    rest = -x.shape[-1] % size
    x = np.concatenate([x, np.zeros((*x.shape[:-1], rest), F32)], -1)
    lanes = x.reshape(*x.shape[:-1], x.shape[-1] // size, size)
    total = np.zeros(lanes.shape[:-2] + (size,), F32)
    for piece in range(lanes.shape[-2]):
        total += lanes[..., piece, :]
    order = rng.permutation(size)
    result = np.zeros(total.shape[:-1], F32)
    for lane in order:
        result += total[..., lane]
    return result


def rmsnorm(rng, x, weight, eps, gate=None, zero_centered=False, cast=None, dtype=bfloat16):
    x, weight = x.astype(F32), weight.astype(F32)
    weight = F32(1) + weight if zero_centered else weight
    scale = F32(1) / np.sqrt(summed(x * x, rng) / F32(x.shape[-1]) + F32(eps))
    y = x * scale[..., None]
    if cast == "before_weight":
        y = rounded(y, dtype).astype(F32)
    y = y * weight
    if gate is not None:
        gate = gate.astype(F32)
        y = y * (gate / (F32(1) + np.exp(-gate)))
    return rounded(y, dtype)


def silu_and_mul(rng, x, cast="after_up", dtype=bfloat16):
    gate, up = np.split(x.astype(F32), 2, -1)
    with np.errstate(over="ignore"):
        activated = gate / (F32(1) + np.exp(-gate))
        if cast == "before_up":
            activated = rounded(activated, dtype).astype(F32)
        return rounded(activated * up, dtype)


def softmax(rng, x, scale=1.0, dtype=bfloat16):
    x = x.astype(F32) * F32(scale)
    powers = np.exp(x - x.max(-1, keepdims=True))
    return rounded(powers / summed(powers, rng)[..., None], dtype)


def welford(x):
    """Mean and variance, element by element."""
    mean, squares = np.zeros(x.shape[:-1], F32), np.zeros(x.shape[:-1], F32)
    for at in range(x.shape[-1]):
        off = x[..., at] - mean
        mean = mean + off / F32(at + 1)
        squares = squares + off * (x[..., at] - mean)
    return mean[..., None], squares[..., None] / F32(x.shape[-1])


def layernorm(rng, x, weight=None, bias=None, eps=1e-5, variance=None, dtype=bfloat16):
    x, count = x.astype(F32), F32(x.shape[-1])
    mean = summed(x, rng)[..., None] / count
    if variance == "of_squares":
        var = np.maximum(summed(x * x, rng)[..., None] / count - mean * mean, F32(0))
    elif rng.random() < 0.3:
        mean, var = welford(x)
    else:
        var = summed((x - mean) * (x - mean), rng)[..., None] / count
    with np.errstate(divide="ignore", invalid="ignore"):
        y = (x - mean) * (F32(1) / np.sqrt(var + F32(eps)))
    y = y if weight is None else y * weight.astype(F32)
    return rounded(y if bias is None else y + bias.astype(F32), dtype)


def top_k(rng, x, k, ties="lower_index", dtype=bfloat16):
    mixed = rng.permutation(x.shape[-1]) if ties == "any" else np.arange(x.shape[-1])
    indices = mixed[np.argsort(-x.astype(F32)[:, mixed], -1, kind="stable")[:, :k]]
    return {"values": np.take_along_axis(x, indices, -1), "indices": indices.astype(np.int64)}


def rope(rng, x, cos, sin, pairing="half", inverse=False, layout="bthd", width="half", dtype=bfloat16):
    y, dims = x.astype(F32), cos.shape[-1]
    turned = dims if width == "full" else 2 * dims
    pairs = turned // 2
    if width == "full":
        cos, sin = (a[..., :pairs] if pairing == "half" else a[..., ::2] for a in (cos, sin))
    cos, sin = cos.astype(F32), sin.astype(F32) * (-1 if inverse else 1)
    axis = -2 if layout == "bthd" else -3
    cos, sin = np.expand_dims(cos, axis), np.expand_dims(sin, axis)
    if pairing == "half":
        one, two = np.s_[..., :pairs], np.s_[..., pairs : 2 * pairs]
    else:
        one, two = np.s_[..., 0 : 2 * pairs : 2], np.s_[..., 1 : 2 * pairs : 2]
    a, b = y[one].copy(), y[two].copy()
    y[one], y[two] = a * cos - b * sin, b * cos + a * sin
    return rounded(y, dtype)
