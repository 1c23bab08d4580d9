"""Inputs of kernels, before and after a call."""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable, Iterable, Iterator

import numpy

from . import _native
from ._files import Stored
from ._tensors import array, is_jax, plain


def _is_tensor(x: Any) -> bool:
    return not isinstance(x, (bool, int, float, str, numpy.generic, type(None)))


def _copy(x: Any, name: str) -> Any:
    """A copy of a tensor, of the same library where a kernel may be called with it."""
    x = plain(x, name)
    if isinstance(x, numpy.ndarray):
        return x.copy()
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return x.clone()
    if is_jax(x):
        # Nothing writes to it.
        return x
    if isinstance(x, (list, tuple)):
        return numpy.array(x)
    stored = Stored.of(x)
    return Stored(stored.bits.copy(), stored.dtype)


class Snapshot(dict[Any, Any]):
    """Copies of a kernel's inputs as they were, and the inputs themselves in `live`. Numbers and words are as they are.

    Inputs by position have their positions for names.
    """

    def __init__(self, inputs: Any, writes: Any = ()) -> None:
        args, kwargs = split(inputs)
        live: dict[Any, Any] = dict(enumerate(args)) | kwargs
        super().__init__({name: _copy(x, said(name)) if _is_tensor(x) else x for name, x in live.items()})
        self.live = live
        #: The inputs that the kernel may write to.
        self.writes = named(writes, live)

    def overwritten(self) -> list[str]:
        """A line for each input that a kernel has changed and may not write to."""
        lines = []
        for name, was in self.items():
            if not _is_tensor(was) or name in self.writes:
                continue
            shown = said(name)
            before, now = array(was, shown), array(self.live[name], shown)
            if (before.dtype, before.shape) != (now.dtype, now.shape):
                lines.append(f"'{shown}' was {before.dtype}{before.shape} and is {now.dtype}{now.shape}")
            elif (count := _native.differing(before, now)) > 0:
                lines.append(f"'{shown}': {count:,} elements of {before.dtype}{before.shape} have other bits than before the call")
        return lines

    def check(self, what: str) -> None:
        """Raises AssertionError if the kernel has overwritten an input."""
        __tracebackhide__ = True
        lines = self.overwritten()
        if lines:
            raise AssertionError(
                f"{what} overwrote its inputs, which a kernel must not: {'; '.join(lines)}; "
                f"if it is meant to write there, say writes=[...]"
            )

    def restore(self) -> dict[Any, Any]:
        """The inputs for a further call: copies of those that the kernel may write to."""
        return {name: _copy(self[name], said(name)) if name in self.writes else x for name, x in self.live.items()}


def split(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a function by position, and by name. TypeError for anything but a tuple, a list or a dictionary."""
    if isinstance(inputs, dict):
        by_position = bool(inputs) and all(isinstance(name, int) for name in inputs)
        return (tuple(inputs.values()), {}) if by_position else ((), inputs)
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs), {}
    hint = "; for a single one, say inputs=(x,)" if hasattr(inputs, "shape") else ""
    raise TypeError(f"inputs is a {type(inputs).__name__}, expected a tuple of arguments, or a dictionary of them by name{hint}")


def said(name: Any) -> str:
    """The name of an input in messages."""
    return f"input {name}" if isinstance(name, int) else str(name)


def by_position(function: Callable[..., Any], args: Iterable[Any], named: dict[str, Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A call with arguments by position and by name as a function, of the same name, that takes all of them by position."""
    args = tuple(args)

    @functools.wraps(function)
    def call(*given: Any) -> Any:
        return function(*given[: len(args)], **dict(zip(named, given[len(args) :])))

    return call, (*args, *named.values())


def outputs(result: Any, name: str = "out") -> dict[str, Any]:
    """What a function gives by the names of its outputs: ``name`` for one, those of its dictionary, or `out0`, `out1`, … for several, also
    for tuples in tuples."""
    if isinstance(result, dict):
        return dict(result)
    if isinstance(result, (tuple, list)):
        return {f"out{at}": one for at, one in enumerate(_flat(result))}
    return {name: result}


def _flat(outputs: Any) -> Iterator[Any]:
    """What tuples and lists have, in order. A list of numbers is one output."""
    for one in outputs:
        if isinstance(one, (tuple, list)) and not all(isinstance(x, (int, float)) for x in one):
            yield from _flat(one)
        else:
            yield one


def named(writes: Any, inputs: dict[Any, Any]) -> list[Any]:
    """The names of inputs that a kernel may write to. ValueError if there is no such tensor."""
    names = [writes] if isinstance(writes, (str, int)) else list(writes)
    for name in names:
        if name not in inputs or not _is_tensor(inputs[name]):
            tensors = ", ".join(repr(one) for one, x in inputs.items() if _is_tensor(x))
            raise ValueError(f"writes: {name!r} is no tensor of inputs, expected some of {tensors}")
    return names


def snapshot(inputs: Any, writes: str | int | Iterable[str | int] = ()) -> Snapshot:
    """Copies of a kernel's inputs, a dictionary or a tuple, to be taken before it is called.

        before = ulplab.snapshot(inputs)
        got = kernel(**inputs)
        ulplab.assert_close(got, op="rmsnorm", inputs=before)

    The assertion computes from the copies what is wanted, and fails if the kernel has changed an input that ``writes`` does not name.
    ``assert_close(kernel=kernel, op=..., inputs=inputs)`` does the same in one call.
    """
    return Snapshot(inputs, writes)


def called(kernel: Callable[..., Any], given: dict[Any, Any], writes: list[Any]) -> Any:
    """The result of a kernel. For a kernel that only writes: the input that it writes to, or all by name."""
    args, kwargs = split(given)
    found = kernel(*args, **kwargs)
    if found is not None:
        return found
    if not writes:
        raise TypeError("the kernel gives None; name the input that it writes its output to, writes='out', or give the output")
    written = {name: given[name] for name in writes}
    return next(iter(written.values())) if len(written) == 1 else written


def overlapping(got: _native.Array, other: _native.Array) -> bool:
    """True if two tensors have elements in common, in one order. A transposed view of an input, which overwrites nothing, has another."""
    (begin, end), (first, last) = got.span, other.span
    if not (begin < last and first < end):
        return False
    if got.contiguous and other.contiguous:
        return True
    return got.address == other.address and got.shape == other.shape and got.contiguous == other.contiguous
