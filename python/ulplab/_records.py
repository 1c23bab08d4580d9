"""Results of assertions, for a report: nothing is kept unless a report is wanted."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from typing import Any

import numpy

from . import _files, _native

# Rows that are kept on each side of the worst element's.
_AROUND = 2
# Up to so many bytes, tensors are kept whole; the rows around the worst element of larger ones, up to so many in all.
_WHOLE = 1 << 20
_MOST = 64 << 20


class Recorder:
    """Keeps what assertions said, and writes a file of tensors for each that failed."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.records: list[dict[str, Any]] = []
        #: The test that runs.
        self.test = ""
        self.worker = os.environ.get("PYTEST_XDIST_WORKER", "")
        os.makedirs(os.path.join(folder, "capsules"), exist_ok=True)

    def keep(self, record: dict[str, Any], tensors: dict[str, Any], call: dict[str, Any], worst: Any) -> None:
        record["test"] = self.test
        if record["verdict"] == "failed":
            plain = re.sub(r"[^A-Za-z0-9_.]+", "-", self.test.rpartition("/")[2]).strip("-")[-80:] or "assertion"
            name = f"{plain}{'-' + self.worker if self.worker else ''}-{len(self.records)}.safetensors"
            path = os.path.join(self.folder, "capsules", name)
            try:
                capsule(path, tensors, call, worst, record)
                record["capsule"] = f"capsules/{name}"
                record["reproduce"] = f'python -c "import ulplab; ulplab.reproduce({path!r})"'
            except Exception as error:  # noqa: BLE001 -- the assertion must be raised, with its record or without
                record["capsule_error"] = f"{type(error).__name__}: {error}"
        self.records.append(record)


_recorder: Recorder | None = None


def start(recorder: Recorder | None) -> None:
    """From now on, assertions are kept; with None, no longer."""
    global _recorder
    _recorder = recorder


def wanted() -> bool:
    """True if assertions are kept."""
    return _recorder is not None


def note(
    name: str,
    asked: str,
    ratio: float | None,
    message: str,
    tensors: dict[str, Any],
    call: dict[str, Any],
    verdict: str = "",
    worst: Any = None,
) -> None:
    """Keeps what an assertion said."""
    if _recorder is None:
        return
    ratio = None if ratio is None else float(ratio)
    record = {
        "name": name,
        "asked": asked,
        # JSON has no infinity.
        "ratio": ratio if ratio is None or math.isfinite(ratio) else "infinite",
        "verdict": verdict or ("failed" if message else "passed"),
        "message": message,
        "where": _caller(),
    }
    _recorder.keep(record, tensors, call, worst)


def _caller() -> str:
    frame = sys._getframe(1)
    here = os.path.dirname(os.path.abspath(__file__))
    while frame.f_back is not None and os.path.dirname(os.path.abspath(frame.f_code.co_filename)) == here:
        frame = frame.f_back
    return f"{os.path.relpath(frame.f_code.co_filename)}:{frame.f_lineno}"


def _rows(op: str) -> tuple[set[str], bool] | None:
    """The inputs of an operation whose rows go with those of its output, and whether the first dimension counts rows, not all but the last."""
    rows = next((operation["rows"] for operation in _native.operations() if operation["name"] == op), None)
    return rows and (set(rows[0]), rows[1])


def capsule(path: str, tensors: dict[str, Any], call: dict[str, Any], worst: Any, record: dict[str, Any]) -> None:
    """Writes the inputs around the worst element, and what is needed to ask again."""
    op = call.get("op")
    if not op and "want" not in tensors:
        raise ValueError("the function of the assertion is not kept in a file; run the test again")
    words = {name: value for name, value in tensors.items() if isinstance(value, (bool, int, float, str))}
    words |= {name: value.item() for name, value in tensors.items() if isinstance(value, numpy.generic)}
    kept = {
        name: _files.Stored.of(numpy.asarray(value) if isinstance(value, (list, tuple)) else value)
        for name, value in tensors.items()
        if name not in words and value is not None
    }
    of_rows, first = (_rows(op) or (set(), False)) if op else ({"want"}, False)
    rows = None
    got = kept["got"]
    whole = sum(stored.bits.nbytes for stored in kept.values()) <= _WHOLE
    if worst and got.bits.ndim > 1 and of_rows and not whole:
        sizes = got.shape[:1] if first else got.shape[:-1]
        flat = 0
        for size, index in zip(sizes, worst):
            flat = flat * size + int(index)
        count = math.prod(sizes)
        # Rows next to it are kept, too, and the last one's neighbour is the first.
        rows = [at % count for at in range(flat - _AROUND, flat + _AROUND + 1)] if count > 2 * _AROUND else list(range(count))
        for name in of_rows | {"got"}:
            if name in kept and kept[name].bits.ndim > 1:
                bits = kept[name].bits
                flat_rows = bits if first else bits.reshape(-1, bits.shape[-1])
                kept[name] = _files.Stored(flat_rows[rows], kept[name].dtype)
    size = sum(stored.bits.nbytes for stored in kept.values())
    if size > _MOST:
        raise ValueError(f"the tensors have {size:,} bytes, and at most {_MOST:,} are kept")
    about = {"call": call, "words": words, "rows": rows, "test": record["test"], "message": record["message"]}
    _files.write(path, kept, {"ulplab": json.dumps(about)})


def reproduce(path: str | os.PathLike[str]) -> None:
    """Asks a failed assertion again, from the file that a report kept of it.

    ``pytest --ulplab-report DIR`` writes one for each: what was asked, and the tensors, or of large ones the rows around the worst element.
    Raises the AssertionError that the test raised, with the counts of the rows that were kept; ValueError if the file is of another kind.
    """
    from ._close import _METRICS, assert_close

    __tracebackhide__ = True
    tensors, metadata = _files.read(path)
    try:
        about = json.loads(metadata["ulplab"])
        call, words, got = dict(about["call"]), dict(about["words"]), tensors.pop("got")
        unknown = call.keys() - {"op", "output", "accumulate", "mean_error", "dtype", "rtol", "atol", "equal_nan", *_METRICS}
        if unknown or not all(isinstance(one, (bool, int, float, str)) for one in words.values()):
            raise ValueError(f"unknown words {sorted(unknown)}")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        why = f"{type(error).__name__}: {_files.clean(error)}"
        raise ValueError(f"{path}: this safetensors file is none that a report of ulplab has written: {why}") from error
    given: dict[str, Any] = {name: value for name, value in call.items() if value is not None or name == "mean_error"}
    try:
        if call.get("op"):
            # All that was asked: without mean_error="fail", an error of the mean would pass.
            assert_close(got, inputs={**tensors, **words}, **given)
        else:
            assert_close(got, tensors["want"], **given)
    except AssertionError:
        raise
    except Exception as error:
        raise ValueError(f"{path}: not judged: {error}") from error
