"""Derivatives of some rows of a large output, where rows do not depend on each other."""

from __future__ import annotations

import itertools
from typing import Any

from ._tape import Tape
from ._torch import Tensor, torch
from ._values import Step, Value, walk

# Share by which numbers are moved to see that other rows do not depend on them, and the share of a row's largest number that may differ.
_MOVED = 1e-3
_SAME = 1e-11


class _Tied(Exception):
    """A step whose rows depend on each other, or are not known to be apart."""


def derive(tape: Tape, value: Value, rows: list[int]) -> tuple[Tensor, list[tuple[Step, Tensor]]] | None:
    """Runs the steps of a value with derivatives, on some rows only. Returns what `Tape.derive` does, of these rows.

    Returns None if a step gives other numbers for the rows alone than for all of them, with its own arguments or with moved ones.
    """
    count = len(value.z) if value.z.ndim else 0
    rounds: list[tuple[Step, Tensor]] = []
    if len(rows) < 2 or count == 0:
        return None
    at = torch.tensor(rows, device=value.z.device)

    def make(number: int, step: Step, found: dict[int, Tensor]) -> list[Tensor]:
        if any(out.z.shape[:1] != (count,) for out in step.outs):
            raise _Tied
        given = _alone(step, found, at, count, number)
        off = [tape.off(one) for one in step.inputs]
        cut = [one[at] if _has_rows(value, count) else one for value, one in zip(step.inputs, off)] if step.kinked is not None else []
        outs = _outs(step.kinked(*given, *cut) if step.kinked is not None else step.call(*given))
        for one, out in zip(outs, step.outs):
            _agree(one, out.z[at])
        outs = [one.detach().requires_grad_() if out.floating and not one.requires_grad else one for one, out in zip(outs, step.outs)]
        if step.local is not None and step.outs[0].floating:
            rounds.append((step, outs[0]))
        return outs

    made = None
    with torch.enable_grad():
        try:
            for _, one in tape.replay(make, tape.plan([value]), [value]):
                made = one
        except (_Tied, RuntimeError, IndexError, TypeError):
            return None
    return None if made is None else (made, rounds)


def _has_rows(value: Value, count: int) -> bool:
    return bool(value.z.shape[:1] == (count,))


def _outs(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _alone(step: Step, found: dict[int, Tensor], at: Tensor, count: int, number: int) -> Any:
    """The arguments of a step for some rows: numbers with errors by row, exact ones by row or whole, whichever gives the same rows."""
    shared = [value for value in step.inputs if id(value) not in found]
    if not all(value.exact for value in shared):
        raise _Tied
    with torch.no_grad():
        random = torch.Generator(at.device).manual_seed(number)
        moved = {id(value): _moved(value.z, random) if value.floating else value.z for value in step.inputs if id(value) in found}
        whole = [one[at] for one in _outs(step.call(*walk(step.args, lambda value: moved.get(id(value), value.z))))]
        ways = [(True, False) if _has_rows(value, count) else (False,) for value in shared]
        for way in itertools.islice(itertools.product(*ways), 8):
            cut = {id(value): value.z[at] if by_row else value.z for value, by_row in zip(shared, way)}
            args = _resized(step.args, count, len(at))
            try:
                given = cut | {key: one[at] for key, one in moved.items()}
                for one, want in zip(_outs(step.call(*walk(args, lambda value: given[id(value)]))), whole):  # noqa: B023
                    _agree(one, want)
            except (_Tied, RuntimeError, IndexError, TypeError):
                continue
            given = cut | {key: found[key] for key in moved}
            return walk(args, lambda value: given[id(value)])  # noqa: B023
    raise _Tied


def _resized(args: Any, count: int, rows: int) -> Any:
    """Arguments with shapes of so many rows."""

    def shaped(one: Any) -> bool:
        return isinstance(one, (list, tuple)) and len(one) > 0 and type(one[0]) is int and one[0] == count

    return tuple([rows, *one[1:]] if shaped(one) else one for one in args)


def _moved(z: Tensor, random: Any) -> Tensor:
    by = _MOVED * torch.rand(z.shape, generator=random, dtype=z.dtype, device=z.device)
    return torch.where(z == 0, by, z * (1 + by))


def _agree(one: Tensor, want: Tensor) -> None:
    """Raises unless numbers are the same, up to the order of sums."""
    if one.shape != want.shape or one.dtype != want.dtype:
        raise _Tied
    if not one.is_floating_point():
        same = bool((one == want).all())
    else:
        most = want.abs().nan_to_num(0.0, 0.0, 0.0).amax() if want.numel() else 0.0
        same = bool(((one == want) | ((one - want).abs() <= _SAME * most) | (one.isnan() & want.isnan())).all())
    if not same:
        raise _Tied
