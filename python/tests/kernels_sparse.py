"""A token's attention to its window and to entries as kernels compute it: sums in any order, a maximum of the whole row or as it goes."""

from __future__ import annotations

import numpy as np
from kernels import F32, normal, rounded, summed
from ml_dtypes import bfloat16


def sparse_attention(rng, q, window, position, entries, indices=None, count=None, sinks=None, scale=None, p=None, dtype=bfloat16):
    rows, heads, dim = q.shape
    slots = window.shape[1]
    q, scale = q.astype(F32), F32(dim**-0.5 if scale is None else scale)
    out = np.zeros(q.shape, F32)
    for row in range(rows):
        now = int(position[row])
        if now < 0:
            continue
        recent = window[row, [at % slots for at in range(max(0, now - slots + 1), now + 1)]]
        if indices is not None:
            read = entries[row, [at for at in indices[row] if at >= 0]]
        else:
            read = entries[row, : None if count is None else int(count[row])]
        keys = np.concatenate([recent, read]).astype(F32)
        scores = summed(q[row][:, None] * keys, rng) * scale
        sink = np.full(heads, -np.inf, F32) if sinks is None else sinks.astype(F32)
        top = scores.max(-1) if rng.random() < 0.5 else np.maximum(scores.max(-1), sink)
        with np.errstate(over="ignore"):
            powers = np.exp(scores - top[:, None])
            total = summed(powers, rng) + np.exp(sink - top)
        first = rng.random() < 0.5
        weights = powers / total[:, None] if first else powers
        weights = rounded(weights, {"bf16": bfloat16, "f16": np.float16}[p]).astype(F32) if p else weights
        mixed = summed(np.moveaxis(weights[..., None] * keys, 1, -1), rng)
        out[row] = mixed if first else mixed / total[:, None]
    return rounded(out, dtype)


def draw_sparse_attention(rng, dtype):
    rows, heads, dim, slots, count = (int(rng.choice(sizes)) for sizes in ([1, 4], [1, 3], [8, 64], [1, 5, 32], [1, 20, 70]))
    rounding = {"p": str(rng.choice(["bf16", "f16"]))} if rng.random() < 0.3 else {}
    return rounding | _drawn(rng, [rows, heads, dim, slots, count], dtype, str(rng.choice(["indices", "count", "all"])), rng.random() < 0.7)


def _drawn(rng, sizes, dtype, reads, sunk):
    rows, heads, dim, slots, count = sizes
    position = rng.choice([0, slots // 2, slots, 5 * slots + 1], rows)
    given = {
        "q": normal(rng, rows, heads, dim, dtype=dtype, scale=float(rng.choice([1.0, 8.0]))),
        "window": normal(rng, rows, slots, dim, dtype=dtype),
        "position": position.astype(np.int32),
        "entries": normal(rng, rows, count, dim, dtype=dtype),
    }
    if reads == "indices":
        given["indices"] = rng.integers(-1, count, (rows, 9)).astype(np.int32)
    elif reads == "count":
        given["count"] = rng.integers(0, count + 1, rows).astype(np.int32)
    if rng.random() < 0.3:
        given["scale"] = 0.3
    if sunk:
        given["sinks"] = (2 * rng.standard_normal(heads)).astype(F32)
    return given


def given_sparse_attention(rng):
    all_given = []
    for reads in ("indices", "count"):
        given = _drawn(rng, [8, 3, 32, 6, 25], bfloat16, reads, True)
        given["position"] = np.array([0, 3, 5, 6, 31, -1, 17, 2], np.int32)
        all_given.append(given)
    return all_given
