"""Scans of states, and their transposes, as kernels compute them: step by step, with b folded into c, or by chunks with powers of a."""

from __future__ import annotations

import numpy as np
from kernels import F32, normal, rounded, summed
from ml_dtypes import bfloat16


def diagonal_ssm(rng, u, a, b, c, state=None, dtype=bfloat16):
    u, a, b, c = (given.astype(F32) for given in (u, a, b, c))
    x = np.zeros((*u.shape[:-1], a.shape[-1]), F32) if state is None else state.astype(F32)
    way = str(rng.choice(["steps", "folded", "chunks"]))
    if way == "chunks":
        return _by_chunks(rng, u, [a, b, c], x, dtype)
    folded = way == "folded" and (b != 0).all()
    if folded:
        x, weight = x / b, c * b
    y = np.zeros(u.shape, F32)
    for step in range(u.shape[-1]):
        x = a * x + (u[..., step, None] if folded else b * u[..., step, None])
        y[..., step] = summed((weight if folded else c) * x, rng)
    return {"y": rounded(y, dtype), "state": rounded(x * b if folded else x, dtype)}


def _by_chunks(rng, u, parameters, x, dtype):
    """A chunk is one product with powers of a, and what the state before it gives."""
    a, b, c = parameters
    chunk = int(rng.choice([2, 16, 32]))
    powers = [np.ones_like(a)]
    for _ in range(chunk):
        powers.append(powers[-1] * a if rng.random() < 0.5 else rounded(a.astype(np.float64) ** len(powers), F32))
    y = np.zeros(u.shape, F32)
    taps = [summed(c * b * power, rng) for power in powers[:chunk]]
    for first in range(0, u.shape[-1], chunk):
        part = u[..., first : first + chunk]
        for at in range(part.shape[-1]):
            carried = summed(c * powers[at + 1] * x, rng)
            y[..., first + at] = carried + sum((taps[at - s] * part[..., s] for s in range(at + 1)), F32(0))
        steps = part.shape[-1]
        x = powers[steps] * x
        for s in range(steps):
            x = x + b * powers[steps - 1 - s] * part[..., s, None]
    return {"y": rounded(y, dtype), "state": rounded(x, dtype)}


def decays(rng, *shape):
    """States forget within 10, 100 or 1000 steps; one decay in eight is negative."""
    a = 1 - rng.choice([0.3, 0.03, 0.003], shape) * rng.uniform(0.5, 1.5, shape)
    return np.where(rng.random(shape) < 0.125, -a, a).astype(F32)


def draw_diagonal_ssm(rng, dtype):
    heads, steps, states = (int(rng.choice(sizes)) for sizes in ([1, 3], [1, 63, 200], [1, 7, 32]))
    rows = (2, heads) if rng.random() < 0.3 else (heads,)
    given = {"u": normal(rng, *rows, steps, dtype=dtype), "a": decays(rng, heads, states)}
    given |= {name: rng.standard_normal((heads, states)).astype(F32) for name in "bc"}
    if rng.random() < 0.5:
        # The kernel stores its state in the type of its output.
        given["state"] = normal(rng, *rows, states, dtype=dtype)
    return given


def given_diagonal_ssm(rng):
    given = {"u": normal(rng, 2, 5, 600), "a": decays(rng, 5, 7), "state": rng.standard_normal((2, 5, 7)).astype(F32)}
    return [given | {name: rng.standard_normal((5, 7)).astype(F32) for name in "bc"}]


def state_transpose(rng, x, dtype=bfloat16):
    return np.ascontiguousarray(np.swapaxes(x, -1, -2))


def draw_state_transpose(rng, dtype):
    matrices = rng.choice([1, 3], int(rng.integers(0, 3)))
    x = normal(rng, *matrices, *rng.choice([1, 3, 40, 131], 2), dtype=dtype)
    # One element of NaN alone would judge nothing.
    x.flat[rng.integers(x.size)] = rng.choice([np.nan, np.inf, -0.0] if x.size > 1 else [np.inf, -0.0])
    return {"x": x}


def given_state_transpose(rng):
    return [{"x": normal(rng, 2, 3, 70, 100)}]
