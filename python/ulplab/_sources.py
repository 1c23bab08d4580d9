"""Functions by the names under which they can be imported again: for capsules, reports and options."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from typing import Any, Callable

from ._files import clean


def digest(function: Callable[..., Any]) -> str | None:
    """The SHA-256 of a function's source text; None if there is none."""
    try:
        return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()
    except (OSError, TypeError):
        return None


def about(function: Callable[..., Any]) -> dict[str, Any]:
    """The name of a function, its line, the digest of its source, and in ``importable`` what `found` takes, if it can be imported."""
    code = getattr(function, "__code__", None)
    name = str(getattr(function, "__qualname__", "") or type(function).__name__)
    line = code and f"{_relative(code.co_filename)}:{code.co_firstlineno}"
    kept = {"name": name, "line": line, "sha256": digest(function), "importable": None}
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is not None and _within(module, name) is function:
        file = getattr(module, "__file__", None) or ""
        # A file of the project, such as one of tests, need not lie where modules are imported from.
        alone = file.endswith(".py") and "." not in module.__name__ and not os.path.isabs(_relative(file))
        kept["importable"] = f"{_relative(file) if alone else module.__name__}:{name}"
    return kept


def _relative(file: str) -> str:
    """A path from the current directory, if it lies there."""
    inside = os.path.relpath(file)
    return os.path.abspath(file) if inside.startswith(os.pardir) else inside


def _within(module: Any, name: str) -> Any:
    """What a module has under a name with dots; None if there is none."""
    for part in name.split("."):
        module = getattr(module, part, None)
    return module


def found(text: str) -> Callable[..., Any]:
    """The function that ``MODULE:FUNCTION`` or ``FILE.py:FUNCTION`` names. ValueError if it cannot be imported."""
    place, colon, name = text.rpartition(":")
    if not colon or not place or not name:
        raise ValueError(f"{clean(text)}: expected MODULE:FUNCTION or FILE.py:FUNCTION")
    try:
        module = _of_file(place) if place.endswith(".py") else importlib.import_module(place)
    except Exception as error:  # noqa: BLE001 -- a module may raise anything while it is imported
        raise ValueError(f"{clean(text)} cannot be imported: {type(error).__name__}: {clean(error)}") from error
    function = _within(module, name)
    if not callable(function):
        raise ValueError(f"{clean(text)}: there is no such function")
    known: Callable[..., Any] = function
    return known


def _of_file(file: str) -> Any:
    """The module of a file, as pytest imports it: files next to it can be imported, too."""
    path = os.path.abspath(file)
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == path:
            return module
    if not os.path.exists(path):
        raise FileNotFoundError(f"there is no file {file}")
    stem = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, os.path.dirname(path))
    sys.modules.setdefault(stem, module)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(os.path.dirname(path))
    return module


def again(op: str | Callable[..., Any] | None, kept: dict[str, Any]) -> Callable[..., Any]:
    """The function that a caller names for a capsule of another run. ValueError, "not judged", if it is not the one of that run.

    A file of others must not say what is called here: the caller does.
    """
    name, line = clean(kept.get("name")), clean(kept.get("line") or "no file")
    if op is None:
        hint = f"op={clean(kept['importable'])!r}" if kept.get("importable") else "op=FUNCTION"
        raise ValueError(f"not judged: the assertion was of the function '{name}' ({line}), which the capsule does not hold; say {hint}")
    try:
        function = found(op) if isinstance(op, str) else op
    except ValueError as error:
        raise ValueError(f"not judged: {error}") from error
    if kept.get("importable") and kept.get("sha256") != digest(function):
        raise ValueError(f"not judged: the source of '{name}' ({line}) is another one than when the assertion failed")
    return function
