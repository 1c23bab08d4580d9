"""Products of matrices as kernels compute them: plain, of FP8 with scales of blocks or of tokens and channels, of NVFP4 and MXFP8."""

from __future__ import annotations

import numpy as np
from kernels import F32, normal, rounded, summed
from ml_dtypes import bfloat16, float8_e4m3fn, float8_e8m0fnu

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], F32)
E2M1 = np.concatenate([E2M1, -E2M1])


def spread(scale, shape, blocks=(None, None)):
    """Scales as large as what they are of, each of as many elements as are stated, or of a power of two."""
    scale = scale.astype(F32)
    if scale.size == 1:
        return np.full(shape, scale.reshape(()), F32)
    if scale.ndim == 1:
        scale = scale[:, None] if scale.size == shape[-2] else scale[None]
    for axis, stated in zip((-2, -1), blocks):
        count, size = scale.shape[axis], shape[axis]
        block = size if count == 1 else stated or next(2**p for p in range(20) if -(-size // 2**p) == count)
        scale = np.repeat(scale, block, axis).take(range(size), axis)
    return scale


def codes(x, kind):
    """The numbers that codes stand for."""
    if kind != "e2m1":
        return x.astype(F32)
    return np.stack([E2M1[x & 15], E2M1[x >> 4]], -1).reshape(*x.shape[:-1], -1)


def kernel(
    rng,
    a,
    b,
    bias=None,
    alpha=1.0,
    b_rows="k",
    a_scale=None,
    b_scale=None,
    a_codes=None,
    b_codes=None,
    m_block=None,
    n_block=None,
    k_block=None,
    dtype=bfloat16,
):
    a, b = codes(a, a_codes), codes(b, b_codes)
    of_b = (n_block, k_block) if b_rows == "n" else (k_block, n_block)
    a_scale = F32(1) if a_scale is None else spread(a_scale, a.shape, (m_block, k_block))
    b_scale = F32(1) if b_scale is None else spread(b_scale, b.shape, of_b)
    # b becomes [..., N, K].
    if b_rows == "k":
        b, b_scale = b.swapaxes(-1, -2), b_scale.swapaxes(-1, -2) if np.ndim(b_scale) else b_scale
    b_scale = np.broadcast_to(b_scale, b.shape)
    a_scale = np.broadcast_to(a_scale, a.shape)
    if rng.random() < 0.5:
        y = summed((a * a_scale)[..., :, None, :] * (b * b_scale)[..., None, :, :], rng)
    else:
        # Blocks of K are summed up, and multiplied by the product of their scales.
        step = 16 if k_block else int(rng.choice([16, 128]))
        y = np.zeros((*a.shape[:-1], b.shape[-2]), F32)
        for start in range(0, a.shape[-1], step):
            part = np.s_[..., start : start + step]
            ends = np.s_[..., start + step - 1 : start + step] if start + step <= a.shape[-1] else np.s_[..., -1:]
            same = all((s[part] == s[ends]).all() for s in (a_scale, b_scale))
            if same:
                block = summed(a[part][..., :, None, :] * b[part][..., None, :, :], rng)
                y += block * (a_scale[ends][..., :, None, 0] * b_scale[ends][..., None, :, 0])
            else:
                scales = a_scale[part][..., :, None, :] * b_scale[part][..., None, :, :]
                y += summed(a[part][..., :, None, :] * b[part][..., None, :, :] * scales, rng)
    y = y * F32(alpha)
    return rounded(y if bias is None else y + bias.astype(F32), dtype)


def fp8(rng, *shape):
    return normal(rng, *shape, dtype=float8_e4m3fn, scale=60.0)


def scales(rng, *shape):
    return np.exp(rng.uniform(-7, -3, shape)).astype(F32)


def blocked(rng, m, n, k, block=128, tile=128, batch=()):
    """DeepGEMM's: 1 x 128 by 128 x 128."""
    blocks = -(-k // block)
    return {
        "a": fp8(rng, *batch, m, k),
        "b": fp8(rng, *batch, n, k),
        "a_scale": scales(rng, *batch, m, blocks),
        "b_scale": scales(rng, *batch, -(-n // tile), blocks),
        "b_rows": "n",
        "k_block": block,
        "n_block": tile,
    }


def tokens(rng, m, n, k):
    """A scale for each token and each channel."""
    a_scale = scales(rng, m, 1) if rng.random() < 0.5 else scales(rng, m)
    b_scale = scales(rng, 1, n) if rng.random() < 0.5 else scales(rng, n)
    return {"a": fp8(rng, m, k), "b": fp8(rng, k, n), "a_scale": a_scale, "b_scale": b_scale}


def nvfp4(rng, m, n, k):
    """Codes with E4M3 scales of 16, and a scale of the tensors."""
    given = {"b_rows": "n", "alpha": 0.0123, "a_codes": "e2m1", "b_codes": "e2m1"}
    for name, rows in (("a", m), ("b", n)):
        given[name] = rng.integers(0, 256, (rows, k // 2)).astype(np.uint8)
        given[f"{name}_scale"] = np.exp(rng.uniform(-1, 4, (rows, k // 16))).astype(float8_e4m3fn)
    return given


def mxfp8(rng, m, n, k):
    """E8M0 scales of 32."""
    given = {"a": fp8(rng, m, k), "b": fp8(rng, n, k), "b_rows": "n"}
    for name, rows in (("a", m), ("b", n)):
        given[f"{name}_scale"] = (2.0 ** rng.integers(-9, 3, (rows, k // 32))).astype(float8_e8m0fnu)
    return given


def plain(rng, dtype):
    m, n, k = int(rng.choice([1, 5])), int(rng.choice([1, 8])), int(rng.choice([1, 33, 512, 4096]))
    batch = (3,) if rng.random() < 0.3 else ()
    a = normal(rng, *batch, m, k, dtype=dtype)
    b = normal(rng, *(batch if rng.random() < 0.7 else ()), k, n, dtype=dtype)
    return {"a": a, "b": b, "alpha": 0.3}


def draw(rng, dtype):
    m, n, k = int(rng.choice([1, 5])), int(rng.choice([2, 8])), 32 * int(rng.choice([1, 4, 7, 33]))
    makers = [
        lambda: plain(rng, dtype),
        lambda: blocked(rng, m, n, k),
        lambda: blocked(rng, m, n, k, 32, 1, (2,)),
        lambda: tokens(rng, m, n, k),
        lambda: nvfp4(rng, m, n, k),
        lambda: mxfp8(rng, m, n, k),
    ]
    given = makers[int(rng.integers(len(makers)))]()
    if rng.random() < 0.4:
        given["bias"] = normal(rng, given["b"].shape[0 if given.get("b_rows") == "n" else -1], dtype=dtype)
        if given["b"].ndim > 2:
            given["bias"] = normal(rng, n, dtype=dtype) if "a_scale" in given else given["bias"]
    return given


def given(rng):
    square = {"a": normal(rng, 9, 40), "b": normal(rng, 40, 40), "bias": normal(rng, 40), "alpha": 0.7}
    batched = {"a": normal(rng, 3, 9, 40), "b": normal(rng, 3, 40, 7)}
    return [square, batched, blocked(rng, 9, 20, 200, 64, 4), nvfp4(rng, 9, 20, 160), mxfp8(rng, 9, 20, 160)]
