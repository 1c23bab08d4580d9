"""Judges what a kernel gives by the bound of a function of torch."""

from __future__ import annotations

import math
from typing import Any, Callable

import numpy
from . import _errors, _native, _records
from ._close import check_type, of_numpy, unit, warn_of_little
from ._functions import ROUNDS, Bound, bounds_of, stored_bound
from ._graph_faults import likeness
from ._tape import LAMBDA, place
from ._torch import torch

# Numbers of elements that get a bound of their own first: those that are worst by error ÷ deviation, and by error.
_FIRST = (12, 4)
# Largest number of elements that get a bound of their own.
_MOST = 64
# Types that kernels may add in, by their names in `accumulate`.
_SHORT = {"bfloat16": "bf16", "float16": "f16"}


class _Found:
    """One output, judged."""

    def __init__(self, got: numpy.ndarray, bound: Bound, dtype: str) -> None:
        self.got = got.reshape(-1)
        self.bound = bound
        self.dtype = dtype
        self.value = bound.value.astype(numpy.float64).reshape(-1)
        # What is infinite where its errors are as large as its value may be a quotient by 0.
        sigma = bound.sigma.reshape(-1)
        lost = ~numpy.isfinite(self.got) & numpy.isfinite(self.value) & (LAMBDA * sigma >= numpy.abs(self.value))
        self.undetermined = bound.undetermined.reshape(-1) | lost
        # A decision that moves an element by less than its deviation is a kink.
        self.slack = numpy.zeros_like(self.value)
        for moved in bound._alternatives:
            self.slack = numpy.maximum(self.slack, numpy.where(self.undetermined, 0.0, numpy.nan_to_num(numpy.abs(moved.reshape(-1)))))
        #: Why elements are not judged, and which.
        self.why = ""
        self.unjudged = numpy.zeros(self.value.shape, bool)
        #: The bound of each element: a screen, and of `asked` elements their own.
        self.allowed = self._stored(numpy.arange(self.value.size), LAMBDA * sigma)
        self.asked: set[int] = set()
        self._overflow()
        self._ask()

    def _stored(self, at: numpy.ndarray, error: numpy.ndarray) -> numpy.ndarray:
        return stored_bound(self.value[at], error + self.slack[at], self.dtype).reshape(-1)

    def _overflow(self) -> None:
        """Wants infinity where the type has no number for the value, and where one is as near."""
        if not numpy.isinf(self.got).any():
            return
        with numpy.errstate(over="ignore"):
            at = numpy.copysign(numpy.abs(self.value) + numpy.nan_to_num(self.allowed), self.value)
        over = numpy.isinf(self.got) & numpy.isinf(_native.rounded(numpy.ascontiguousarray(at), self.dtype))
        self.value = numpy.where(over, numpy.copysign(math.inf, self.value), self.value)

    def ratios(self) -> numpy.ndarray:
        """Errors in multiples of the bound."""
        with numpy.errstate(all="ignore"):
            off = numpy.abs(self.got - self.value)
            ratio = numpy.where(off == 0, 0.0, off / self.allowed)
        same = (self.got == self.value) | (numpy.isnan(self.got) & numpy.isnan(self.value))
        ratio = numpy.where(same, 0.0, numpy.where(numpy.isnan(ratio), math.inf, ratio))
        return numpy.where(self.undetermined | self.unjudged, 0.0, ratio)

    def _ask(self) -> None:
        """Asks for the bounds of the worst elements, until no other may be outside."""
        widest, ratio = 1.0, self.ratios()
        finite = numpy.isfinite(self.value) & numpy.isfinite(self.got)
        with numpy.errstate(invalid="ignore"):
            off = numpy.where(self.undetermined | ~finite, -1.0, numpy.abs(self.got - self.value))
        wanted = [*numpy.argsort(-numpy.where(finite, ratio, -1.0), kind="stable")[: _FIRST[0]], *numpy.argsort(-off, kind="stable")[: _FIRST[1]]]
        screen = self.allowed.copy()
        while wanted and len(self.asked) < _MOST:
            for element in map(int, wanted):
                if element in self.asked:
                    continue
                self.asked.add(element)
                if not finite[element]:
                    continue
                found = self.bound.of(element)
                own = float(self._stored(numpy.array([element]), numpy.array([found.bound]))[0])
                if found.infinite or not math.isfinite(own):
                    self.why = f"the derivative of {found.infinite} is infinite" if found.infinite else "the error of a step is infinite"
                    self.unjudged[element] = True
                    continue
                widest = max(widest, own / screen[element] if 0 < screen[element] < math.inf else 1.0)
                self.allowed[element] = own
            others = numpy.ones(self.value.size, bool)
            others[list(self.asked)] = False
            self.allowed = numpy.where(others, screen * widest, self.allowed)
            ratio = self.ratios()
            if (ratio[list(self.asked)] > 1).any():
                return
            wanted = [at for at in numpy.argsort(-ratio, kind="stable")[: _FIRST[0]] if ratio[at] > 1 and others[at]]
        if wanted:
            self.why = f"elements are outside eight deviations, and none of the {_MOST} worst is outside its bound"
            self.unjudged |= others & (ratio > 1)

    def settle(self) -> None:
        """Accepts elements that are what another decision gives."""
        for moved in self.bound._alternatives:
            other = self.value + moved.reshape(-1)
            near = numpy.abs(self.got - other) <= numpy.maximum(self.allowed, self._spacing(other))
            self.undetermined &= ~near
            self.value = numpy.where(near & self.bound.undetermined.reshape(-1), other, self.value)
        with numpy.errstate(invalid="ignore"):
            near = (numpy.abs(self.got - self.value) <= self.allowed) & numpy.isfinite(self.allowed)
        self.undetermined &= ~near

    def _spacing(self, value: numpy.ndarray) -> numpy.ndarray:
        return stored_bound(value, LAMBDA * self.bound.sigma.reshape(-1), self.dtype).reshape(-1)

    def compared(self) -> dict[str, Any]:
        """The comparison of the elements that are determined."""
        left_out, shape = self.undetermined | self.unjudged, self.bound.value.shape
        got, allowed = numpy.where(left_out, self.value, self.got), numpy.where(left_out, 0.0, self.allowed)
        return _native.compare(*(numpy.ascontiguousarray(one.reshape(shape)) for one in (got, self.value, allowed)))


def assert_function(
    got: dict[str, tuple[Any, _native.Array]],
    function: Callable[..., Any],
    inputs: Any,
    u: float,
    meaning: str,
    rounds: str,
    grads: dict[str, Any] | None,
    grad_output: Any,
    call: dict[str, Any],
) -> list[str]:
    """The messages on outputs that are wrong; ValueError for those that are not judged."""

    def again(u: float, rounds: str) -> dict[str, Bound]:
        return bounds_of(function, inputs, u, rounds, grads, grad_output)

    bounds = again(u, rounds)
    name = _name(function)
    # An output or a gradient that is not given would not be compared.
    own = [one for one in bounds if one not in (grads or {})]
    missing = [one for one in grads or {} if one in bounds and one not in got]
    missing += [one for one in own if one not in got] if any(one in got for one in own) else []
    if missing:
        raise TypeError(f"{name} also gives {', '.join(map(repr, missing))}: give all of its outputs, and the gradients that grads= names")
    wrong, unsaid = [], []
    for output, (tensor, array) in got.items():
        if output not in bounds:
            raise ValueError(f"{name} gives no '{output}', expected one of {', '.join(bounds)}")
        bound = bounds[output]
        if bound.unknown:
            raise ValueError(f"not judged: {name}: {'; '.join(bound.unknown[:3])}")
        if list(bound.value.shape) != array.shape:
            raise AssertionError(f"{name}: {output} is {_errors.shape(array)}, expected {list(bound.value.shape)}")
        wanted = of_numpy(bound.dtype, array) if bound.is_numpy else bound.dtype
        check_type(array, wanted, call["dtype"], output, f"what {name} gives")
        if bound.value.size == 0:
            raise ValueError(f"not judged: {name}: {output} has no elements to compare")
        if numpy.isnan(bound.value.astype(numpy.float64)).all():
            raise ValueError(f"not judged: {name}: all elements of '{output}' are NaN, which any NaN meets")
        found = _Found(numpy.asarray(_native.widen(array), numpy.float64), bound, array.dtype)
        found.settle()
        compared = found.compared()
        warn_of_little(compared, f"the bound of {name}")
        lines: list[str] = []
        if compared["outside"]:
            lines = _errors.outside(f"{name}: {output}", array, compared, f"the bound of '{name}', {meaning}")
            lines += _explained(found, output, bounds, again, u, rounds)
            wrong.append("\n".join(lines))
        elif found.why:
            unsaid.append(f"not judged: {name}: {output}: {found.why}")
        elif found.undetermined.any():
            at = numpy.unravel_index(int(numpy.argmax(found.undetermined)), bound.value.shape)
            unsaid.append(
                f"not determined: {name}: {output}: {int(found.undetermined.sum()):,} elements, the first at {[int(i) for i in at]}, hang on a "
                "decision that flips within its errors, or on a number that is undefined within them, and are what no side gives"
            )
        ratio = compared["ratio"] if not lines else compared["worst"][-1]
        _records.note(output, f"op = {name}", ratio, "\n".join(lines), {"got": tensor}, call, "not judged" if unsaid and not lines else "", None)
    if not wrong and unsaid:
        raise ValueError("\n".join(unsaid))
    return wrong


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", "") or type(function).__name__)


def _explained(found: _Found, output: str, bounds: dict[str, Bound], again: Callable[..., dict[str, Bound]], u: float, rounds: str) -> list[str]:
    """What would explain a wrong output. ``again`` returns the bounds for another unit roundoff, or for another word."""
    lines = []
    ratio = found.ratios()
    worst = int(numpy.argmax(numpy.where(numpy.isfinite(ratio), ratio, -1.0)))
    terms = bounds[output].of(worst).terms[:3]
    if terms:
        shares = ", ".join(f"{share:.0%} {place(name, line)}" for name, line, share in terms)
        lines.append(f"  most of what is allowed there: {shares}")
    outside = int((ratio > 1).sum())
    narrow = found.dtype in ("bfloat16", "float16")
    tries = [("rounds", word) for word in ROUNDS[ROUNDS.index(rounds) + 1 :]]
    tries += [("accumulate", found.dtype)] if narrow and u < 2.0**-12 else []
    for word, value in tries:
        other = (again(u, value) if word == "rounds" else again(unit(_SHORT[value]), rounds))[output]
        left = int((_Found(found.got.reshape(other.value.shape), other, found.dtype).ratios() > 1).sum())
        if left < outside / 2:
            lines.append(f"  looks like {word} = {_SHORT.get(value, value)}, whose bound is wider; then {left:,} elements are outside")
            break
    tape = bounds[output]._tape
    screen = torch.as_tensor(found.allowed.reshape(bounds[output].value.shape))
    got = torch.as_tensor(found.got.reshape(bounds[output].value.shape))
    for what, left in likeness(tape, bounds[output]._value, got, screen, outside):
        lines.append(f"  looks like {what}; then {left:,} elements are outside")
    return lines
