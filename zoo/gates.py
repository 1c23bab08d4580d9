"""Gates that others use: a table of tolerances as a file, and what each gate says of two tensors.

A table is a TOML file. Its head names a `project`, and optionally its `repository`; each `[[gate]]` has

    name             what the gate is called
    op               an operation of the zoo's entries, or a list of them, such as "rmsnorm"
    formats          number formats of the entries; without it, entries in which nothing is quantized
    dtype            the type that tensors are rounded to before they are compared: "bfloat16", "float16" or "float32"
    reference        "right" (the default): the output of the kernel without the fault. "source": the numbers before they were quantized
    path, line, commit   where it is published in the repository
    accepts          faults that the gate is known to let pass, as a list of their ids

and what it asks for, all of which must hold: the words of `ulplab.assert_close` (`rtol`, `atol`, `cosine`, `sqnr`, `diff`, `relative_l2`,
`max_abs`), `mismatches`, the share of elements that may be outside of `rtol` and `atol`, `mean_error`, the mean of errors over that of
magnitudes, `finite = true`, and alone `overlap`, the share of a choice's places that are found in each tensor. `any = [{…}, …]` has
alternatives of the same words: one of them that holds is enough.
"""

from __future__ import annotations

import difflib
import tomllib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import ulplab

#: The folder of this project's tables.
TABLES = Path(__file__).parent / "tables"

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
REFERENCES = ("right", "source")
#: The limits that a gate may set, next to `finite` and `any`.
_METRICS = ("cosine", "sqnr", "diff", "relative_l2", "max_abs")
_LIMITS = ("rtol", "atol", "mismatches", "mean_error", "overlap", *_METRICS)


class Mistake(ValueError):
    """A table that is not understood: which file, which gate, what was found and what was expected."""


@dataclass(frozen=True)
class Gate:
    """A gate of a table."""

    #: The project, and what the gate is called in it.
    project: str
    name: str
    #: Operations and formats of entries that it is asked about.
    op: tuple[str, ...]
    formats: tuple[str, ...]
    #: The type that tensors are rounded to.
    dtype: str
    #: "right" or "source".
    reference: str
    #: Alternatives, each what must hold by its word; one is enough.
    limits: tuple[dict[str, Any], ...]
    #: The address of its publication, if there is one.
    source: str | None = None
    #: Faults that it is known to let pass.
    accepts: tuple[str, ...] = ()

    @property
    def of_indices(self) -> bool:
        """True if it compares places that were chosen, not numbers."""
        return "overlap" in self.limits[0]

    def passes(self, got: np.ndarray, want: np.ndarray) -> bool:
        """True if a tensor is close enough to what is wanted, after both are rounded to the gate's type."""
        if got.shape != want.shape:
            return False
        if self.of_indices:
            return sum(len(np.intersect1d(*rows)) for rows in zip(got, want)) >= self.limits[0]["overlap"] * want.size
        with np.errstate(over="ignore", invalid="ignore"):
            got, want = (np.asarray(x).astype(np.float32).astype(DTYPES[self.dtype]) for x in (got, want))
        return any(_hold(limits, got, want) for limits in self.limits)

    def text(self) -> str:
        """Its limits in words, e.g. "rtol = 0.01, atol = 0.01"."""
        return " or ".join(", ".join(map(_word, limits.items())) for limits in self.limits)


def _word(item: tuple[str, Any]) -> str:
    name, limit = item
    if name == "finite":
        return "no NaN or infinity"
    if name == "mismatches":
        return f"{limit:.3g} of the elements may be outside"
    return f"{name} {'≥' if name in ('cosine', 'sqnr', 'overlap') else '≤' if name in (*_METRICS, 'mean_error') else '='} {limit:g}"


def _hold(limits: dict[str, Any], got: np.ndarray, want: np.ndarray) -> bool:
    wide_got, wide_want = got.astype(np.float64), want.astype(np.float64)
    if limits.get("finite") and not np.isfinite(wide_got).all():
        return False
    words = {name: limits[name] for name in _METRICS if name in limits}
    tolerance = {name: limits[name] for name in ("rtol", "atol") if name in limits}
    with np.errstate(invalid="ignore", divide="ignore"):
        if "mismatches" in limits:
            error = np.abs(wide_got - wide_want)
            inside = (wide_got == wide_want) | (error <= tolerance.get("atol", 0) + tolerance.get("rtol", 0) * np.abs(wide_want))
            if not (~inside).mean() <= limits["mismatches"]:
                return False
        else:
            words |= tolerance
        if "mean_error" in limits:
            # A NaN is no number that is small enough.
            if not np.abs(wide_got - wide_want).mean() <= limits["mean_error"] * np.abs(wide_want).mean():
                return False
    if not words:
        return True
    with warnings.catch_warnings():
        # That zeros would pass is asked by the audit itself.
        warnings.simplefilter("ignore", ulplab.UlplabWarning)
        try:
            ulplab.assert_close(got, want, **words)
        except AssertionError:
            return False
    return True


def read(path: Path, ops: set[str], formats: set[str], faults: set[str]) -> list[Gate]:
    """The gates of a table. `ops`, `formats` and `faults` are those of the zoo's entries."""
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Mistake(f"{path}: {error}") from error
    head = _Keys(table, str(path))
    project, repository = head.take("project", str), head.take("repository", str, None)
    found = head.take("gate", list)
    head.end()
    if not found:
        raise Mistake(f"{path}: there is no gate, expected at least one [[gate]]")
    gates = []
    for at, given in enumerate(found):
        label = given.get("name", f"number {at + 1}") if isinstance(given, dict) else f"number {at + 1}"
        if not isinstance(given, dict):
            raise Mistake(f"{path}: gate {label} is {given!r}, expected a table, [[gate]]")
        gates.append(_gate(_Keys(given, f"{path}: gate {label}"), project, repository, ops, formats, faults))
    names = [gate.name for gate in gates]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise Mistake(f"{path}: two gates are called '{twice}', expected a name of its own for each")
    return gates


def _gate(keys: _Keys, project: str, repository: str | None, ops: set[str], formats: set[str], faults: set[str]) -> Gate:
    path, line, commit = (keys.take(name, kind, None) for name, kind in (("path", str), ("line", int), ("commit", str)))
    source = path
    if path and repository and commit:
        source = f"{repository}/blob/{commit}/{path}" + (f"#L{line}" if line else "")
    # In this order: limits are what is left of the keys.
    return Gate(
        project=project,
        name=keys.take("name", str),
        op=keys.words("op", ops),
        formats=keys.words("formats", formats, [""]),
        dtype=keys.word("dtype", DTYPES),
        reference=keys.word("reference", REFERENCES, "right"),
        accepts=keys.words("accepts", faults, []),
        source=source,
        limits=_alternatives(keys),
    )


def _alternatives(keys: _Keys) -> tuple[dict[str, Any], ...]:
    others = keys.take("any", list, None)
    mine = _limits(keys)
    # Before what is missing, so that a word that is misspelt is named.
    keys.end()
    if others is None:
        if not mine:
            raise Mistake(f"{keys.where}: nothing is asked for, expected {', '.join(_LIMITS)}, or any = [...]")
        return (mine,)
    if mine or not others or not all(isinstance(other, dict) for other in others):
        beside = ", no ".join(mine or ["other word"])
        raise Mistake(f"{keys.where}: any = {others!r}, expected a list of tables, and no {beside} beside it")
    found: list[dict[str, Any]] = []
    for at, other in enumerate(others):
        inner = _Keys(other, f"{keys.where}: any, number {at + 1}")
        found.append(_limits(inner))
        inner.end()
        if not found[-1] or "overlap" in found[-1]:
            raise Mistake(f"{inner.where}: {other!r}, expected {', '.join(name for name in _LIMITS if name != 'overlap')}")
    return tuple(found)


def _limits(keys: _Keys) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    for name in _LIMITS:
        limit = keys.take(name, (int, float), None)
        if limit is None:
            continue
        if not (-np.inf < limit < np.inf and (limit >= 0 or name == "sqnr") and (limit <= 1 or name not in ("cosine", "mismatches",
            "overlap"))):
            raise Mistake(f"{keys.where}: {name} = {limit}, expected a number {'of at most 1' if limit > 1 else 'of at least 0'}")
        limits[name] = float(limit)
    if keys.take("finite", bool, False):
        limits["finite"] = True
    if "overlap" in limits and len(limits) > 1:
        raise Mistake(f"{keys.where}: overlap beside {', '.join(name for name in limits if name != 'overlap')}, expected overlap alone")
    if "mismatches" in limits and not {"rtol", "atol"} & set(limits):
        raise Mistake(f"{keys.where}: mismatches without rtol and atol, outside of which elements may be")
    return limits


_REQUIRED = object()


class _Keys:
    """The keys of a table, taken one by one; what is left at the end is a mistake."""

    def __init__(self, table: dict[str, Any], where: str) -> None:
        self.table = dict(table)
        self.where = where
        self.known: list[str] = []

    def take(self, name: str, kind: Any, default: Any = _REQUIRED) -> Any:
        self.known.append(name)
        value = self.table.pop(name, default)
        if value is _REQUIRED:
            raise Mistake(f"{self.where}: '{name}' is missing")
        if value is not default and (not isinstance(value, kind) or isinstance(value, bool) and kind is not bool):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            wanted = {str: "a string", int: "a whole number", float: "a number", list: "a list", bool: "true or false"}
            raise Mistake(f"{self.where}: {name} = {value!r}, expected {wanted[kinds[-1]]}")
        return value

    def word(self, name: str, known: Any, default: Any = _REQUIRED) -> str:
        value = self.take(name, str, default)
        if value not in known:
            raise Mistake(f"{self.where}: {name} = {value!r}, expected one of {', '.join(sorted(known))}{_nearest(value, known)}")
        return value

    def words(self, name: str, known: set[str], default: Any = _REQUIRED) -> tuple[str, ...]:
        value = self.take(name, (str, list), default)
        found = [value] if isinstance(value, str) else value
        for word in found:
            if word not in known:
                named = ", ".join(sorted(filter(None, known)))
                raise Mistake(f"{self.where}: {name} = {word!r}, expected some of {named}{_nearest(word, known)}")
        return tuple(found)

    def end(self) -> None:
        for name in self.table:
            raise Mistake(f"{self.where}: the key '{name}' is not known, expected {', '.join(self.known)}{_nearest(name, self.known)}")


def _nearest(word: Any, known: Any) -> str:
    near = difflib.get_close_matches(str(word), [name for name in known if name], 1)
    return f"; is '{near[0]}' meant?" if near else ""
