"""A decode step of a compressor as kernels compute it: a softmax for each channel, a norm and a turn, sums in any order."""

from __future__ import annotations

import numpy as np
from kernels import F32, rounded, summed
from kernels_streams import normed
from ml_dtypes import bfloat16


def compressor(rng, kv, gate, ape, cos, sin, position, ring_kv, ring_gate, entries, weight=None, eps=1e-6, dtype=bfloat16):
    rate, dim = ape.shape[0], entries.shape[-1]
    overlap, slots = ape.shape[1] != dim, ring_kv.shape[1]
    ring_kv, ring_gate, entries = ring_kv.copy(), ring_gate.copy(), entries.copy()
    for row, t in enumerate(position):
        if t < 0:
            continue
        ring_kv[row, t % slots] = kv[row]
        ring_gate[row, t % slots] = gate[row] + ape[t % rate]
        if (t + 1) % rate:
            continue
        own = t // rate * rate
        pooled = [(token, dim if overlap else 0) for token in range(own, own + rate)]
        if overlap and own:
            pooled = [(token, 0) for token in range(own - rate, own)] + pooled
        values, gates = (
            np.stack([ring[row, token % slots, first : first + dim] for token, first in pooled], -1) for ring in (ring_kv, ring_gate)
        )
        powers = np.exp(gates - gates.max(-1, keepdims=True))
        entry = normed(rng, summed(powers * values, rng) / summed(powers, rng), weight, eps)
        pairs = cos.shape[-1]
        one, two = entry[dim - 2 * pairs :: 2].copy(), entry[dim - 2 * pairs + 1 :: 2].copy()
        entry[dim - 2 * pairs :: 2] = one * cos[own] - two * sin[own]
        entry[dim - 2 * pairs + 1 :: 2] = one * sin[own] + two * cos[own]
        entries[row, t // rate] = rounded(entry, dtype)
    return {"entries": entries, "ring_kv": ring_kv, "ring_gate": ring_gate}


def _drawn(rng, rate, overlap, dim, pairs, position, dtype):
    rows, width, slots = len(position), dim * (1 + overlap), rate * (1 + overlap)
    shapes = {"kv": (rows, width), "gate": (rows, width), "ape": (rate, width), "ring_kv": (rows, slots, width),
        "ring_gate": (rows, slots, width)}
    angles = np.arange(70)[:, None] * 100.0 ** -(np.arange(pairs) / pairs)
    return {
        **{name: rng.standard_normal(shape).astype(F32) for name, shape in shapes.items()},
        "weight": (1 + 0.2 * rng.standard_normal(dim)).astype(F32),
        "cos": np.cos(angles).astype(F32),
        "sin": np.sin(angles).astype(F32),
        "position": np.array(position, np.int32),
        "entries": rounded(rng.standard_normal((rows, 70 // rate + 1, dim)), dtype),
    }


def draw_compressor(rng, dtype):
    rate, dim = int(rng.choice([1, 3, 8])), int(rng.choice([4, 40, 128]))
    position = rng.integers(-1, 70 // rate, 5) * rate + rng.choice([rate - 1, 0])
    position = np.where(position < 0, -1, position)
    given = _drawn(rng, rate, bool(rng.random() < 0.5), dim, int(rng.choice([1, dim // 2])), position, dtype)
    if rng.random() < 0.3:
        del given["weight"]
    return given


def given_compressor(rng):
    """Values so small that what is added to their squares counts; first windows and later ones, and tokens in the middle of one."""
    given = _drawn(rng, 4, True, 24, 4, [3, 7, 35, 6, -1, 63, 3, 9], bfloat16)
    return [given | {name: F32(0.002) * given[name] for name in ("kv", "ring_kv")}]
