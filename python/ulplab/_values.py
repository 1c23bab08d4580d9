"""Values and steps of a function in f64, and the rounding errors that a right kernel may add at each step."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, TypeVar

from . import _native
from ._roundings import distinct, half_spacing
from ._torch import Tensor, torch

# A bound is this many standard deviations, as that of a named operation is.
LAMBDA = _native.LAMBDA
# The deviation of a rounding that is at most 1: uniform errors.
UNIFORM = 3**-0.5
# The smallest normal number of f32, and what is small enough to have terms below it.
FLUSHED = 2.0**-126
SMALL = 2.0**-100
# ATen operations, with the kind of their local error and its units.
LOCAL = {name: (kind, units) for name, kind, units in _native.local_errors()}


_Function = TypeVar("_Function", bound=Callable[..., Any])


def names_in(table: dict[str, Callable[..., Any]]) -> Callable[..., Callable[[_Function], _Function]]:
    """A decorator that puts a function into a table, under the names of the ATen operations that it stands for."""

    def of(*names: str) -> Callable[[_Function], _Function]:
        def keep(function: _Function) -> _Function:
            table.update(dict.fromkeys(names, function))
            return function

        return keep

    return of


def place(name: str, line: str) -> str:
    """An operation, with the user's line that calls it, if that is known."""
    return f"{name} ({line})" if line else name


def kind(name: str) -> str | None:
    """The kind of the local error of an ATen operation; None if ulplab does not know the operation."""
    return LOCAL[name][0] if name in LOCAL else None


class Unknown(Exception):
    """A step that has no bound, and the reason."""


class Value:
    """A tensor of the tape: f64 in the place of floating-point types, else as it is."""

    __slots__ = ("z", "exact", "complex", "short", "spread", "peak", "needs_spread")

    def __init__(self, z: Tensor, exact: bool) -> None:
        self.z = z
        #: True if all kernels have exactly these numbers.
        self.exact = exact
        #: True if the last dimension has real and imaginary parts.
        self.complex = False
        #: True if all elements have few digits by construction, also in kernels; None if nobody has asked.
        self.short: bool | None = None
        #: Standard deviation of the draws, if a step asks for it.
        self.spread: Tensor | None = None
        #: How far the farthest draw is off.
        self.peak: Tensor | None = None
        self.needs_spread = False

    @property
    def floating(self) -> bool:
        return bool(self.z.is_floating_point())

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return tuple(self.z.shape[:-1] if self.complex else self.z.shape)


@dataclasses.dataclass(slots=True)
class Step:
    """One operation on values."""

    #: Name of the ATen operation of the user's function, and the line that calls it.
    name: str
    line: str
    call: Callable[..., Any]
    args: tuple[Any, ...]
    #: All values among the arguments.
    inputs: tuple[Value, ...]
    outs: tuple[Value, ...]
    #: Largest rounding error of each element of the first output, and the standard deviation; None if the step rounds nothing.
    local: Callable[[], tuple[Tensor, Tensor]] | None = None
    #: Call with other derivatives at kinks: it also takes how far the arguments may be off.
    kinked: Callable[..., Any] | None = None
    #: True if outputs are chosen by comparing numbers that have errors.
    decides: bool = False
    #: True if scores that are equal are chosen from, so that another order is as right.
    tied: bool = False
    #: True if the errors take as long as the step.
    costly: bool = False
    #: True if the errors are kept, once they are computed.
    keeps: bool = False
    #: The type that the step converts to.
    cast: Any = None
    #: The type that the result is rounded to besides.
    narrow: Any = None
    #: Bound of the product of the errors of two arguments.
    second: Callable[[], Tensor] | None = None
    #: Number of the operation's call in the run: an operation may be several steps, and a line may run several times.
    turn: int = 0
    _kept: tuple[Tensor, Tensor] | None = None
    _varied: bool | None = None

    @property
    def varied(self) -> bool:
        """False if many elements are equal, and so are their roundings."""
        if self._varied is None:
            self._varied = distinct(self.outs[0].z)
        return self._varied

    def errors(self) -> tuple[Tensor, Tensor]:
        """The largest rounding error and the deviation of each element of the first output. What is infinite has no error."""
        if self._kept is not None:
            return self._kept
        assert self.local is not None
        with torch.no_grad():
            size = self.outs[0].z.abs()
            infinite = ~(size < math.inf)
            worst, deviation = self.local()
            # Kernels may flush numbers below the smallest normal one to 0.
            flushed = torch.where((size > 0) & (size < SMALL), FLUSHED, 0.0)
            worst, deviation = ((one + flushed).masked_fill_(infinite, 0.0).nan_to_num_(0.0, 0.0, 0.0) for one in (worst, deviation))
            if self.narrow is not None:
                half = half_spacing(self.outs[0].z, self.narrow).masked_fill_(infinite, 0.0)
                worst, deviation = worst + half, torch.hypot(deviation, half * UNIFORM)
        if self.keeps:
            self._kept = worst, deviation
        return worst, deviation


def walk(args: Any, found: Callable[[Any], Any], kind: Any = Value) -> Any:
    """The arguments, with what ``found`` returns for a value, or for another kind of object, in its place."""
    if isinstance(args, (list, tuple)):
        return type(args)(
            [found(one) if isinstance(one, kind) else walk(one, found, kind) if isinstance(one, (list, tuple, dict)) else one for one in args]
        )
    if isinstance(args, dict):
        return {name: walk(one, found, kind) for name, one in args.items()}
    return found(args) if isinstance(args, kind) else args


def parts(args: Any, kind: Any = Value) -> list[Any]:
    """All values, or objects of another kind, among arguments."""
    if isinstance(args, kind):
        return [args]
    found = []
    for one in args.values() if isinstance(args, dict) else args if isinstance(args, (list, tuple)) else ():
        if isinstance(one, kind):
            found.append(one)
        elif isinstance(one, (list, tuple, dict)):
            found += parts(one, kind)
    return found
