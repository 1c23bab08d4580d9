"""Indices that a function chooses by comparing scores: another index is as right if its score is equal within the errors."""

from __future__ import annotations

import math

import numpy

from ._tape import Tape
from ._torch import Tensor, torch
from ._values import Value

# Operations that give indices of the scores that they choose, and the argument that names the dimension.
CHOOSE = ("topk", "sort", "argsort", "argmax", "argmin", "max", "min", "kthvalue", "median", "nanmedian", "mode")
# Operations that give the same indices in another shape or type.
_SAME = ("view", "_unsafe_view", "reshape", "_reshape_alias", "unsqueeze", "squeeze", "_to_copy", "clone", "detach", "alias")


def as_good(tape: Tape, value: Value, got: numpy.ndarray) -> numpy.ndarray | None:
    """True for indices that are as right as those of the function; None if the value is not of indices."""
    while id(value) not in tape.choices:
        step = tape.maker(value)
        if step is None or step.name not in _SAME or not isinstance(step.args[0], Value) or step.args[0].floating:
            return None
        value = step.args[0]
    scores, dim = tape.choices[id(value)]
    z, want = scores.z, value.z
    off = tape.off(scores)
    if dim is None:
        z, off, want, dim = z.reshape(-1), off.reshape(-1), want.reshape(-1), 0
    dim %= max(z.ndim, 1)
    if z.ndim == 0:
        z, off, want = z.reshape(1), off.reshape(1), want.reshape(1)
    if want.ndim < z.ndim:
        want = want.unsqueeze(dim)
    own = torch.as_tensor(got, device=z.device).reshape(want.shape)
    inside = (own >= 0) & (own < z.shape[dim]) & (own == own.round())
    at = torch.where(inside, own, 0).long()
    known = inside & _equal(z.gather(dim, at), z.gather(dim, want), off.gather(dim, at) + off.gather(dim, want))
    if want.shape[dim] > 1:
        known &= _once(at, dim)
    found: numpy.ndarray = known.cpu().numpy().reshape(got.shape)
    return found


def tied(scores: Tensor, dim: int | None) -> bool:
    """True if some scores of a row are equal."""
    order = (scores.reshape(-1) if dim is None or scores.ndim == 0 else scores.movedim(dim, -1)).sort(-1).values
    return bool(((order.diff(dim=-1) == 0) & order[..., 1:].isfinite()).any())


def _equal(a: Tensor, b: Tensor, off: Tensor) -> Tensor:
    return (a == b) | ((a - b).abs().nan_to_num(math.inf, math.inf) <= off) | (a.isnan() & b.isnan())


def _once(at: Tensor, dim: int) -> Tensor:
    """True for indices that no other element of the row has."""
    order = at.sort(dim)
    same = order.values.diff(dim=dim) == 0
    first = torch.zeros_like(at.narrow(dim, 0, 1), dtype=torch.bool)
    twice = torch.cat([first, same], dim) | torch.cat([same, first], dim)
    return ~torch.zeros_like(twice).scatter(dim, order.indices, twice)
