"""Faults of a function's steps: what a kernel gives that leaves out a term, or the last of a sum."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Iterator

import numpy

from ._tape import Tape
from ._torch import Tensor, torch
from ._values import Step, Value, place, walk

# Largest number of steps that are run to find faults that explain a wrong output.
_MOST = 20_000
_SHOWN = 3
# Names of calls that say nothing, and what a sum is called.
_UNNAMED = {"call": "", "<lambda>": "", "total": "sum"}


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault of a step: in words, and the call that makes it."""

    what: str
    call: Callable[..., Any]
    #: The term or factor that is missing, where a step has two.
    which: str = ""


def faults(step: Step) -> Iterator[Fault]:
    """The faults of a step."""
    where = place(step.name, step.line)
    if step.call is torch.add and isinstance(step.args[1], Value):
        yield Fault(f"a missing term of {where}", lambda x, y: x + 0 * y, "the second")
        yield Fault(f"a missing term of {where}", lambda x, y: 0 * x + y, "the first")
    elif step.call is torch.add and step.args[1] != 0:
        yield Fault(f"a missing term of {where}", lambda x, y: x)
    elif step.call is torch.mul:
        yield Fault(f"a missing factor of {where}", lambda x, y: x * (torch.ones_like(y) if isinstance(y, torch.Tensor) else 1.0), "the second")
        if isinstance(step.args[1], Value):
            yield Fault(f"a missing factor of {where}", lambda x, y: torch.ones_like(x) * y, "the first")
    elif step.call is torch.div:
        yield Fault(f"a missing divisor of {where}", lambda x, y: x * (torch.ones_like(y) if isinstance(y, torch.Tensor) else 1.0))
    elif step.costly and step.args and isinstance(step.args[0], Value) and step.args[0].z.ndim:
        yield Fault(f"the last term of {where} lost", lambda x, *rest: _without_last(step.call, x, rest))
    if step.name in ("where", "masked_fill"):
        at = next((at for at, one in enumerate(step.args) if isinstance(one, Value) and one.z.dtype == torch.bool), None)
        if at is not None and step.args[at].z.ndim and bool((step.args[at].z.diff(dim=-1) != 0).any()):
            yield Fault(f"the mask of {where} off by one", lambda *given: step.call(*_shifted(given, at, 1)), "to the left")
            yield Fault(f"the mask of {where} off by one", lambda *given: step.call(*_shifted(given, at, -1)), "to the right")
    if step.local is not None:
        yield Fault(f"bf16 after {where}", lambda *given: step.call(*given).to(torch.bfloat16).double())


def _shifted(given: tuple[Any, ...], at: int, by: int) -> list[Any]:
    """Arguments with a mask that is moved along its last dimension; its first or last column is kept."""
    mask = given[at]
    kept = mask[..., -1:] if by > 0 else mask[..., :1]
    moved = torch.cat([mask[..., 1:], kept] if by > 0 else [kept, mask[..., :-1]], -1)
    return [moved if number == at else one for number, one in enumerate(given)]


def _without_last(call: Callable[..., Any], x: Tensor, rest: tuple[Any, ...]) -> Any:
    """A sum without its last term: the last index of the dimension that most results depend on, from the last dimension on."""
    want = call(x, *rest)
    if not isinstance(want, torch.Tensor) or want.numel() == 1:
        return call(torch.cat([x.reshape(-1)[:-1], x.new_zeros(1)]).reshape(x.shape), *rest)
    found = []
    for dim in reversed([dim for dim in range(x.ndim) if x.shape[dim] > 1]):
        less = x.clone()
        less.select(dim, -1).zero_()
        found.append(call(less, *rest))
        if 2 * int((found[-1] != want).sum()) > want.numel():
            return found[-1]
    return found[0] if found else want


def run(tape: Tape, value: Value, at: int, call: Callable[..., Any]) -> Tensor:
    """The value with another call at one step."""

    def make(number: int, step: Step, found: dict[int, Any]) -> list[Tensor]:
        if number != at and not any(id(one) in found for one in step.inputs):
            return []
        result = (call if number == at else step.call)(*walk(step.args, lambda one: found.get(id(one), one.z)))
        return list(result) if isinstance(result, (tuple, list)) else [result]

    made = value.z
    with torch.no_grad():
        for _, one in tape.replay(make, tape.plan([value], exact=True), [value]):
            made = one
    return made


def results(tape: Tape, value: Value) -> Iterator[tuple[int, Fault, Tensor]]:
    """The faults of the steps that a value follows from, with their numbers, and what each gives in its place. A fault that does not fit the
    shapes of a step is left out."""
    for number, step, _ in tape.plan([value], exact=True):
        for fault in faults(step):
            try:
                yield number, fault, run(tape, value, number, fault.call)
            except (RuntimeError, TypeError, IndexError):
                continue


def named_results(tape: Tape, value: Value) -> Iterator[tuple[str, numpy.ndarray]]:
    """The same in f64 with a name for each. Where faults have equal words, a name also has the call of the line, the step within the operation,
    and the argument that is missing."""
    steps_of: dict[int, list[int]] = {}
    others: dict[str, list[tuple[int, str]]] = {}
    for number, step, _ in tape.plan([value], exact=True):
        steps_of.setdefault(step.turn, []).append(number)
        for fault in faults(step):
            others.setdefault(fault.what, []).append((number, fault.which))
    for number, fault, wrong in results(tape, value):
        step, name = tape.steps[number], fault.what
        turns = [*dict.fromkeys(tape.steps[at].turn for at, _ in others[name])]
        own = [at for at, _ in others[name] if tape.steps[at].turn == step.turn]
        if len(turns) > 1:
            name += f", call {turns.index(step.turn) + 1} of {len(turns)}"
        if len(set(own)) > 1:
            within = steps_of[step.turn]
            name += f", step {within.index(number) + 1} of {len(within)}"
            call = getattr(step.call, "__name__", "")
            name += f": {_UNNAMED.get(call, call)}" if _UNNAMED.get(call, call) else ""
        if own.count(number) > 1:
            name += f", {fault.which}"
        yield name, wrong.cpu().double().numpy()


def likeness(
    tape: Tape, value: Value, got: Tensor, allowed: Callable[[Tensor], Tensor]
) -> tuple[list[tuple[str, int]], list[str]]:
    """The faults that explain most of what is outside, in words, with the number of elements that stay outside; and the faults that these
    inputs do not show, since right kernels may give the same.

    ``allowed`` returns how far a kernel may be from what a fault gives, whose numbers may be larger than the right ones.
    """
    unseen: dict[str, bool] = {}
    found: list[tuple[str, int]] = []
    right = value.z.cpu().double()
    left, outside = _MOST, _outside(got, right, allowed(right))
    if value.z.is_floating_point() and right.ndim:
        for one in (right.roll(by, 0) for by in (1, -1)):
            found.append(("a neighbouring row", _outside(got, one, allowed(one))))
        gain = float((got * right).sum() / right.square().sum())
        # Roundings of what was given move the gain: it may be a number of three digits.
        gains = [(f"a gain of {_digits(by)}", _outside(got, by * right, allowed(by * right))) for by in (float(f"{gain:.3g}"), gain)]
        found.append(min(gains, key=lambda one: one[1]))
    for _, fault, wrong in results(tape, value):
        left -= len(tape.steps)
        if left < 0:
            break
        if wrong.shape != got.shape:
            continue
        wrong = wrong.cpu().double()
        limit = allowed(wrong)
        found.append((fault.what, _outside(got, wrong, limit)))
        unseen[fault.what] = unseen.get(fault.what, True) and _outside(right, wrong, limit) == 0
    best = sorted((one for one in found if 10 * one[1] <= outside and one[1] < outside), key=lambda one: one[1])
    seen: dict[str, int] = {}
    for what, count in best:
        seen.setdefault(what, count)
    return list(seen.items())[:_SHOWN], [what for what, is_unseen in unseen.items() if is_unseen]


def _digits(gain: float) -> str:
    """A gain with the digits that tell it from 1."""
    shown = f"{gain:.6g}"
    return f"1 {'+' if gain > 1 else '-'} {abs(gain - 1):.2g}" if shown == "1" and gain != 1 else shown


def _outside(got: Tensor, want: Tensor, allowed: Tensor) -> int:
    """The number of elements that are farther from what is wanted than is allowed."""
    count: int = (~(((got - want).abs() <= allowed) | (got.isnan() & want.isnan()))).sum().item()
    return count
