"""Judges what a kernel gives by the bound of a function of torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Callable

import numpy
from . import _errors, _native, _records
from ._choices import as_good
from ._close import _sums, check_type, narrower, of_numpy, unit, warn_of_little
from ._functions import ROUNDS, Bound, bounds_of, largest, name_of, stored_bound
from ._graph_faults import likeness
from ._torch import Tensor, torch
from ._values import LAMBDA, place

# Numbers of elements that get a bound of their own first: those that are worst by error ÷ deviation, and by error.
_FIRST = (12, 4)
# Largest number of elements that get a bound of their own.
_MOST = 64
# Roundings that a kernel may be from what a fault gives.
_AROUND = 16
# Largest number of faults that inputs do not show, in a message.
_FEW = 3
# Types that kernels may add in, by their names in `accumulate`.
_SHORT = {"bfloat16": "bf16", "float16": "f16"}


class Found:
    """One output, judged. With ``first``, the first element that is found outside ends the search for the worst one."""

    def __init__(self, got: numpy.ndarray, bound: Bound, dtype: str, first: bool = False) -> None:
        self.first = first
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
        for other, _ in bound._alternatives:
            with numpy.errstate(invalid="ignore"):
                moved = numpy.nan_to_num(numpy.abs(other.reshape(-1) - self.value))
            self.slack = numpy.maximum(self.slack, numpy.where(self.undetermined, 0.0, moved))
        #: Why elements are not judged, and which.
        self.why = ""
        self.unjudged = numpy.zeros(self.value.shape, bool)
        #: The bound of each element: a screen, and of `asked` elements their own.
        self.allowed = self._stored(numpy.arange(self.value.size), LAMBDA * sigma)
        self.asked: set[int] = set()
        self._overflow()
        self._ask()

    def _stored(self, at: numpy.ndarray, error: numpy.ndarray) -> numpy.ndarray:
        if not self.bound._value.floating:
            return numpy.zeros(at.shape)
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
        wanted = [*largest(numpy.where(finite, ratio, -1.0), _FIRST[0]), *largest(off, _FIRST[1])]
        screen = self.allowed.copy()
        while wanted and len(self.asked) < _MOST:
            self.bound.ask(at for at in map(int, wanted) if finite[at] and at not in self.asked)
            for element in map(int, wanted):
                if element in self.asked:
                    continue
                self.asked.add(element)
                if not finite[element]:
                    continue
                found = self.bound.of(element)
                own = self.own(element)
                if found.infinite or not math.isfinite(own):
                    self.why = f"the derivative of {found.infinite} is infinite" if found.infinite else "the error of a step is infinite"
                    self.unjudged[element] = True
                    continue
                widest = max(widest, own / screen[element] if 0 < screen[element] < math.inf else 1.0)
                self.allowed[element] = own
                if self.first and not self.undetermined[element] and abs(self.got[element] - self.value[element]) > own:
                    return
            others = numpy.ones(self.value.size, bool)
            others[list(self.asked)] = False
            self.allowed = numpy.where(others, screen * widest, self.allowed)
            ratio = self.ratios()
            if (ratio[list(self.asked)] > 1).any():
                return
            wanted = [at for at in largest(ratio, _FIRST[0]) if ratio[at] > 1 and others[at]]
        if wanted:
            self.why = f"elements are outside eight deviations, and none of the {_MOST} worst is outside its bound"
            self.unjudged |= others & (ratio > 1)

    def settle(self) -> None:
        """Accepts elements that are what another decision gives."""
        bound = self.bound
        good = None if bound._value.floating else as_good(bound._tape, bound._value, self.got)
        if good is not None:
            self.value = numpy.where(good, self.got, self.value)
            self.undetermined[:] = False
            return
        open_ = bound.undetermined.reshape(-1) & ~self._near(self.value, self.allowed)
        for one, off in bound._alternatives:
            other = one.reshape(-1)
            allowed = numpy.fmax(self.allowed, self._spacing(other, off.reshape(-1)))
            taken = open_ & self._near(other, allowed)
            open_ &= ~taken
            self.value = numpy.where(taken, other, self.value)
            self.allowed = numpy.where(taken, allowed, self.allowed)
        self.undetermined &= ~self._near(self.value, self.allowed)
        self.allowed = numpy.where((self.got == self.value) & ~numpy.isfinite(self.allowed), 0.0, self.allowed)

    def _near(self, value: numpy.ndarray, allowed: numpy.ndarray) -> numpy.ndarray:
        with numpy.errstate(invalid="ignore"):
            off = numpy.abs(self.got - value)
        near: numpy.ndarray = (self.got == value) | (numpy.isfinite(off) & numpy.isfinite(allowed) & (off <= allowed))
        return near

    def _spacing(self, value: numpy.ndarray, off: numpy.ndarray) -> numpy.ndarray:
        return stored_bound(value, numpy.maximum(LAMBDA * self.bound.sigma.reshape(-1), off), self.dtype).reshape(-1)

    def own(self, element: int) -> float:
        """The bound of one element after it is stored."""
        return float(self._stored(numpy.array([element]), numpy.array([self.bound.of(element).bound]))[0])

    def unsaid(self, name: str) -> str:
        """Why elements are neither right nor wrong; empty if all are either."""
        if self.why:
            return f"not judged: {name}: {self.bound.name}: {self.why}"
        if not self.undetermined.any():
            return ""
        at = numpy.unravel_index(int(numpy.argmax(self.undetermined)), self.bound.value.shape)
        return (
            f"not determined: {name}: {self.bound.name}: {int(self.undetermined.sum()):,} elements, the first at {[int(i) for i in at]}, "
            "hang on a decision that flips within its errors, or on a number that is undefined within them, and are what no side gives"
        )

    def compared(self) -> dict[str, Any]:
        """The comparison of the elements that are determined."""
        left_out, shape = self.undetermined | self.unjudged, self.bound.value.shape
        got, allowed = numpy.where(left_out, self.value, self.got), numpy.where(left_out, 0.0, self.allowed)
        return _native.compare(*(numpy.ascontiguousarray(one.reshape(shape)) for one in (got, self.value, allowed)))


def judged(array: _native.Array, bound: Bound, name: str, dtype: Any) -> Found:
    """One output of a function, judged. AssertionError for another shape or type, ValueError if there is nothing to judge."""
    __tracebackhide__ = True
    output = bound.name
    if bound.unknown:
        raise ValueError(_unknown(bound, name))
    if list(bound.value.shape) != array.shape:
        raise AssertionError(f"{name}: {output} is {_errors.shape(array)}, expected {list(bound.value.shape)}")
    wanted = of_numpy(bound.dtype, array) if bound.library == "numpy" else bound.dtype
    check_type(array, wanted, dtype, output, f"what {name} gives")
    if bound.value.size == 0:
        raise ValueError(f"not judged: {name}: {output} has no elements to compare")
    if numpy.isnan(bound.value.astype(numpy.float64)).all():
        raise ValueError(f"not judged: {name}: all elements of '{output}' are NaN, which any NaN meets")
    found = Found(numpy.asarray(_native.widen(array), numpy.float64), bound, array.dtype)
    found.settle()
    return found


def _unknown(bound: Bound, name: str) -> str:
    return f"not judged: {name}: {'; '.join(bound.unknown[:3])}"


@dataclass(frozen=True)
class Verdict:
    """The verdict on one output of a function."""

    output: str
    #: The largest error over its bound.
    ratio: float
    #: The message on an output that is wrong; empty for any other.
    wrong: str
    #: Why elements are neither right nor wrong; empty if all are either.
    unsaid: str
    #: The question, with the type that the kernel adds in.
    asked: Asked


@dataclass(frozen=True)
class Asked:
    """A question about a function: how kernels compute, and what they are given."""

    function: Callable[..., Any]
    inputs: Any
    accumulate: str | None = None
    rounds: str = "end"
    dtype: str | None = None
    grads: dict[str, Any] | None = None
    grad_output: Any = None

    def bounds(self) -> dict[str, Bound]:
        return bounds_of(self.function, self.inputs, self.accumulate, self.rounds, self.grads, self.grad_output)

    def settled(self, got: dict[str, _native.Array]) -> tuple[Asked, dict[str, Bound]]:
        """The question with the type that the kernel adds in, which may follow from what the kernel gives, and the bounds."""
        narrow = narrower(array.dtype for array in got.values())
        bounds = replace(self, accumulate=self.accumulate or ("f32" if narrow else None)).bounds()
        return replace(self, accumulate=next(iter(bounds.values())).accumulate), bounds

    def verdicts(self, got: dict[str, _native.Array]) -> list[Verdict]:
        """The verdicts on outputs, all of which must be given. Errors are those of `judged`."""
        __tracebackhide__ = True
        name = name_of(self.function)
        asked, bounds = self.settled(got)
        # An output or a gradient that is not given would not be compared.
        own = [one for one in bounds if one not in (self.grads or {})]
        missing = [one for one in self.grads or {} if one in bounds and one not in got]
        missing += [one for one in own if one not in got] if any(one in got for one in own) else []
        if missing:
            lacking = ", ".join(map(repr, missing))
            raise TypeError(f"{name} also gives {lacking}: give all of its outputs, and the gradients that grads= names")
        found = []
        if list(got) == ["out"] and "out0" in bounds:
            raise ValueError(f"{name} gives {len(own)} outputs, and got is one tensor; expected a tuple of them, or a dictionary by name")
        for output, array in got.items():
            if output not in bounds:
                raise ValueError(f"{name} gives no '{output}', expected one of {', '.join(bounds)}")
            if bounds[output].unknown:
                found.append(Verdict(output, 0.0, "", _unknown(bounds[output], name), asked))
                continue
            # An output may be empty if another is not.
            if bounds[output].value.size == 0 and list(bounds[output].value.shape) == array.shape and any(x.value.size for x in bounds.values()):
                continue
            one = judged(array, bounds[output], name, self.dtype)
            compared = one.compared()
            warn_of_little(compared, f"the bound of {name}")
            if not compared["outside"]:
                found.append(Verdict(output, compared["ratio"], "", one.unsaid(name), asked))
                continue
            lines = _errors.outside(f"{name}: {output}", array, compared, f"the bound of '{name}', {_sums(bounds[output].accumulate)[1]}")
            lines += _explained(one, output, bounds, asked)
            found.append(Verdict(output, compared["worst"][-1], "\n".join(lines), "", asked))
        return found


def assert_function(got: dict[str, tuple[Any, _native.Array]], asked: Asked) -> None:
    """AssertionError for outputs that are wrong, ValueError for those that are not judged."""
    __tracebackhide__ = True
    verdicts = asked.verdicts({output: array for output, (_, array) in got.items()})
    tensors, asks = {output: x for output, (x, _) in got.items()}, f"op = {name_of(asked.function)}"
    for one in verdicts:
        _records.note(one.output, asks, one.ratio, one.wrong, tensors, one.asked, "not judged" if one.unsaid else "")
    if wrong := [one.wrong for one in verdicts if one.wrong]:
        raise AssertionError("\n".join(wrong))
    if unsaid := [one.unsaid for one in verdicts if one.unsaid]:
        raise ValueError("\n".join(unsaid))


def _explained(found: Found, output: str, bounds: dict[str, Bound], asked: Asked) -> list[str]:
    """What would explain a wrong output."""
    lines = []
    ratio = found.ratios()
    worst = int(numpy.argmax(numpy.where(numpy.isfinite(ratio), ratio, -1.0)))
    terms = [term for term in bounds[output].of(worst).terms[:3] if term[2] >= 0.005]
    if terms:
        shares = ", ".join(f"{share:.0%} {place(name, line)}" for name, line, share in terms)
        lines.append(f"  most of what is allowed there: {shares}")
    words = []
    narrow = found.dtype in ("bfloat16", "float16")
    tries = [("rounds", word) for word in ROUNDS[ROUNDS.index(asked.rounds) + 1 :]]
    u = unit(bounds[output].accumulate)
    tries += [("accumulate", _SHORT[found.dtype])] if narrow and u < 2.0**-12 else []
    tries += [("accumulate", "f32")] if u < 2.0**-24 else []
    for word, value in tries:
        changed: dict[str, Any] = {word: value}
        other = replace(asked, **changed).bounds()[output]
        tried = Found(found.got.reshape(other.value.shape), other, found.dtype)
        tried.settle()
        left = int((tried.undetermined | tried.unjudged | (tried.ratios() > 1)).sum())
        if left == 0:
            words.append((f"{word} = {value}", left, True))
            break
    tape = bounds[output]._tape
    shape = bounds[output].value.shape
    screen = found.allowed.reshape(shape)

    def allowed(wrong: Tensor) -> Tensor:
        return torch.as_tensor(numpy.maximum(screen, stored_bound(wrong, _AROUND * u * wrong.abs(), found.dtype).reshape(shape)))

    got = torch.as_tensor(found.got.reshape(shape))
    likes, unseen = likeness(tape, bounds[output]._value, got, allowed)
    like = [(what, left, False) for what, left in likes]
    lines += [f"  {line}" for line in _errors.explained(like + words, float(ratio.max()))]
    if unseen:
        others = f"; and {len(unseen) - _FEW:,} others" if len(unseen) > _FEW else ""
        lines.append(f"  these inputs do not show: {'; '.join(unseen[:_FEW])}{others}")
    return lines
