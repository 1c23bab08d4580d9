"""Errors of an output in words: where they are, what they look like, and what they have in common."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy

from . import _native

#: Elements that are off by less than so many times their bound are just outside: the bound may be too tight.
_JUST = 2.0
#: Rows that are needed before a mean says more than a bound.
_ROWS = 16

# What all elements outside may have in common, by the bits of the native module.
_KINDS = {2: "where NaN was found", 4: "where 0 was found: never written?", 8: "with the sign flipped"}


def mean_errors(op: str, judged: dict[str, Any], got: numpy.ndarray, dtype: str, u: float) -> dict[str, Any] | None:
    """The mean and the mean square of the errors of ``got`` in a result of `_native.judge`; None if they are not derived for ``op``."""
    return _native.mean_errors(op, got, judged["value"], judged["error"], judged["bound"], dtype, u)


def biased(errors: dict[str, Any] | None) -> list[str]:
    """Reasons in words why `mean_errors` are not those of a right kernel; none if they may be, or if rows are too few to say."""
    if errors is None or errors["rows"] < _ROWS:
        return []
    said = []
    where = f"over {errors['elements']:,} elements of {errors['rows']:,} rows"
    for up, down, measured in (("away from zero", "towards zero", errors["gain"]), ("upwards", "downwards", errors["offset"])):
        if abs(measured) > errors["allowed"]:
            text = f"errors point {up if measured > 0 else down}: their mean is {abs(measured):.3g} of the bound {where}, "
            text += f"where right kernels have at most {errors['allowed']:.3g}"
            said.append(text + (f"; as of a gain of {errors['relative_gain']:+.2g}" if up.endswith("zero") else ""))
    if errors["square"] > errors["square_allowed"]:
        said.append(
            f"errors are large: their mean square is {errors['square']:.3g} of the bound's {where}, "
            f"where right kernels have at most {errors['square_allowed']:.3g}"
        )
    return said


def place(text: str) -> str:
    """A place of the native module, which counts rows and columns, with names for other dimensions."""
    text = re.sub(r"\ball 1 (row|column|index of (?:a middle dimension|dimension \d))s", r"the only \1", text)
    text = re.sub(r"index of dimension (\d)s", r"indices of dimension \1", text)
    return text.replace("index of a middle dimensions", "indices of a middle dimension")


def shape(x: _native.Array) -> str:
    return f"{x.dtype}{x.shape}"


def outside(name: str, got: _native.Array, found: dict[str, Any], bound: str) -> list[str]:
    """The elements outside a bound: how many, which is the worst, where they are, and what they share."""
    index, value, want, allowed, ratio = found["worst"]
    lines = [f"{name} ({shape(got)}): {found['outside']:,} of {found['elements']:,} elements are outside {bound}"]
    for kind, words in (("nan", "NaN on one side, or on both without equal_nan"), ("infinite", "infinite on one side")):
        if found[kind]:
            lines.append(f"  {found[kind]:,} of them are {words}")
    worst = f"  worst at {index}: got {value:.9g}, want {want:.9g}"
    if value == want:
        worst += ": the sign of zero is the other one"
    elif not math.isfinite(allowed):
        worst += "; there is no bound, as what is wanted, or its error, is not finite there"
    elif math.isfinite(value - want):
        worst += f", off by {abs(value - want):.4g} where {allowed:.4g} is allowed"
        worst += f", {ratio:.3g} times as much" if math.isfinite(ratio) else ""
    lines.append(worst)
    where = found["place"]
    if where is not None:
        shared = [place(where["place"]), *(what for bit, what in _KINDS.items() if where["kinds"] & bit)]
        lines.append(f"  outside: {', '.join(shared)}")
        # Elements just outside hide the pattern of those that are far outside.
        if where["far"]:
            count, there = where["far"]
            lines.append(f"  10 times outside or more: {count:,}, {place(there)}")
    return lines


def explained(likes: list[tuple[str, int, bool]], ratio: float) -> list[str]:
    """Explanations of an output whose worst element is off by a multiple ``ratio`` of its bound: the faults that it looks like, and words
    whose bound is wider. If there are none, and elements are just outside, the bound itself may be wrong."""
    lines = [
        f"with {what}, whose bound is wider, {count:,} elements are outside"
        if wider
        else f"looks like {what}; then {count:,} elements are outside"
        for what, count, wider in likes[:4]
    ]
    if not likes and ratio < _JUST:
        lines.append(f"all of them are less than {_JUST:g} times outside, and nothing known explains them: the bound may be too tight")
    return lines
