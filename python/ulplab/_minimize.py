"""The smallest inputs on which a kernel still fails, from inputs on which it does."""

from __future__ import annotations

import os
import warnings
from typing import Any, Callable

import numpy

from . import _inputs, _native, _records
from ._close import assert_close, assumed, dtypes_of
from ._telling import Inputs, _as
from ._tensors import check_operation, inputs as given_inputs

# An output that fails: its name, what the kernel gave, and the message.
_Failure = tuple[str | None, Any, str]


def minimize(
    kernel: Callable[..., Any],
    op: str,
    inputs: dict[str, Any],
    *,
    accumulate: str | None = None,
    dtype: Any = None,
    path: str | os.PathLike[str] | None = None,
    calls: int = 200,
) -> Inputs:
    """Smaller and simpler inputs on which ``kernel(**inputs)`` is still outside the bound of an operation.

    Sizes are halved, and counted down, as long as the kernel fails; then tensors become zeros, ones, and integers, where it still does. What
    ends in an exception, or is not judged, does not count. At most ``calls`` calls are made. ``path`` is a file for a capsule of what is left, which
    `ulplab.reproduce` asks again. ``why`` of the result has the message.

    Raises ValueError, "not judged", if the kernel is within the bound of ``inputs``.
    """
    check_operation(op)
    search = _Search(kernel, op, accumulate, dtype, calls)
    failure = search.failure(inputs)
    if failure is None:
        raise ValueError(f"not judged: minimize: the kernel is within the bound of {op}, or judges nothing; give inputs on which it fails")
    best, failure = search.smaller(dict(inputs), failure)
    best, failure = search.simpler(best, failure)
    found = Inputs(best)
    output, got, found.why = failure
    if path is not None:
        arrays = given_inputs({**best, "got": got})
        call = {"op": op, "output": output, "accumulate": assumed(accumulate, dtypes_of(arrays.values())), "dtype": dtype, "mean_error": None}
        _records.capsule(os.fspath(path), {"got": got, **best}, call, None, {"test": "", "message": found.why})
    return found


class _Search:
    """Calls of a kernel, of which there are at most so many."""

    def __init__(self, kernel: Callable[..., Any], op: str, accumulate: str | None, dtype: Any, calls: int) -> None:
        self.kernel, self.op, self.calls = kernel, op, calls
        self.words: dict[str, Any] = {"accumulate": accumulate, "dtype": dtype, "mean_error": None}

    def failure(self, inputs: dict[str, Any]) -> _Failure | None:
        """The first output that is outside its bound."""
        self.calls -= 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # The kernel gets copies: it may write to them.
                returned = _inputs.called(self.kernel, dict(_inputs.Snapshot(inputs)), [])
                outputs = returned if isinstance(returned, dict) else {None: returned}
                for output, got in outputs.items():
                    try:
                        assert_close(got, op=self.op, inputs=inputs, output=output, **self.words)
                    except AssertionError as error:
                        # Another shape is another failure.
                        if "are outside" in str(error):
                            return output, got, str(error)
        except Exception:  # noqa: BLE001 -- a kernel that cannot take a size may raise anything
            return None
        return None

    def smaller(self, best: dict[str, Any], failure: _Failure) -> tuple[dict[str, Any], _Failure]:
        """Inputs of the least sizes that still fail."""
        progress = True
        while progress and self.calls > 0:
            progress = False
            for letter, size in _native.sizes(self.op, given_inputs(best)):
                for tried in dict.fromkeys((1, size // 2, size - 1)):
                    cut = _native.cut(self.op, given_inputs(best), letter, tried) if 0 < tried < size and self.calls > 0 else None
                    made = {name: _as(best[name], cut[name]) for name in cut} if cut else None
                    found = self.failure(made) if made else None
                    if made and found:
                        best, failure, progress = made, found, True
                        break
        return best, failure

    def simpler(self, best: dict[str, Any], failure: _Failure) -> tuple[dict[str, Any], _Failure]:
        """Inputs of the simplest values that still fail."""
        for name, array in given_inputs(best).items():
            if not isinstance(array, _native.Array) or array.dtype.startswith(("int", "uint", "bool")):
                continue
            values = _native.widen(array)
            for simple in (numpy.zeros_like(values), numpy.ones_like(values), numpy.round(values), numpy.round(values * 8) / 8):
                if self.calls > 0 and not numpy.array_equal(simple, values):
                    made = {**best, name: _as(best[name], simple)}
                    if found := self.failure(made):
                        best, failure = made, found
                        break
        return best, failure
