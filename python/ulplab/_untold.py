"""What the inputs of an assertion cannot show: a warning, once a test, that never fails it."""

from __future__ import annotations

import os
import warnings
from typing import Any

from . import _native
from ._tensors import caller_level

# Tests, or lines outside of tests, that were told.
_told: set[str] = set()
# Faults that a message names.
_NAMED = 4
# The least rows of a sample: faults that read the next row need two.
_LEAST = 2
# Elements that cost no more than a call of any size.
_FEW = 1 << 9


class UntoldWarning(UserWarning):
    """Faults of an operation that the inputs of an assertion cannot show. It never fails a test, also under ``-W error``."""


def warn_of_untold(op: str, given: dict[str, Any], dtype: str, u: float) -> None:
    """Warns of faults that would pass on these inputs: once a test, on as many rows as cost at most what the assertion itself did."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0] or "process"
    if test in _told:
        return
    _told.add(test)
    sample, rows = _sample(op, given)
    if sample is None:
        return
    shown, _ = _native.shows(op, sample, dtype, u)
    # What inputs of these sizes and options can show at all: those of the generator that show most.
    better = next(iter(_native.telling(op, sample, dtype, u, None, 1, 0)), None)
    hidden = [fault for fault in better[3] if fault not in shown] if better else []
    if not hidden:
        return
    docs = next(dict(operation["faults"]) for operation in _native.operations() if operation["name"] == op)
    named = "; ".join(docs[fault] for fault in hidden[:_NAMED])
    more = f"; and {len(hidden) - _NAMED} more" if len(hidden) > _NAMED else ""
    message = (
        f"{op}: these inputs{rows} do not show {len(hidden)} of {len({*shown, *hidden})} faults, which would pass: {named}{more}. "
        f"ulplab.inputs('{op}', like=inputs) makes inputs that show them"
    )
    try:
        warnings.warn(message, UntoldWarning, stacklevel=caller_level())
    except UntoldWarning:
        # Filters that make errors of all warnings: a warning of this kind fails nothing.
        pass


def _sample(op: str, given: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """The inputs cut to so few rows that all faults cost at most what the assertion did, and the words for it."""
    from ._tensors import _from_numpy

    arrays = {name: x for name, x in given.items() if isinstance(x, _native.Array)}

    def elements(arrays: dict[str, Any]) -> int:
        total = 0
        for x in arrays.values():
            size = 1
            for dim in x.shape:
                size *= dim
            total += size
        return total

    faults = next(len(operation["faults"]) for operation in _native.operations() if operation["name"] == op)
    # All faults are computed twice: of these inputs, and of those of the generator.
    share = 1 / (2 * (faults + 1))
    letters = [(letter, size) for letter, size in _native.sizes(op, given) if size > _LEAST]
    most, sample, words = max(_FEW, int(share * elements(arrays))), dict(given), []
    # Rows, and columns of another operand where that leaves too many elements.
    for letter, size in dict.fromkeys((*letters[:1], *letters[-1:])):
        left = elements({name: sample[name] for name in arrays})
        if left <= most:
            break
        rows = max(_LEAST, size * most // left)
        cut = _native.cut(op, sample, letter, rows)
        if cut is None:
            return None, ""
        sample = {name: _from_numpy(x) if name in arrays else x for name, x in cut.items()}
        words.append(f"{rows} of {size:,}")
    if elements({name: sample[name] for name in arrays}) > 2 * most:
        return None, ""
    return sample, f" (of {letters[0][0]}, {' and '.join(words)})" if words else ""
