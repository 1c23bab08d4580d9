"""Inputs of kernels, before and after a call."""

from __future__ import annotations

import sys
from typing import Any, Callable, Iterable

import numpy

from . import _native
from ._files import Stored
from ._tensors import array, plain


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
    if isinstance(x, (list, tuple)):
        return numpy.array(x)
    stored = Stored.of(x)
    return Stored(stored.bits.copy(), stored.dtype)


class Snapshot(dict[str, Any]):
    """Copies of a kernel's inputs as they were, and the inputs themselves in `live`. Numbers and words are as they are."""

    def __init__(self, inputs: dict[str, Any], writes: Iterable[str] = ()) -> None:
        if not isinstance(inputs, dict):
            raise TypeError(f"inputs is a {type(inputs).__name__}, expected a dictionary of tensors, numbers and words")
        super().__init__({name: _copy(x, name) if _is_tensor(x) else x for name, x in inputs.items()})
        self.live = inputs
        #: The inputs that the kernel may write to.
        self.writes = named(writes, inputs)

    def overwritten(self) -> list[str]:
        """A line for each input that a kernel has changed and may not write to."""
        lines = []
        for name, was in self.items():
            if not _is_tensor(was) or name in self.writes:
                continue
            before, now = array(was, name), array(self.live[name], name)
            if (before.dtype, before.shape) != (now.dtype, now.shape):
                lines.append(f"'{name}' was {before.dtype}{before.shape} and is {now.dtype}{now.shape}")
            elif (count := _native.differing(before, now)) > 0:
                lines.append(f"'{name}': {count:,} elements of {before.dtype}{before.shape} have other bits than before the call")
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

    def restore(self) -> dict[str, Any]:
        """The inputs for a further call: copies of those that the kernel may write to."""
        return {name: _copy(self[name], name) if name in self.writes else x for name, x in self.live.items()}


def split(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a function by position, and by name. TypeError for anything but a tuple, a list or a dictionary."""
    if isinstance(inputs, dict):
        return (), inputs
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs), {}
    hint = "; for a single one, say inputs=(x,)" if hasattr(inputs, "shape") else ""
    raise TypeError(f"inputs is a {type(inputs).__name__}, expected a tuple of arguments, or a dictionary of them by name{hint}")


def outputs(result: Any, name: str = "out") -> dict[str, Any]:
    """What a function gives by the names of its outputs: ``name`` for one, `out0`, `out1`, … for several, or those of its dictionary."""
    if isinstance(result, dict):
        return dict(result)
    if isinstance(result, (tuple, list)):
        return {f"out{at}": one for at, one in enumerate(result)}
    return {name: result}


def named(writes: str | Iterable[str], inputs: dict[str, Any]) -> list[str]:
    """The names of inputs that a kernel may write to. ValueError if there is no such tensor."""
    names = [writes] if isinstance(writes, str) else list(writes)
    for name in names:
        if name not in inputs or not _is_tensor(inputs[name]):
            tensors = ", ".join(repr(one) for one, x in inputs.items() if _is_tensor(x))
            raise ValueError(f"writes: {name!r} is no tensor of inputs, expected some of {tensors}")
    return names


def snapshot(inputs: dict[str, Any], writes: str | Iterable[str] = ()) -> Snapshot:
    """Copies of a kernel's inputs, to be taken before it is called.

        before = ulplab.snapshot(inputs)
        got = kernel(**inputs)
        ulplab.assert_close(got, op="rmsnorm", inputs=before)

    The assertion computes from the copies what is wanted, and fails if the kernel has changed an input that ``writes`` does not name.
    ``assert_close(kernel=kernel, op=..., inputs=inputs)`` does the same in one call.
    """
    return Snapshot(inputs, writes)


def called(kernel: Callable[..., Any], given: dict[str, Any], writes: list[str]) -> Any:
    """The result of a kernel. For a kernel that only writes: the input that it writes to, or all by name."""
    found = kernel(**given)
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
