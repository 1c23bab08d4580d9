"""Assertions that two tensors are close."""

from __future__ import annotations

import math
import numbers
from typing import Any, Callable, Iterable

import numpy

from . import _errors, _inputs, _native, _records
from ._tensors import arguments, array, check_operation, check_words, imported_torch, inputs as given_inputs, operations, warn

# Metrics that a limit can be given for, and whether a larger value is better.
_METRICS = dict(_native.limits())

# Assumptions on a kernel's sums: the unit roundoff of an addition, and a clause for messages. Wanted outputs are computed in f64. Their own
# errors are as large as those of a kernel in f64, whose unit counts twice.
_SUMS = {name: (2 * unit if name == "f64" else unit, meaning) for name, unit, meaning in _native.sums()}


class NoGate(ValueError):
    """An assertion without anything to assert."""


def unit(accumulate: str) -> float:
    """The unit roundoff of the type that a kernel adds in."""
    return _sums(accumulate)[0]


def _sums(accumulate: str) -> tuple[float, str]:
    """The unit roundoff of an addition, and a clause that says what is assumed."""
    if accumulate not in _SUMS:
        raise ValueError(f"accumulate = '{accumulate}', expected one of {', '.join(_SUMS)}")
    return _SUMS[accumulate]


def assumed(accumulate: str | None, dtypes: Iterable[str]) -> str:
    """The type that a kernel adds in: the stated one, or else f64 if all of its floating-point tensors are of that type, or else f32."""
    if accumulate is not None:
        unit(accumulate)
        return accumulate
    floating = [name for name in dtypes if name.startswith(("float", "bfloat", "complex"))]
    return "f64" if floating and not narrower(floating) else "f32"


def narrower(dtypes: Iterable[str]) -> bool:
    """True if one of the types is a floating-point type that is narrower than f64."""
    return any(name.startswith(("float", "bfloat", "complex")) and name not in ("float64", "complex128") for name in dtypes)


class _Missing:
    """An argument that was not given."""

    def __repr__(self) -> str:
        return "..."


_MISSING = _Missing()


def assert_close(
    got: Any = _MISSING,
    want: Any = None,
    rtol: float | None = None,
    atol: float | None = None,
    *,
    op: str | Callable[..., Any] | None = None,
    inputs: Any = None,
    output: str | None = None,
    accumulate: str | None = None,
    rounds: str = "end",
    grads: dict[str, Any] | None = None,
    grad_output: Any = None,
    mean_error: str | None = "warn",
    equal_nan: bool = False,
    dtype: Any = None,
    kernel: Callable[..., Any] | None = None,
    writes: str | int | Iterable[str | int] = (),
    name: str = "got",
    **limits: Any,
) -> None:
    """Raises AssertionError unless ``got`` is close to what is wanted.

    There are three ways to say what is wanted.

    ``assert_close(got, want, rtol=, atol=)``
        Every element: ``|got - want| <= atol + rtol * |want|``, in f64 for all types. What is not given is 0.

    ``assert_close(got, want, cosine=0.999)``
        A metric of the whole tensors, in f64: ``cosine`` and ``sqnr`` (in dB) at least as large as given, ``diff``
        (``1 - 2 <x, y> / (<x, x> + <y, y>)``, DeepGEMM's), ``relative_l2``, ``nsr`` and ``max_abs`` at most. ``ulp``: no
        element of two tensors of the same floating-point type is more such numbers apart; 0 and -0 are none apart. ``kl``: the mean over
        rows of the Kullback-Leibler divergence, in nats, of the softmax of ``got`` from that of ``want``; both are logits [..., C]. With
        ``rtol`` or ``atol``, all must hold.

    ``assert_close(got, op="rmsnorm", inputs=dict(x=x, weight=w, eps=1e-6))``
        No number: what the operation gives is computed in f64, and how far each element may be from it follows from the inputs,
        the type of ``got`` and the type that the kernel adds in (``accumulate``: f32, f64, tf32, f16, bf16, fp8_tensor_core or i32; without
        it, f64 if ``got`` and all floating-point inputs are of that type, else f32).
        Operations and what they take are in ``ulplab.reference``. ``output`` names the output that ``got`` is, if there are several; or
        ``got`` is a dictionary of them, ``{"y": y, "state": state}``. Words such as ``cast="before_weight"`` go into ``inputs`` or stand
        next to them. If all elements are inside, their mean error and mean square are looked at (rmsnorm, rope, silu_and_mul and softmax,
        from 16 rows [..., C] on): what right kernels do not have is an UlplabWarning, an AssertionError if ``mean_error="fail"``, and not
        looked for if
        ``mean_error=None``.

    ``assert_close(got, op=function, inputs=(x, weight))``
        The same for a function of torch, numpy or jax that you wrote as a plain reference: it runs once, with f64 next to every tensor, and
        the rounding errors of its steps reach the outputs through its own derivatives. ``rounds`` says what kernels round: ``"end"``, their output;
        ``"as_written"``, each operation's result in the type that the function gives it; ``"every_step"``, also the steps within softmax and
        norms. A cast in the function is a rounding that a kernel may make. Without ``accumulate``, sums are in f64 only if the function, too,
        computes in nothing else. ``grads={"dx": 0}`` names gradients of inputs, by position or by
        name, which are judged as outputs are: ``assert_close({"y": y, "dx": dx}, op=function, inputs=(x,), grads={"dx": 0}, grad_output=dy)``;
        the output of a function with one is ``"out"``, and with several they are ``"out0"``, ``"out1"``, … or the keys of its dictionary.
        ValueError, "not judged", if a step has no bound; "not determined", if an element hangs on a decision within its errors.

    ``kernel=`` in the place of ``got`` is called with ``inputs``: ``assert_close(kernel=rmsnorm, op="rmsnorm", inputs=...)``. What is
    wanted is computed from copies that were made before, and the assertion fails if the kernel has changed an input that ``writes`` does
    not name. A kernel that gives nothing gives what it writes to. `ulplab.snapshot` is for calls that are made elsewhere.

    ``dtype`` is the type that ``got`` must have (``"bfloat16"``, ``torch.bfloat16``, ...); ``"any"`` asks for none. Without it, ``got``
    must hold all numbers of the type of ``want`` (unless that is float64, as a reference has it) or, with ``op``, of the first input, or of
    the input of the output's name; inputs of 8 bits and fewer, and integers, promise no type.

    Shapes must be equal; nothing is broadcast. A NaN is wrong unless it meets a NaN and ``equal_nan`` is given (with ``op``, it may meet
    one); an infinity must meet the same infinity. An UlplabWarning tells of assertions that say little: if zeros would pass, too, if all
    wanted elements are equal, or all of an input.

    ValueError, "not judged", if nothing is compared: there are no elements, all are NaN on both sides, ``got`` is the memory of ``want`` or
    of an input, or a limit is one that no numbers can break, such as ``atol=inf`` or ``cosine=-1``.
    """
    __tracebackhide__ = True
    if isinstance(op, str):
        check_operation(op)
    elif op is not None and not callable(op):
        raise TypeError(f"assert_close: op = {op!r}, expected the name of an operation or a function")
    if limits:
        _check_words(limits, None if callable(op) else op)
    if kernel is not None:
        if got is not _MISSING:
            raise TypeError("assert_close: give either got or kernel")
        if inputs is None:
            raise TypeError("assert_close: give inputs, with which the kernel is called")
        inputs = _inputs.Snapshot(inputs, writes)
        got = _inputs.called(kernel, inputs.live, inputs.writes)
    elif got is _MISSING:
        raise TypeError("assert_close: give got, or kernel and inputs")
    elif writes:
        raise TypeError("assert_close: writes= is for kernel=, or for ulplab.snapshot(inputs, writes)")
    if isinstance(inputs, _inputs.Snapshot):
        inputs.check("the kernel")
    if op is not None and (want is not None or rtol is not None or atol is not None):
        raise TypeError("assert_close: give either op and inputs, or want with rtol and atol")
    if callable(op):
        if limits:
            raise TypeError(f"assert_close: {', '.join(limits)} is for tensors that are compared with each other, or for a named operation")
        how = {"accumulate": accumulate, "rounds": rounds, "dtype": _type_name(dtype), "grads": grads, "grad_output": grad_output}
        _by_function(got, op, inputs, how, output, name)
        return
    if grads is not None or grad_output is not None or rounds != "end":
        raise TypeError("assert_close: grads, grad_output and rounds are for op=function")
    if op is not None:
        if mean_error not in ("warn", "fail", None):
            raise ValueError(f"mean_error = {mean_error!r}, expected 'warn', 'fail' or None")
        outputs = got if isinstance(got, dict) else {output: got}
        if not outputs or isinstance(got, dict) and output is not None:
            raise TypeError("assert_close: give a tensor and the name of its output, or a dictionary of outputs by their names")
        given: Any = {**(inputs or {}), **limits} if isinstance(inputs or {}, dict) else inputs
        call: dict[str, Any] = {"op": op, "output": output, "accumulate": accumulate, "mean_error": mean_error, "dtype": _type_name(dtype)}
        wrong = []
        # An output may be empty, such as the state of a convolution of width 1, if another is not.
        empty = [output for output, one in outputs.items() if len(outputs) > 1 and 0 in array(one, name).shape]
        for output, one in outputs.items():
            if output in empty and len(empty) < len(outputs):
                continue
            live = {} if isinstance(inputs, _inputs.Snapshot) else given
            wrong.append(_by_operation(one, given, {**call, "output": output}, name, live))
        if any(wrong):
            raise AssertionError("\n".join(lines for lines in wrong if lines))
        return
    if want is None:
        raise TypeError("assert_close: 'want' is missing; or give op and inputs")
    if rtol is None and atol is None and not limits:
        raise NoGate("assert_close: give rtol, atol, a metric such as diff=1e-3, or op and inputs")
    for limit, value in {"rtol": rtol, "atol": atol, **limits}.items():
        if value is not None or limit in limits:
            _check_limit(limit, value)
    got_array, want_array = array(got, name), array(want, "want")
    if got_array.shape != want_array.shape:
        raise AssertionError(f"{name} is {_errors.shape(got_array)}, want is {_errors.shape(want_array)}")
    wanted = None if isinstance(got, (list, tuple, int, float)) or isinstance(want, (list, tuple, int, float)) else want_array.dtype
    check_type(got_array, None if wanted is None else of_numpy(wanted, got_array), dtype, name, "want")
    _check_elements(got_array, name)
    _check_memory(got, want, got_array, want_array)
    if "cosine" in limits and math.prod(want_array.shape) == 1:
        raise ValueError("not judged: cosine of one element is that of its sign; give rtol")
    if "kl" in limits and want_array.shape[-1:] == [1]:
        raise ValueError("not judged: kl of one column is 0, since its share is always 1")
    for limit, value in {"atol": atol, **limits}.items():
        why = None if value is None else _native.vacuous_between(limit, float(value), got_array, want_array)
        if why:
            raise ValueError(f"not judged: {why}")
    if equal_nan and bool(numpy.isnan(_native.widen(want_array)).all()):
        raise ValueError(f"not judged: all {math.prod(want_array.shape):,} elements of want are NaN, which any NaN meets")
    said = []
    worst, ratio, finite = None, None, True
    if rtol is not None or atol is not None:
        rtol, atol = rtol or 0.0, atol or 0.0
        found = _native.close(got_array, want_array, rtol, atol, equal_nan)
        warn_of_little(found, f"rtol = {rtol:g}, atol = {atol:g}")
        finite = found["finite"]
        if found["outside"]:
            said += _errors.outside(name, got_array, found, f"|got - want| <= {atol:g} + {rtol:g} * |want|")
            worst, ratio = found["worst"][0], found["worst"][-1]
    if limits:
        values = _native.metrics(got_array, want_array, list(limits), equal_nan)
        for (metric, limit), value in zip(limits.items(), values):
            higher = _METRICS[metric]
            # A value that is not a number passes nothing.
            if value is None or not (value >= limit if higher else value <= limit):
                bound = "at least" if higher else "at most"
                shown = "not defined" if value is None else f"{value:.6g}"
                said.append(f"{metric} of {name} ({_errors.shape(got_array)}) is {shown}, expected {bound} {limit:g}")
        # Of all metrics only this one is a number where none is finite.
        if "ulp" in limits and rtol is None:
            finite = bool(numpy.isfinite(_native.widen(want_array)).any())
        if rtol is None and not said and _native.constant(got_array) == 0:
            warn("all elements are 0: a kernel that writes nothing passes, too")
    if not said and not finite:
        raise ValueError(f"not judged: {name} and want have no finite number in {math.prod(want_array.shape):,} elements")
    asked = f"rtol = {rtol}, atol = {atol}" if rtol is not None else ""
    asked = ", ".join([asked] * bool(asked) + [f"{metric} = {limit}" for metric, limit in limits.items()])
    call = {"rtol": rtol, "atol": atol, "equal_nan": equal_nan, "dtype": _type_name(dtype), **limits}
    _records.note(name, asked, ratio, "\n".join(said), {"got": got, "want": want}, call, worst=worst)
    if said:
        raise AssertionError("\n".join(said))


def _check_words(given: Iterable[str], op: str | None) -> None:
    """TypeError for an argument that is none of assert_close, no metric, and nothing that the operation takes."""
    __tracebackhide__ = True
    own = arguments(assert_close)
    if op is None:
        check_words("assert_close", given, [*own, *_METRICS])
    else:
        check_words(f"assert_close(op='{op}')", given, [*(word for word, *_ in _takes(op)), *own])


def _check_limit(name: str, value: Any) -> None:
    """ValueError for a limit that is no number, or that nothing can break."""
    if isinstance(value, (bool, numpy.bool_)) or not isinstance(value, numbers.Real):
        raise ValueError(f"{name} = {value!r}, expected a number")
    if name in ("rtol", "atol") and not float(value) >= 0:
        raise ValueError(f"{name} = {value}, expected a number of at least 0")
    why = _native.vacuous(name, float(value))
    if why:
        raise ValueError(f"not judged: {why}")


# Bits of the exponent and of the fraction. A type holds all numbers of another if it has as many of both.
_FLOATS = {
    "float64": (11, 52),
    "float32": (8, 23),
    "float16": (5, 10),
    "bfloat16": (8, 7),
    "float8_e4m3fn": (4, 3),
    "float8_e5m2": (5, 2),
    "float8_e8m0fnu": (8, 0),
}
# Types that inputs are quantized to: what a kernel makes of them has a type of its own.
_CODES = ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")


def dtypes_of(arguments: Iterable[Any]) -> list[str]:
    """The names of the types of all tensors among arguments, also in lists and dictionaries."""
    found = []
    for x in arguments:
        if isinstance(x, (list, tuple, dict)):
            found += dtypes_of(x.values() if isinstance(x, dict) else x)
        elif hasattr(x, "dtype") and not isinstance(x, numpy.generic):
            found.append(_type_name(x.dtype) or "")
    return found


def _type_name(dtype: Any) -> str | None:
    """The name of a type of any library."""
    if dtype is None or isinstance(dtype, str):
        return dtype
    name = getattr(dtype, "__name__", None) or getattr(dtype, "name", None) or str(dtype)
    return str(name).rpartition(".")[2]


def _holds(dtype: str, wanted: str) -> bool:
    """True if a type has every number of another."""
    if wanted not in _FLOATS:
        # Integers and booleans are compared as numbers; a float in their place is not an index, and is refused where it must be one.
        return True
    return dtype in _FLOATS and all(has >= needs for has, needs in zip(_FLOATS[dtype], _FLOATS[wanted]))


def of_numpy(wanted: str, got: _native.Array) -> str | None:
    """The type of a reference in numpy, unless it is numpy's own: in that one it is computed, and a kernel may store another."""
    return None if wanted == "float64" and got.dtype in _FLOATS else wanted


def check_type(got: _native.Array, wanted: str | None, asked: Any, name: str, of: str) -> None:
    """AssertionError if ``got`` is of another type than it must be."""
    __tracebackhide__ = True
    dtype = _type_name(asked)
    if dtype == "any":
        return
    if dtype is not None:
        if dtype not in _native.types():
            raise ValueError(f"dtype = {asked!r}, expected 'any' or one of {', '.join(_native.types())}")
        if got.dtype != dtype:
            raise AssertionError(f"{name} is {_errors.shape(got)}, expected {dtype}, as dtype= says")
    elif wanted is not None and not _holds(got.dtype, wanted):
        raise AssertionError(
            f"{name} is {_errors.shape(got)}, expected {wanted}, as {of} is, or a type with all its numbers; "
            f"if it is meant, say dtype='{got.dtype}', or dtype='any'"
        )


def _check_elements(got: _native.Array, name: str) -> None:
    if 0 in got.shape:
        raise ValueError(f"not judged: {name} is {_errors.shape(got)}, which has no elements to compare")


def _check_memory(got: Any, want: Any, got_array: _native.Array, want_array: _native.Array) -> None:
    """ValueError if a tensor is compared with itself."""
    if got is want:
        raise ValueError("not judged: got and want are the same tensor")
    if _inputs.overlapping(got_array, want_array):
        raise ValueError("not judged: got and want share their memory; compare with a copy that was made before")


def _takes(op: str) -> list[tuple[str, str, str]]:
    """The inputs of an operation: name, kind and default of each."""
    return [takes[:3] for takes in operations()[op]["takes"]]


def _by_operation(got: Any, inputs: dict[str, Any], call: dict[str, Any], name: str, live: dict[str, Any]) -> str:
    """The message on an output that is wrong; empty for a right one."""
    __tracebackhide__ = True
    op, output, accumulate, mean_error = (call[word] for word in ("op", "output", "accumulate", "mean_error"))
    given, got_array = given_inputs(inputs), array(got, name)
    accumulate = assumed(accumulate, dtypes_of([*given.values(), got_array]))
    call = {**call, "accumulate": accumulate}
    u = unit(accumulate)
    found = _native.judge(op, got_array, given, u, output)
    _check_judged(found, given, op, name)
    # What is outside is an error of that kind, and a view of what is only moved, such as a transposed state, overwrites nothing.
    for one, value in ({} if found["outside"] or found["exact"] else live).items():
        # Copies of the module's own, as of a list, are nobody's memory.
        if isinstance(given.get(one), _native.Array) and (value is got or _inputs.overlapping(got_array, given[one])):
            raise ValueError(
                f"not judged: {name} is the memory of the input '{one}', which the kernel has overwritten; "
                "say kernel= for got, with writes=, or take ulplab.snapshot(inputs) before the call"
            )
    wanted, of = _wanted_type(op, found["output"], given)
    if call["dtype"] is None and got_array.dtype not in _FLOATS:
        # Indices, tokens, maps. Integers have no spacing that would widen a bound.
        wanted = None
    check_type(got_array, wanted, call["dtype"], name, of)
    warn_of_little(found, f"the bound of {op}")
    _warn_of_constant(op, given)
    kept = {"got": got, **inputs}

    def note(ratio: float | None, message: str, verdict: str = "") -> None:
        _records.note(name, f"op = {op}", ratio, message, kept, call, verdict, found["worst"] and found["worst"][0])

    if not found["outside"]:
        ratio = found["ratio"]
        if found["together"]:
            message = "\n".join(f"{op}: {name} ({_errors.shape(got_array)}): {line}" for line in found["together"])
            note(ratio, message)
            return message
        leaning = _errors.biased(_errors.mean_errors(op, found, found["got"], got_array.dtype, u)) if mean_error else []
        message = "\n".join(f"{op}: {name} ({_errors.shape(got_array)}): {line}" for line in leaning)
        note(ratio, message, "" if not message or mean_error == "fail" else "warning")
        if message and mean_error == "warn":
            warn(message)
            return ""
        return message
    lines = _errors.outside(f"{op}: {name}", got_array, found, f"the bound of '{found['output']}', {_sums(accumulate)[1]}")
    if accumulate == "f64" and not _native.judge(op, got_array, given, unit("f32"), output)["outside"]:
        found["like"].append(("accumulate = f32", 0, True))
    if not found["like"]:
        lines.append(f"  looks like none of the faults that ulplab.reference.{op} knows")
    lines += [f"  {line}" for line in _errors.explained(found["like"], found["worst"][-1])]
    note(found["worst"][-1], "\n".join(lines))
    return "\n".join(lines)


def _by_function(got: Any, function: Callable[..., Any], inputs: Any, how: dict[str, Any], output: str | None, name: str) -> None:
    """Raises AssertionError for outputs that are not within the bound of a function of torch."""
    __tracebackhide__ = True
    imported_torch("assert_close")
    if inputs is None:
        raise TypeError("assert_close: give inputs, with which the function is called: a tuple, or a dictionary by name")
    args, named = _inputs.split(inputs)
    from ._judged import Asked, assert_function

    # An output that is None is not there, as in a function that gives one of several.
    several = isinstance(got, (tuple, list))
    outputs = {one: x for one, x in _inputs.outputs(got, output or "out").items() if x is not None or not several}
    if not outputs:
        raise TypeError("assert_close: give a tensor, or a dictionary of outputs by their names")
    arrays = {one: (tensor, array(tensor, name if one == "out" else one)) for one, tensor in outputs.items()}
    given = {_inputs.said(at): x for at, x in enumerate(args)} | {f"input '{word}'": x for word, x in named.items()}
    held = {said: array(x, said) for said, x in given.items() if hasattr(x, "__dlpack__")}
    for one, (_, found) in arrays.items():
        # An output may be empty if another is not.
        if all(0 in each.shape for _, each in arrays.values()):
            _check_elements(found, one)
        for said in (said for said, x in held.items() if _inputs.overlapping(found, x)):
            raise ValueError(
                f"not judged: {one} is the memory of {said}: the kernel gives its input as it is, or has overwritten it; "
                "say kernel= in the place of got, or give inputs that were copied before the call"
            )
    assert_function(arrays, Asked(function, inputs, **how))


def _check_judged(found: dict[str, Any], given: dict[str, Any], op: str, name: str) -> None:
    """ValueError if an operation was asked about no numbers."""
    if found["value"].size == 0:
        raise ValueError(f"not judged: {op}: {name} is {list(found['value'].shape)}, which has no elements to compare")
    if not found["outside"] and bool(numpy.isnan(found["value"]).all()):
        raise ValueError(f"not judged: {op}: all {found['value'].size:,} elements of '{found['output']}' are NaN, which any NaN meets")
    for word, kind, default in _takes(op):
        tensor = given.get(word)
        # A state that no token changes is compared; a sum of nothing is 0 by any kernel.
        if not found["value"].any() and kind == "tensor" and not default and isinstance(tensor, _native.Array) and 0 in tensor.shape:
            raise ValueError(f"not judged: {op}: '{word}' is {tensor.dtype}{tensor.shape}, which has no elements to compute from")


def _wanted_type(op: str, output: str, given: dict[str, Any]) -> tuple[str | None, str]:
    """The type that an output must have the numbers of, and the input that has it: the one of its name, a state, or else the first."""
    names = [takes for takes, kind, _ in _takes(op) if kind == "tensor" and isinstance(given.get(takes), _native.Array)]
    first = output if output in names else next(iter(names), "")
    dtype = given[first].dtype if first else None
    return (None if dtype in _CODES or dtype not in _FLOATS or dtype == "float64" else dtype), f"'{first}'"


def _warn_of_constant(op: str, given: dict[str, Any]) -> None:
    """Warns of an input that says little: a kernel that ignores it, or fills it, is not noticed."""
    first = next((takes for takes, kind, _ in _takes(op) if kind == "tensor" and isinstance(given.get(takes), _native.Array)), None)
    same = None if first is None else _native.constant(given[first])
    if same is not None:
        warn(
            f"all elements of '{first}' are {same:g}: a kernel that ignores it, or has filled it, is not noticed; "
            "kernel= in the place of got compares inputs before and after the call"
        )


def warn_of_little(found: dict[str, Any], what: str) -> None:
    """Warns of a comparison that zeros would pass, or whose elements are all equal."""
    if found["zeros_pass"]:
        warn(f"zeros in the place of all {found['elements']:,} elements would be within {what}")
    elif found["constant"] and found["elements"] > 1:
        warn("all elements that are wanted are equal: what mixes them up is not noticed")
