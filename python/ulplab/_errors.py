"""Errors of many elements together: their mean, and their mean square, which no bound of single elements sees.

What is stored is r(v + e): v is the number in f64, e the error of the computation, r the rounding to the stored type. The bound of
an element knows |e| <= E. Of n elements together more is known, and it is derived here.

t = stored - r(v) is 0 where no number within E of v rounds to another. Elsewhere it is 0 or one spacing, and its mean is that of e
if v lies anywhere in its spacing: the rounding to the stored type drops out of the mean of t, however coarse the type is.
With weights w = 1 / bound, and the sign of v for a gain (all magnitudes too large) or none for an offset, a right kernel has

    |sum of w t|  <=  sum of w 8u |v|  +  root of 2 sum over rows of (sum of w E)^2  +  8 root of sum over places of (sum of w s)^2

The first part may point in one direction everywhere: two functions of up to 2 ulp, such as a reciprocal root and a quotient, and an
exponential has 2u |x| more (``_LEANING``). The second is what differs from row to row: all elements of a row may share
its error, and rows are independent. E is 8 times the scale of a sum's roundings, root of n u, or for few terms (n + 8) u, which is at
least 8 root of n u / root of 2. The third is the place of v in its spacing s, for the
elements that can be rounded either way; numbers with the same digits, or of a row and as near as E, are at the same place. Both are
passed once in 10^13 (Hoeffding: 2 exp(-8^2 / 2)). Rows of equal numbers count as one row.

The mean square: an error that is symmetric and more often small than large within +-E has at most a mean square of E^2 / 3 (Gauss
1823); the part of the error that rounding does not explain, max(0, |stored - v| - s / 2), is at most |e|. The mean of G rows' mean
squares over E^2, each in 0..1, is above 1/3 + 4 / root of G once in 10^13 (Hoeffding: exp(-2 G (4 / root G)^2)).
"""

from __future__ import annotations

import re
from typing import Any

import numpy

from . import _native

#: Operations whose rows are computed independently of each other, and the digits by which the exponential of a row's numbers may lean
#: in one direction, in u for each unit of the exponent. Sums of products are left out: tensor cores truncate, which leans.
_LEANING = {"rmsnorm": 0.0, "rope": 0.0, "silu_and_mul": 2.0, "softmax": 2.0}

_LAMBDA = 8.0
#: Rows that are needed before a mean says more than a bound.
_ROWS = 16
#: About so many elements are looked at: a quarter of a second.
_MOST = 1 << 20


def name_of(dtype: Any) -> str:
    """The name of a type of numpy, torch or jax, or of one that is named."""
    try:
        return str(numpy.dtype(dtype).name)
    except TypeError:
        return str(getattr(dtype, "__name__", None) or dtype).rpartition(".")[2]


def spacing(value: numpy.ndarray, dtype: str) -> numpy.ndarray:
    """How far the numbers of a type are apart around each value; 0 for types that are not floating-point numbers."""
    tiny = float(numpy.finfo(numpy.float32).tiny)
    value = numpy.ascontiguousarray(value, numpy.float64)
    bound = _native.bounds(value, numpy.zeros_like(value), dtype)
    # The native bound has the smallest normal f32 added to half a spacing.
    return 2 * (bound - tiny)


def rounded(value: numpy.ndarray, dtype: str) -> numpy.ndarray:
    """Each value rounded to nearest in a type, ties to even; what is too large for it is infinite."""
    step = spacing(value, dtype)
    with numpy.errstate(invalid="ignore", divide="ignore", over="ignore"):
        near = numpy.where((step > 0) & numpy.isfinite(value), numpy.rint(value / step) * step, value)
    most = {"float16": 65504.0, "float32": float(numpy.finfo(numpy.float32).max), "bfloat16": 2.0**128 - 2.0**120}
    return numpy.where(numpy.abs(near) > most.get(dtype, numpy.inf), numpy.copysign(numpy.inf, near), near)


def ratios(got: numpy.ndarray, value: numpy.ndarray, bound: numpy.ndarray) -> numpy.ndarray:
    """The error of each element over its bound; infinite where one is not a number, or infinite, and the other is not."""
    with numpy.errstate(invalid="ignore", divide="ignore"):
        off = numpy.abs(got - value)
        ratio = numpy.where(off == 0, 0.0, off / bound)
    same = (got == value) | (numpy.isnan(got) & numpy.isnan(value))
    return numpy.where(same, 0.0, numpy.where(numpy.isnan(ratio), numpy.inf, ratio))


class Bias:
    """The mean and the mean square of the errors of an output.

    ``gain`` and ``offset`` are means of errors over bounds, away from zero and upwards; ``gain_allowed`` and ``offset_allowed`` what a
    right kernel has at most. ``square`` and ``square_allowed`` are those of the mean square. ``relative_gain`` is the factor, less 1, that
    fits best. ``rows`` counts rows that differ.
    """

    def __init__(
        self, op: str, got: numpy.ndarray, value: numpy.ndarray, error: numpy.ndarray, bound: numpy.ndarray, dtype: str, u: float
    ) -> None:
        cols = value.shape[-1] if value.ndim else 1
        got, value, error, bound = (x.reshape(-1, max(cols, 1)) for x in (got, value, error, bound))
        # Of many rows, some that lie evenly: which they are does not depend on what was found.
        every = max(1, value.size // _MOST)
        got, value, error, bound = (x[::every] for x in (got, value, error, bound))
        step = spacing(value, dtype)
        known = numpy.isfinite(got) & numpy.isfinite(value) & numpy.isfinite(error) & (bound > 0)
        # Where the error is larger than the number, the number has no digits, and a spacing around it says nothing.
        known &= error <= numpy.abs(value)
        weight = numpy.where(known, 1.0, 0.0) / numpy.where(known, bound, 1.0)
        value_known, error = numpy.where(known, value, 0.0), numpy.where(known, error, 0.0)
        near = rounded(value_known, dtype)
        t = numpy.where(known, got, 0.0) - near
        either = known & (0.5 * step - numpy.abs(value_known - near) <= error)
        _, row, counts = numpy.unique(_keys(value_known), return_inverse=True, return_counts=True)
        self.rows = int(((numpy.bincount(row, known.any(1)) > 0) & (counts > 0)).sum())
        self.elements = int(known.sum())
        lean = weight * numpy.minimum(error, (8.0 * u + _LEANING[op] * u * _exponents(op, value_known)) * numpy.abs(value_known))
        of_rows = numpy.bincount(row, (weight * error).sum(1))
        of_places = _together(value_known, error, weight * step, either, row)
        allowed = lean.sum() + numpy.sqrt(2 * (of_rows**2).sum()) + _LAMBDA * of_places
        count = max(self.elements, 1)
        allowed = float(min(allowed, (weight * (error + step)).sum())) / count
        self.gain_allowed = self.offset_allowed = allowed
        self.gain = float((weight * numpy.sign(value_known) * t).sum()) / count
        self.offset = float((weight * t).sum()) / count
        magnitude = float((weight * numpy.abs(value_known)).sum())
        self.relative_gain = self.gain * count / magnitude if magnitude else 0.0
        unexplained = numpy.maximum(0.0, numpy.abs(numpy.where(known, got - value, 0.0)) - 0.5 * step)
        bounded = known & (error > 0)
        square = numpy.where(bounded, numpy.minimum(1.0, unexplained / numpy.where(bounded, error, 1.0)) ** 2, 0.0)
        means = numpy.bincount(row, square.sum(1)) / numpy.maximum(1, numpy.bincount(row, bounded.sum(1)))
        self.square = float(means.mean()) if means.size else 0.0
        self.square_allowed = 1 / 3 + 4 / max(self.rows, 1) ** 0.5

    def found(self) -> list[str]:
        """What a right kernel does not have, in words; nothing if all is as it should be, or if rows are too few to say."""
        if self.rows < _ROWS:
            return []
        said = []
        where = f"over {self.elements:,} elements of {self.rows:,} rows"
        for what, measured, allowed in (
            ("away from zero", self.gain, self.gain_allowed),
            ("upwards", self.offset, self.offset_allowed),
        ):
            if abs(measured) > allowed:
                what = what if measured > 0 else {"away from zero": "towards zero", "upwards": "downwards"}[what]
                text = f"errors point {what}: their mean is {abs(measured):.3g} of the bound {where}, "
                text += f"where right kernels have at most {allowed:.3g}"
                if what.endswith("zero"):
                    text += f"; as of a gain of {self.relative_gain:+.2g}"
                said.append(text)
        if self.square > self.square_allowed:
            said.append(
                f"errors are large: their mean square is {self.square:.3g} of the bound's {where}, "
                f"where right kernels have at most {self.square_allowed:.3g}"
            )
        return said


def _together(value: numpy.ndarray, error: numpy.ndarray, steps: numpy.ndarray, either: numpy.ndarray, row: numpy.ndarray) -> float:
    """The root of the sum of squares of what elements at the same place of their spacing can be rounded by together."""
    if not either.any():
        return 0.0
    digits = numpy.frexp(numpy.abs(value[either]))[0]
    steps = steps[either]

    def root(places: numpy.ndarray) -> float:
        _, place = numpy.unique(places, return_inverse=True)
        return float(numpy.sqrt((numpy.bincount(place, steps) ** 2).sum()))

    # In a row, numbers that are nearer than their error share it.
    apart = float((error[either] / numpy.abs(value[either])).max())
    cells = numpy.rint(digits / max(apart, 2.0**-40))
    rows = numpy.broadcast_to(row[:, None], value.shape)[either]
    return max(root(digits), root(cells + rows * 2.0**41 if rows.max(initial=0) < 2**11 else cells * 0 + rows))


def judged(op: str) -> bool:
    """Whether the mean of errors is derived for an operation."""
    return op in _LEANING


def _exponents(op: str, value: numpy.ndarray) -> numpy.ndarray | float:
    """The magnitude of the exponents whose exponentials the values come from."""
    if op == "softmax":
        with numpy.errstate(divide="ignore"):
            logs = numpy.where(value > 0, numpy.log(numpy.where(value > 0, value, 1.0)), 0.0)
        # Twice, since the mean of a row's exponents enters by its sum.
        largest: numpy.ndarray = numpy.abs(logs).max(axis=-1, keepdims=True, initial=0.0)
        return 2 * largest
    if op == "silu_and_mul":
        # Gates below -88 leave nothing in f32.
        return 88.0
    return 0.0


def _keys(rows: numpy.ndarray) -> numpy.ndarray:
    """A number for each row that equal rows share, whatever the signs and the power of two in it."""
    # Sums of digits and of products with fixed irrational weights; two rows that differ have the same one by chance only.
    digits = numpy.frexp(numpy.abs(rows))[0]
    return numpy.sort(digits, axis=1) @ numpy.sqrt(numpy.arange(2.0, rows.shape[1] + 2.0))


#: Bits of the significand, the leading one counted, and the exponent of the smallest normal number.
BITS = {
    "float64": (53, -1022),
    "float32": (24, -126),
    "bfloat16": (8, -126),
    "float16": (11, -14),
    "float8_e4m3fn": (4, -6),
    "float8_e5m2": (3, -14),
}


def _place(x: numpy.ndarray, dtype: str) -> numpy.ndarray:
    """Which number of its type each is, counted from 0."""
    digits, least = BITS[dtype]
    x = numpy.where(numpy.isfinite(x), x, 0.0)
    exponent = numpy.where(x == 0, least, numpy.maximum(numpy.frexp(numpy.abs(x))[1] - 1, least))
    # Numbers below the first normal one, and 2^(digits - 1) in each binade. The first product is exact.
    within = numpy.ldexp(numpy.ldexp(numpy.abs(x), digits - 1 - exponent // 2), -(exponent - exponent // 2)).astype(numpy.int64)
    numbers: numpy.ndarray = numpy.where(x < 0, -1, 1) * (within + (exponent - least).astype(numpy.int64) * 2 ** (digits - 1))
    return numbers


def ulps(got: numpy.ndarray, want: numpy.ndarray, dtype: str, equal_nan: bool) -> float:
    """How many numbers of a type two tensors are apart at most; infinite where one is not finite, and the other is not the same."""
    apart = numpy.abs(_place(got, dtype) - _place(want, dtype)).astype(numpy.float64)
    same = (got == want) | (equal_nan & numpy.isnan(got) & numpy.isnan(want))
    apart = numpy.where(numpy.isfinite(got) & numpy.isfinite(want), apart, numpy.inf)
    return float(numpy.where(same, 0.0, apart).max(initial=0.0))


def divergence(got: numpy.ndarray, want: numpy.ndarray) -> float | None:
    """The mean over rows of KL(softmax(want) || softmax(got)) in nats; None where it is not defined."""
    if want.ndim == 0 or want.size == 0:
        return None

    def logs(x: numpy.ndarray) -> numpy.ndarray:
        x = x - x.max(axis=-1, keepdims=True)
        normed: numpy.ndarray = x - numpy.log(numpy.exp(x).sum(axis=-1, keepdims=True))
        return normed

    with numpy.errstate(invalid="ignore", divide="ignore"):
        p, q = logs(want), logs(got)
        terms = numpy.where(numpy.isneginf(p), 0.0, numpy.exp(p) * (p - q))
        found = float(terms.sum(axis=-1).mean())
    # Roundings of two equal rows may leave a little less than 0.
    return None if numpy.isnan(found) else max(found, 0.0)


def place(mask: numpy.ndarray) -> tuple[str, int]:
    """Where the elements of a uint8 mask that are not 0 are, in words, and the bits that all of them share."""
    words, kinds = _native.pattern(_native.Array(numpy.ascontiguousarray(mask).__dlpack__()))
    # The words count rows and columns; other dimensions have no name.
    words = re.sub(r"\ball 1 (row|column|index of (?:a middle dimension|dimension \d))s", r"the only \1", words)
    words = re.sub(r"index of dimension (\d)s", r"indices of dimension \1", words)
    return words.replace("index of a middle dimensions", "indices of a middle dimension"), kinds
