"""Results of assertions, for a report: nothing is kept unless a report is wanted."""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import sys
from typing import Any, Callable

import numpy

from . import _files, _inputs, _native
from ._tensors import is_jax

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

    def keep(self, record: dict[str, Any], tensors: dict[str, Any], call: Any, worst: Any) -> None:
        record["test"] = self.test
        if record["verdict"] == "failed":
            plain = re.sub(r"[^A-Za-z0-9_.]+", "-", self.test.rpartition("/")[2]).strip("-")[-80:] or "assertion"
            name = f"{plain}{'-' + self.worker if self.worker else ''}-{len(self.records)}.safetensors"
            path = os.path.join(self.folder, "capsules", name)
            try:
                capsule(path, tensors, call, worst, record)
                record["capsule"] = f"capsules/{name}"
                record["reproduce"] = _line(path, call)
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
    call: Any,
    verdict: str = "",
    worst: Any = None,
) -> None:
    """Keeps what an assertion said. ``call`` has its words, or is what was `_judged.Asked` about a function."""
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


def _line(path: str, call: Any) -> str:
    """The line that asks an assertion again. The function of one is named here, where a reader sees what will be called."""
    if isinstance(call, dict):
        return f'python -c "import ulplab; ulplab.reproduce({path!r})"'
    from . import _sources

    kept = _sources.about(call.function)
    if kept["importable"] is None:
        return f"ulplab.reproduce({path!r}, op=FUNCTION)  # '{kept['name']}' has no name to import it by: give the function"
    return f'python -c "import ulplab; ulplab.reproduce({path!r}, op={kept["importable"]!r})"'


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


def _capsule_of_function(path: str, got: dict[str, Any], asked: Any, record: dict[str, Any]) -> None:
    """Writes what a function and a kernel were given, what the kernel gave, and the name of the function, not the function."""
    from . import _sources

    held: dict[str, _files.Stored] = {}
    args, kwargs = _inputs.split(asked.inputs)
    about = {
        "function": _sources.about(asked.function),
        "call": {word: getattr(asked, word) for word in _ASKED},
        "got": _kept({name: _files.Stored.of(x) for name, x in got.items()}, "got", held),
        "inputs": _kept(kwargs or args, "inputs", held),
        "grads": _kept(asked.grads, "grads", held),
        "grad_output": _kept(asked.grad_output, "grad_output", held),
        "test": record["test"],
        "message": record["message"],
    }
    _check_size(held)
    _files.write(path, held, {"ulplab": json.dumps(about)})


# The words of a question about a function that are in its capsule.
_ASKED = ("accumulate", "rounds", "dtype")


def _kept(value: Any, key: str, held: dict[str, _files.Stored]) -> Any:
    """An argument for JSON, with the tensors in ``held``. ValueError for objects of other kinds: nothing is pickled."""
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if isinstance(value, (list, tuple)):
        return {"list" if type(value) is list else "tuple": [_kept(one, f"{key}.{at}", held) for at, one in enumerate(value)]}
    if isinstance(value, dict):
        return {"dict": [[name, _kept(one, f"{key}.{name}", held)] for name, one in value.items()]}
    if not hasattr(value, "__dlpack__") and not isinstance(value, _files.Stored):
        raise ValueError(f"{key} is a {type(value).__name__}, which is not kept in a file")
    held[key] = _files.Stored.of(value)
    return {"array" if isinstance(value, numpy.ndarray) else "jax" if is_jax(value) else "tensor": key}


def _unkept(value: Any, tensors: dict[str, _files.Stored], make: Any) -> Any:
    """The argument of an entry that `_kept` has made. ``make`` makes tensors of torch."""
    if not isinstance(value, dict):
        return value
    ((kind, part),) = value.items()
    if kind in ("list", "tuple"):
        parts = [_unkept(one, tensors, make) for one in part]
        return parts if kind == "list" else tuple(parts)
    if kind == "dict":
        return {name: _unkept(one, tensors, make) for name, one in part}
    if kind == "tensor":
        return make(tensors[part])
    found = tensors[part].bits.view(tensors[part].dtype)
    return found if kind == "array" else importlib.import_module("jax.numpy").asarray(found)


def _check_size(held: dict[str, _files.Stored]) -> None:
    size = sum(stored.bits.nbytes for stored in held.values())
    if size > _MOST:
        raise ValueError(f"the tensors have {size:,} bytes, and at most {_MOST:,} are kept")


def capsule(path: str, tensors: dict[str, Any], call: Any, worst: Any, record: dict[str, Any]) -> None:
    """Writes the inputs around the worst element, and what is needed to ask again."""
    if not isinstance(call, dict):
        _capsule_of_function(path, tensors, call, record)
        return
    op = call.get("op")
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
    _check_size(kept)
    about = {"call": call, "words": words, "rows": rows, "test": record["test"], "message": record["message"]}
    _files.write(path, kept, {"ulplab": json.dumps(about)})


def reproduce(path: str | os.PathLike[str], op: str | Callable[..., Any] | None = None) -> None:
    """Asks a failed assertion again, from the file that a report kept of it.

    ``pytest --ulplab-report DIR`` writes one for each: what was asked, and the tensors, or of large ones the rows around the worst element.
    Of an assertion with a function, the file has the name and a digest of the source, and ``op`` says where the function is:
    ``"MODULE:FUNCTION"``, ``"FILE.py:FUNCTION"``, or the function itself. No file says by itself what is called.

    Raises the AssertionError that the test raised, with the counts of the rows that were kept; ValueError if the file is of another kind,
    or "not judged" if the function is missing or its source has changed.
    """
    from ._close import _METRICS, assert_close

    __tracebackhide__ = True
    tensors, metadata = _files.read(path)
    try:
        about = dict(json.loads(metadata["ulplab"]))
        call, words = dict(about["call"]), dict(about.get("words") or {})
        of_function = "function" in about
        known = _ASKED if of_function else ("op", "output", "accumulate", "mean_error", "dtype", "rtol", "atol", "equal_nan", *_METRICS)
        unknown = call.keys() - set(known)
        if unknown or not all(isinstance(one, (bool, int, float, str)) for one in words.values()):
            raise ValueError(f"unknown words {sorted(unknown)}")
        if not of_function:
            about["got"] = tensors.pop("got")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        why = f"{type(error).__name__}: {_files.clean(error)}"
        raise ValueError(f"{path}: this safetensors file is none that a report of ulplab has written: {why}") from error
    if op is not None and not of_function:
        raise TypeError("reproduce: op is for an assertion with a function, and this one has none")
    given: dict[str, Any] = {name: value for name, value in call.items() if value is not None or name == "mean_error"}
    try:
        if of_function:
            assert_close(**_asked_again(about, tensors, op), **given)
        elif call.get("op"):
            # All that was asked: without mean_error="fail", an error of the mean would pass.
            assert_close(about["got"], inputs={**tensors, **words}, **given)
        else:
            assert_close(about["got"], tensors["want"], **given)
    except AssertionError:
        raise
    except Exception as error:
        raise ValueError(f"{path}: not judged: {str(error).removeprefix('not judged: ')}") from error


def _asked_again(about: dict[str, Any], tensors: dict[str, _files.Stored], op: str | Callable[..., Any] | None) -> dict[str, Any]:
    """What `assert_close` was given for a function."""
    from . import _sources

    function = _sources.again(op, dict(about["function"]))
    # Imported after the function's own module, which imports torch: no capsule makes a program import torch.
    from ._torch import tensor

    parts = {name: _unkept(about[name], tensors, tensor) for name in ("inputs", "grads", "grad_output")}
    return {"got": _unkept(about["got"], tensors, lambda stored: stored), "op": function, **parts}
