"""Assertions that two tensors are close."""

from __future__ import annotations

import math
import warnings
from typing import Any

from . import _native
from ._tensors import UlplabWarning, array, inputs as given_inputs

# Metrics that a limit can be given for, and whether a larger value is better.
_METRICS = {
    "cosine": True,
    "sqnr": True,
    "diff": False,
    "relative_l2": False,
    "nsr": False,
    "max_abs": False,
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
        (``1 - 2 <x, y> / (<x, x> + <y, y>)``, DeepGEMM's), ``relative_l2``, ``nsr`` and ``max_abs`` at most. With ``rtol`` or ``atol``, both
        must hold.

    ``assert_close(got, op="rmsnorm", inputs=dict(x=x, weight=w, eps=1e-6))``
        No number: what the operation gives is computed in f64, and how far each element may be from it follows from the inputs,
        the type of ``got`` and the type that the kernel adds in (``accumulate``: f32, f64, tf32, f16, bf16, fp8_tensor_core or i32). Operations
        and what they take are in ``ulplab.reference``. ``output`` names the output that ``got`` is, if there are several; or ``got`` is a
        dictionary of them, ``{"y": y, "state": state}``. Words such as ``cast="before_weight"`` go into ``inputs`` or stand beside them.

    Shapes must be equal; nothing is broadcast. A NaN is wrong unless it meets a NaN and ``equal_nan`` is given (with ``op``, it may meet one);
    an infinity must meet the same infinity. An UlplabWarning tells of assertions that say little: if zeros would pass, too, if all wanted
    elements are equal, or if ``got`` and ``want`` are the same memory.
    """
    __tracebackhide__ = True
    if op is not None:
        if want is not None or rtol is not None or atol is not None:
            raise TypeError("assert_close: give either op and inputs, or want with rtol and atol")
        outputs = got if isinstance(got, dict) else {output: got}
        if not outputs or isinstance(got, dict) and output is not None:
            raise TypeError("assert_close: give a tensor and the name of its output, or a dictionary of outputs by their names")
        given = {**given_inputs(inputs or {}), **given_inputs(limits)}
        wrong = [_by_operation(one, op, given, output, accumulate, name) for output, one in outputs.items()]
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
    if rtol is not None or atol is not None:
        rtol, atol = rtol or 0.0, atol or 0.0
        if not (rtol >= 0 and atol >= 0):
            raise ValueError(f"rtol = {rtol}, atol = {atol}, expected numbers of at least 0")
        found = _native.close(got_array, want_array, rtol, atol, equal_nan)
        _warn_of_little(found, f"rtol = {rtol:g}, atol = {atol:g}")
        if found["outside"]:
            said.append(_outside(name, got_array, found, f"|got - want| <= {atol:g} + {rtol:g} * |want|"))
    if limits:
        values = _native.metrics(got_array, want_array, list(limits))
        for (metric, limit), value in zip(limits.items(), values):
            higher = _METRICS[metric]
            # A value that is not a number passes nothing.
            if value is None or not (value >= limit if higher else value <= limit):
                bound = "at least" if higher else "at most"
                shown = "not defined" if value is None else f"{value:.6g}"
                said.append(f"{metric} of {name} ({_shape(got_array)}) is {shown}, expected {bound} {limit:g}")
    if said:
        raise AssertionError("\n".join(said))


def _by_operation(
    got: Any, op: str, given: dict[str, Any], output: str | None, accumulate: str, name: str
) -> str:
    """What is wrong with an output, if anything."""
    __tracebackhide__ = True
    got_array = array(got, name)
    found = _native.judge(op, got_array, given, unit(accumulate), output)
    _warn_of_little(found, f"the bound of {op}", depth=5)
    if not found["outside"]:
        return ""
    lines = [_outside(f"{op}: {name}", got_array, found, f"the bound of '{found['output']}', sums in {accumulate}")]
    for what, outside in found["like"][:4]:
        lines.append(f"  looks like {what}; then {outside:,} elements are outside")
    if not found["like"]:
        lines.append(f"  looks like none of the faults that ulplab.reference.{op} knows")
    return "\n".join(lines)


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
    if not math.isfinite(allowed):
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
