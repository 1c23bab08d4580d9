"""``--ulplab-reference``: what bounds say of assertions on what plain references of a project gave."""

from __future__ import annotations

import collections
import dataclasses
import functools
import sys
import time
import types
from typing import Any, Callable

import numpy

from . import _inputs, _sources
from ._files import Stored
from ._planted import _copy, _tensor

# Calls of each reference that are remembered, and the largest number of elements that one may be given and give.
_CALLS = 4
_MOST = 1 << 20
# Longest time of a call in seconds. Its bound takes some hundred times as long.
_LONGEST = 0.1
# Number of elements whose tolerance is measured, and the powers of 2 that are tried, in multiples of the bound.
_SAMPLED = 9
_POWERS = numpy.arange(-8.0, 40.5, 0.5)


@dataclasses.dataclass
class Call:
    """A call of a reference: copies of what it was given, and what it gave in f64."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: dict[str, numpy.ndarray]
    seconds: float


@dataclasses.dataclass
class Said:
    """What bounds say of the assertions at a line."""

    #: Lines of the report.
    lines: list[str] = dataclasses.field(default_factory=list)
    #: Assertions that were judged: those that a bound would have passed, and refused.
    passed: int = 0
    refused: int = 0
    not_judged: int = 0
    #: Assertions at a line that was asked before.
    again: int = 0
    #: Answers of the gate that have been compared with a bound's.
    seen: list[bool] = dataclasses.field(default_factory=list)

    def join(self, other: Said) -> None:
        """Adds what was found in another process."""
        self.lines += [line for line in other.lines if line not in self.lines]
        for count in ("passed", "refused", "not_judged", "again"):
            setattr(self, count, getattr(self, count) + getattr(other, count))


class References:
    """Plain references of a project: their last calls are remembered while a session runs."""

    def __init__(self, names: list[str]) -> None:
        self.calls: dict[str, collections.deque[Call]] = {}
        #: Calls that had too many elements.
        self.too_large = 0
        self.busy = False
        self._replaced: list[tuple[dict[str, Any], str, Any]] = []
        for name in names:
            self._wrap(name)

    def _wrap(self, name: str) -> None:
        original = _sources.found(name)
        if not isinstance(original, (types.FunctionType, types.BuiltinFunctionType)):
            raise ValueError(f"{name} is a {type(original).__name__}, expected a function")
        calls = self.calls.setdefault(original.__name__, collections.deque(maxlen=_CALLS))

        @functools.wraps(original)
        def reference(*args: Any, **kwargs: Any) -> Any:
            if self.busy:
                return original(*args, **kwargs)
            given = self._copied((args, kwargs))
            began = time.perf_counter()
            result = original(*args, **kwargs)
            seconds = time.perf_counter() - began
            outputs = self._numbers(result)
            if given is not None and outputs is not None:
                calls.append(Call(original.__name__, original, given[0], given[1], outputs, seconds))
            else:
                self.too_large += 1
            return result

        # Modules that have imported the function by name have it in their own namespaces.
        for module in list(sys.modules.values()):
            # A module that is imported when it is first used stays as it is.
            namespace = object.__getattribute__(module, "__dict__") if isinstance(module, types.ModuleType) else {}
            for word in [word for word, value in list(namespace.items()) if value is original]:
                namespace[word] = reference
                self._replaced.append((namespace, word, original))

    def restore(self) -> None:
        """Puts the functions back in their places."""
        for namespace, word, original in self._replaced:
            namespace[word] = original

    @staticmethod
    def _copied(given: Any) -> Any:
        """Copies of arguments, as a kernel may write to them; None if they are too large."""
        left = _MOST

        def one(x: Any) -> Any:
            nonlocal left
            if isinstance(x, (list, tuple)):
                return type(x)(one(part) for part in x) if type(x) in (list, tuple) else x
            if isinstance(x, dict):
                return {name: one(part) for name, part in x.items()}
            if not hasattr(x, "__dlpack__"):
                return x
            left -= int(numpy.prod(x.shape))
            return _copy(x.detach() if hasattr(x, "detach") else x) if left >= 0 else None

        copied = one(given)
        return copied if left >= 0 else None

    @staticmethod
    def _numbers(result: Any) -> dict[str, numpy.ndarray] | None:
        """The outputs of a reference in f64; None if they are too large, or cannot be read."""
        try:
            found = {name: Stored.of(x) for name, x in _inputs.outputs(result).items() if hasattr(x, "__dlpack__")}
            return {name: x.widened() for name, x in found.items()} if sum(x.bits.size for x in found.values()) <= _MOST else None
        except Exception:  # noqa: BLE001 -- a test must not fail because of an audit
            return None

    def gave(self, x: Any) -> tuple[Call, str] | None:
        """The last call that gave a tensor, or whose output was rounded to it, and the name of the output."""
        from . import _native

        try:
            stored = Stored.of(_tensor(x))
            numbers = stored.widened()
        except (TypeError, ValueError):
            return None
        for calls in self.calls.values():
            for call in reversed(calls):
                for name, output in call.outputs.items():
                    same = output.shape == numbers.shape and stored.dtype in _native.floats()
                    if same and numpy.array_equal(_native.rounded(output, stored.dtype), numbers, equal_nan=True):
                        return call, name
        return None


def judge(gate: Callable[[Any], bool], passed: bool, got: Any, want: Any, found: tuple[Call, str], said: Said) -> None:
    """Compares the answer of a gate with that of a bound. ``gate`` says whether a tensor in the place of ``got`` passes."""
    call, output = found
    if passed in said.seen:
        said.again += 1
        return
    said.seen.append(passed)
    try:
        line, right = _answer(gate, passed, got, want, call, output)
    except Exception as error:  # noqa: BLE001 -- a test must not fail because of an audit
        said.not_judged += 1
        why = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        said.lines.append(f"    reference {call.name}: not judged: {why.removeprefix('not judged: ').splitlines()[0]}")
        return
    said.passed += right
    said.refused += not right
    said.lines.append(line)


def _answer(gate: Callable[[Any], bool], passed: bool, got: Any, want: Any, call: Call, output: str) -> tuple[str, bool]:
    """A line on what a bound says, and whether it passes."""
    from ._functions import ROUNDS, bounds_of
    from ._judged import Found

    if call.seconds > _LONGEST:
        raise ValueError(f"it took {call.seconds:.2g} s, and at most {_LONGEST:g} s are followed")
    stored = Stored.of(_tensor(got))
    numbers = stored.widened()
    dtype = _narrowest(numbers, stored.dtype)
    function, inputs = _inputs.by_position(call.function, call.args, call.kwargs)
    for rounds in ROUNDS:
        bound = bounds_of(function, inputs, None if dtype == "float64" else "f32", rounds)[output]
        if bound.unknown:
            raise ValueError("; ".join(bound.unknown[:2]))
        if bound.value.shape != numbers.shape:
            raise ValueError(f"it gives {list(bound.value.shape)}, and the assertion has {list(numbers.shape)}")
        found = Found(numbers, bound, dtype)
        found.settle()
        compared = found.compared()
        if not compared["outside"]:
            break
    right = not compared["outside"]
    if right and (why := found.unsaid(call.name)):
        raise ValueError(why)
    how = f"{dtype}, rounds = {rounds}" if right else f"{dtype}, in any rounds"
    ratio = compared["ratio"] if right else compared["worst"][-1]
    line = f"    reference {call.name}: a bound {'passes' if right else 'refuses'} what the gate {'passed' if passed else 'refused'}"
    line += f" ({how}): error / bound {ratio:.3g}"
    return line + _wider(gate, got if passed else want, found), right


def _narrowest(numbers: numpy.ndarray, dtype: str) -> str:
    """The type that a kernel has stored what a test has widened: all its numbers are of that type."""
    from . import _native

    for narrow in ("bfloat16", "float16", "float32"):
        if dtype in ("float32", "float64") and numpy.array_equal(_native.rounded(numbers, narrow), numbers, equal_nan=True):
            return narrow
    return dtype


def _wider(gate: Callable[[Any], bool], base: Any, found: Any) -> str:
    """How many times as much as the bound the gate allows, of single elements."""
    base = _tensor(base)
    size = found.value.size
    widths = []
    for element in sorted({int(at) for at in numpy.linspace(0, size - 1, _SAMPLED)}):
        allowed = found.own(element)
        if not 0 < allowed < numpy.inf or found.undetermined[element]:
            continue
        index = tuple(int(at) for at in numpy.unravel_index(element, found.bound.value.shape))

        def passes(power: float) -> bool:
            changed = _copy(base.detach() if hasattr(base, "detach") else base)
            changed[index] = float(found.value[element] + 2.0**power * allowed)
            return gate(changed)

        low, high = -1, len(_POWERS)
        while high - low > 1:
            at = (low + high) // 2
            low, high = (at, high) if passes(_POWERS[at]) else (low, at)
        widths.append(2.0 ** _POWERS[low] if low >= 0 else 0.0)
    if not widths:
        return ""
    return f"; the gate allows {numpy.median(widths):.2g} times the bound in the median, {max(widths):.2g} times at most"
