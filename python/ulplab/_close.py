"""Assertions that two tensors are close."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy

from . import _errors, _native, _records
from ._tensors import UlplabWarning, array, inputs as given_inputs

# Metrics that a limit can be given for, and whether a larger value is better.
_METRICS = {
    "cosine": True,
    "sqnr": True,
    "diff": False,
    "relative_l2": False,
    "nsr": False,
    "max_abs": False,
    "ulp": False,
    "kl": False,
}

# The types that kernels add in, and the unit roundoff of each: half the spacing at 1.
_UNITS = {
    "f64": 2.0**-53,
    "f32": 2.0**-24,
    "tf32": 2.0**-11,
    "f16": 2.0**-11,
    "bf16": 2.0**-8,
    # What Hopper's tensor cores keep of sums of FP8 products.
    "fp8_tensor_core": 2.0**-14,
    # Integers, whose sums are exact.
    "i32": 0.0,
}


class NoGate(ValueError):
    """An assertion without anything to assert."""


def unit(accumulate: str) -> float:
    """The unit roundoff of the type that a kernel adds in."""
    if accumulate not in _UNITS:
        raise ValueError(f"accumulate = '{accumulate}', expected one of {', '.join(_UNITS)}")
    return _UNITS[accumulate]


def assert_close(
    got: Any,
    want: Any = None,
    rtol: float | None = None,
    atol: float | None = None,
    *,
    op: str | None = None,
    inputs: dict[str, Any] | None = None,
    output: str | None = None,
    accumulate: str = "f32",
    mean_error: str | None = "warn",
    equal_nan: bool = False,
    name: str = "got",
    **limits: Any,
) -> None:
    """Raises AssertionError unless ``got`` is close to what is wanted.

    There are three ways to say what is wanted.

    ``assert_close(got, want, rtol=, atol=)``
        Every element: ``|got - want| <= atol + rtol * |want|``, in f64 whatever the types are. What is not given is 0.

    ``assert_close(got, want, cosine=0.999)``
        A metric of the whole tensors, in f64: ``cosine`` and ``sqnr`` (in dB) at least as large as given, ``diff``
        (``1 - 2 <x, y> / (<x, x> + <y, y>)``, DeepGEMM's), ``relative_l2``, ``nsr`` and ``max_abs`` at most. ``ulp``: no
        element of two tensors of the same floating-point type is more such numbers apart; 0 and -0 are none apart. ``kl``: the mean over
        rows of the Kullback-Leibler divergence, in nats, of the softmax of ``got`` from that of ``want``; both are logits [..., C]. With
        ``rtol`` or ``atol``, all must hold.

    ``assert_close(got, op="rmsnorm", inputs=dict(x=x, weight=w, eps=1e-6))``
        No number: what the operation gives is computed in f64, and how far each element may be from it follows from the inputs,
        the type of ``got`` and the type that the kernel adds in (``accumulate``: f32, f64, tf32, f16, bf16, fp8_tensor_core or i32). Operations
        and what they take are in ``ulplab.reference``. ``output`` names the output that ``got`` is, if there are several; or ``got`` is a
        dictionary of them, ``{"y": y, "state": state}``. Words such as ``cast="before_weight"`` go into ``inputs`` or stand beside them. If
        all elements are inside, their mean error and mean square are looked at (rmsnorm, rope, silu_and_mul and softmax, from 16 rows
        [..., C] on): what right kernels do not have is an UlplabWarning, an AssertionError if ``mean_error="fail"``, and not looked for if
        ``mean_error=None``.

    Shapes must be equal; nothing is broadcast. A NaN is wrong unless it meets a NaN and ``equal_nan`` is given (with ``op``, it may meet
    one); an infinity must meet the same infinity. An UlplabWarning tells of assertions that say little: if zeros would pass, too, if all
    wanted elements are equal, or if ``got`` and ``want`` are the same memory.
    """
    __tracebackhide__ = True
    if op is not None:
        if want is not None or rtol is not None or atol is not None:
            raise TypeError("assert_close: give either op and inputs, or want with rtol and atol")
        if mean_error not in ("warn", "fail", None):
            raise ValueError(f"mean_error = {mean_error!r}, expected 'warn', 'fail' or None")
        outputs = got if isinstance(got, dict) else {output: got}
        if not outputs or isinstance(got, dict) and output is not None:
            raise TypeError("assert_close: give a tensor and the name of its output, or a dictionary of outputs by their names")
        given = {**(inputs or {}), **limits} if isinstance(inputs or {}, dict) else inputs
        wrong = []
        # No comprehension, which would be a frame between a warning and the caller it points to.
        for output, one in outputs.items():
            wrong.append(_by_operation(one, op, given, output, accumulate, name, mean_error))
        if any(wrong):
            raise AssertionError("\n".join(lines for lines in wrong if lines))
        return
    if want is None:
        raise TypeError("assert_close: 'want' is missing; or give op and inputs")
    if rtol is None and atol is None and not limits:
        raise NoGate("assert_close: give rtol, atol, a metric such as diff=1e-3, or op and inputs")
    unknown = [limit for limit in limits if limit not in _METRICS]
    if unknown:
        raise TypeError(f"assert_close: '{unknown[0]}' is no metric; there are {', '.join(_METRICS)}")
    got_array, want_array = array(got, name), array(want, "want")
    if got_array.shape != want_array.shape:
        raise AssertionError(f"{name} is {_shape(got_array)}, want is {_shape(want_array)}")
    _warn_of_same(got, want, got_array, want_array)
    said = []
    worst, ratio = None, None
    if rtol is not None or atol is not None:
        rtol, atol = rtol or 0.0, atol or 0.0
        if not (rtol >= 0 and atol >= 0):
            raise ValueError(f"rtol = {rtol}, atol = {atol}, expected numbers of at least 0")
        found = _native.close(got_array, want_array, rtol, atol, equal_nan)
        _warn_of_little(found, f"rtol = {rtol:g}, atol = {atol:g}")
        if found["outside"]:
            said.append(_outside(name, got_array, found, f"|got - want| <= {atol:g} + {rtol:g} * |want|"))
            wide_got, wide_want = _native.widen(got_array), _native.widen(want_array)
            said += _where(wide_got, wide_want, atol + rtol * numpy.abs(wide_want), equal_nan)
            worst, ratio = found["worst"][0], found["worst"][-1]
    if limits:
        values = _measured(got_array, want_array, list(limits), equal_nan)
        for (metric, limit), value in zip(limits.items(), values):
            higher = _METRICS[metric]
            # A value that is not a number passes nothing.
            if value is None or not (value >= limit if higher else value <= limit):
                bound = "at least" if higher else "at most"
                shown = "not defined" if value is None else f"{value:.6g}"
                said.append(f"{metric} of {name} ({_shape(got_array)}) is {shown}, expected {bound} {limit:g}")
    asked = f"rtol = {rtol}, atol = {atol}" if rtol is not None else ""
    asked = ", ".join([asked] * bool(asked) + [f"{metric} = {limit}" for metric, limit in limits.items()])
    call = {"rtol": rtol, "atol": atol, "equal_nan": equal_nan, **limits}
    _records.note(name, asked, ratio, "\n".join(said), {"got": got, "want": want}, call, worst=worst)
    if said:
        raise AssertionError("\n".join(said))


def _by_operation(
    got: Any, op: str, inputs: dict[str, Any], output: str | None, accumulate: str, name: str, mean_error: str | None
) -> str:
    """What is wrong with an output, if anything."""
    __tracebackhide__ = True
    given = given_inputs(inputs)
    got_array = array(got, name)
    found = _native.judge(op, got_array, given, unit(accumulate), output)
    _warn_of_little(found, f"the bound of {op}", depth=5)
    kept = {"got": got, **inputs}
    call = {"op": op, "output": output, "accumulate": accumulate}

    def note(ratio: float | None, message: str, verdict: str = "") -> None:
        _records.note(name, f"op = {op}", ratio, message, kept, call, verdict, found["worst"] and found["worst"][0])

    if not found["outside"]:
        ratio = None
        if _records.wanted():
            ratio = float(_errors.ratios(found["got"], found["value"], found["bound"]).max(initial=0.0))
        leaning = _biased(op, found, got_array.dtype, unit(accumulate)) if mean_error else []
        message = "\n".join(f"{op}: {name} ({_shape(got_array)}): {line}" for line in leaning)
        note(ratio, message, "" if not message or mean_error == "fail" else "warning")
        if message and mean_error == "warn":
            _warn(message)
            return ""
        return message
    lines = [_outside(f"{op}: {name}", got_array, found, f"the bound of '{found['output']}', sums in {accumulate}")]
    lines += _where(found["got"], found["value"], found["bound"], equal_nan=True)
    for what, outside in found["like"][:4]:
        lines.append(f"  looks like {what}; then {outside:,} elements are outside")
    if not found["like"]:
        lines.append(f"  looks like none of the faults that ulplab.reference.{op} knows")
    note(found["worst"][-1], "\n".join(lines))
    return "\n".join(lines)


def _biased(op: str, found: dict[str, Any], dtype: str, u: float) -> list[str]:
    if not _errors.judged(op) or found["value"].size == 0:
        return []
    return _errors.Bias(op, found["got"], found["value"], found["error"], found["bound"], dtype, u).found()


# What all elements outside may have in common.
_KINDS = {1: "", 2: "where NaN was found", 4: "where 0 was found: never written?", 8: "with the sign flipped"}


def _where(got: numpy.ndarray, want: numpy.ndarray, bound: numpy.ndarray, equal_nan: bool) -> list[str]:
    """Where the elements outside are, and what they share."""
    if got.ndim == 0:
        return []
    with numpy.errstate(invalid="ignore"):
        inside = (numpy.abs(got - want) <= bound) & numpy.isfinite(bound)
        inside = numpy.where(numpy.isinf(got) | numpy.isinf(want), got == want, inside)
        inside |= equal_nan & numpy.isnan(got) & numpy.isnan(want)
        flipped = (numpy.abs(got + want) <= bound) & (got * want < 0)
    mask = 1 + 2 * numpy.isnan(got) + 4 * (got == 0) + 8 * flipped
    mask = numpy.where(inside, 0, mask).astype(numpy.uint8)
    if not mask.any():
        return []
    place, kinds = _errors.place(mask)
    words = [place, *(what for bit, what in _KINDS.items() if what and kinds & bit)]
    return [f"  outside: {', '.join(words)}"]


def _measured(got: _native.Array, want: _native.Array, names: list[str], equal_nan: bool) -> list[float | None]:
    native = [name for name in names if name not in ("ulp", "kl")]
    values = dict(zip(native, _native.metrics(got, want, native))) if native else {}
    if "ulp" in names:
        if got.dtype != want.dtype or got.dtype not in _errors.BITS:
            raise TypeError(f"ulp: got is {got.dtype}, want is {want.dtype}, expected the same type, one of {', '.join(_errors.BITS)}")
        values["ulp"] = _errors.ulps(_native.widen(got), _native.widen(want), got.dtype, equal_nan)
    if "kl" in names:
        values["kl"] = _errors.divergence(_native.widen(got), _native.widen(want))
    return [values[name] for name in names]


def _shape(x: _native.Array) -> str:
    return f"{x.dtype}{x.shape}"


def _outside(name: str, got: _native.Array, found: dict[str, Any], bound: str) -> str:
    outside, elements = found["outside"], found["elements"]
    index, value, want, allowed, ratio = found["worst"]
    lines = [f"{name} ({_shape(got)}): {outside:,} of {elements:,} elements are outside {bound}"]
    for kind, words in (("nan", "NaN on one side, or on both without equal_nan"), ("infinite", "infinite on one side")):
        if found[kind]:
            lines.append(f"  {found[kind]:,} of them are {words}")
    worst = f"  worst at {index}: got {value:.9g}, want {want:.9g}"
    if value == want:
        worst += ": the sign of zero is the other one"
    elif not math.isfinite(allowed):
        worst += "; there is no bound, as the inputs are not finite there"
    elif math.isfinite(value - want):
        worst += f", off by {abs(value - want):.4g} where {allowed:.4g} is allowed"
        worst += f", {ratio:.3g} times as much" if math.isfinite(ratio) else ""
    lines.append(worst)
    return "\n".join(lines)


def _warn_of_little(found: dict[str, Any], what: str, depth: int = 4) -> None:
    if found["zeros_pass"]:
        _warn(f"zeros in the place of all {found['elements']:,} elements would be within {what}", depth)
    elif found["constant"] and found["elements"] > 1:
        _warn("all elements that are wanted are equal: what mixes them up is not noticed", depth)


def _warn_of_same(got: Any, want: Any, got_array: _native.Array, want_array: _native.Array) -> None:
    if got is want:
        _warn("got and want are the same tensor")
    elif got_array.address == want_array.address and 0 not in got_array.shape:
        _warn("got and want share their memory")


def _warn(message: str, depth: int = 4) -> None:
    # The caller of `assert_close` is so many frames above.
    warnings.warn(message, UlplabWarning, stacklevel=depth)
