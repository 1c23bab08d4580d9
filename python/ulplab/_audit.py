"""Faults of an operation that a gate would let pass: it is asked about the output of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterable

import numpy

from . import _native, reference
from ._close import _type_name, narrower
from ._tensors import imported_torch


@dataclass(frozen=True)
class Audit:
    """The answers of a gate to the faults of an operation."""

    #: The operation.
    op: str
    #: True if the right output passes.
    right_passes: bool
    #: Faults that pass, with descriptions.
    survivors: dict[str, str]
    #: Faults that are noticed, with descriptions.
    noticed: dict[str, str]
    #: Faults that a gate need not notice, since right kernels may give the same: the largest error of each over its bound, 0 without an effect.
    below_bound: dict[str, float]

    def __str__(self) -> str:
        lines = [f"{self.op}: {len(self.noticed)} of {len(self.noticed) + len(self.survivors)} faults are noticed"]
        if not self.right_passes:
            lines.append("    what is right does not pass")
        lines += [f"    lets pass: {name}{f': {doc}' if doc else ''}" for name, doc in self.survivors.items()]
        for name, ratio in self.below_bound.items():
            effect = f"off by {ratio:.2g} times the bound of right kernels at most" if ratio else "it changes no element of the output"
            lines.append(f"    not counted: {name}: {effect}")
        return "\n".join(lines)


def audit(
    gate: Callable[[Any, Any], Any],
    op: str | Callable[..., Any],
    inputs: Any,
    dtype: Any = None,
    output: str | None = None,
    *,
    accumulate: str | None = None,
    rounds: str = "end",
) -> Audit:
    """Asks a gate about every fault of an operation that `ulplab.reference` has, or of the steps of a function of torch, numpy or jax.

    ``gate(got, want)`` is any assertion or function that says whether two tensors are close. It is called with tensors of torch if ``inputs``
    has some, else with arrays of numpy, of the type ``dtype``: without it, that which the function gives, and float32 for a named operation.
    ``accumulate`` and ``rounds`` say how right kernels compute, as in `assert_close`. Faults that give what right kernels may give, too, are
    listed, and not counted.
    """
    if rounds != "end" and not callable(op):
        raise TypeError("audit: rounds is for op=function")
    asked = _of_function(op, inputs, output, dtype, accumulate, rounds) if callable(op) else _of_operation(op, inputs, output, dtype, accumulate)

    right = asked.rounded(asked.right)

    def passes(got: numpy.ndarray) -> bool:
        try:
            said = gate(asked.made(got), asked.made(right))
        except AssertionError:
            return False
        return said is None or bool(said)

    survivors: dict[str, str] = {}
    noticed: dict[str, str] = {}
    below: dict[str, float] = {}
    for fault, doc, wrong in asked.wrongs:
        if wrong.shape != right.shape:
            continue
        wrong = asked.rounded(wrong)
        ratio = 0.0 if numpy.array_equal(wrong, right, equal_nan=True) else asked.ratio_of(wrong)
        if ratio > 1:
            (survivors if passes(wrong) else noticed)[fault] = doc
        else:
            below[fault] = ratio
    name = op if isinstance(op, str) else getattr(op, "__name__", type(op).__name__)
    return Audit(name, passes(right), survivors, noticed, below)


@dataclass(frozen=True)
class _Asked:
    """An operation with its faults, about which a gate is asked."""

    #: The right output, in f64.
    right: numpy.ndarray
    #: The largest error over its bound of another output.
    ratio_of: Callable[[numpy.ndarray], float]
    #: Name, description and output of each fault, in f64.
    wrongs: Iterable[tuple[str, str, numpy.ndarray]]
    #: The type that outputs are stored in, and the device of tensors of torch; None for arrays of numpy.
    dtype: Any
    device: Any

    def rounded(self, value: numpy.ndarray) -> numpy.ndarray:
        """The numbers of an output in its type, in f64."""
        return _native.rounded(numpy.ascontiguousarray(value, numpy.float64), _type_name(self.dtype) or "")

    def made(self, value: numpy.ndarray) -> Any:
        """The tensor that a gate is given for an output."""
        if self.device is None:
            return value.astype(self.dtype if isinstance(self.dtype, (type, numpy.dtype)) else _type_name(self.dtype))
        torch = imported_torch("audit")
        return torch.from_numpy(value.copy()).to(self.device, getattr(torch, _type_name(self.dtype) or ""))


def _of_operation(op: str, inputs: dict[str, Any], output: str | None, dtype: Any, accumulate: str | None) -> _Asked:
    """A named operation, whose faults the registry has."""
    dtype = numpy.float32 if dtype is None else dtype
    name = _type_name(dtype) or ""

    def computed(fault: str | None) -> reference.Expected:
        found = reference.compute(op, accumulate=accumulate, dtype=name, fault=fault, **inputs)
        return found[output or next(iter(found))] if isinstance(found, dict) else found

    def ratio_of(wrong: numpy.ndarray) -> float:
        return float(_native.compare(wrong, right.value, bound)["ratio"])

    right = computed(None)
    bound = right.bound(dtype)
    operation = next(known for known in reference.operations() if known["name"] == op)
    devices = [x.device for x in inputs.values() if type(x).__module__.partition(".")[0] == "torch" and hasattr(x, "device")]
    wrongs = ((fault, doc, computed(fault).value) for fault, doc in operation["faults"])
    return _Asked(right.value, ratio_of, wrongs, dtype, devices[0] if devices else None)


def _of_function(
    function: Callable[..., Any], inputs: Any, output: str | None, dtype: Any, accumulate: str | None, rounds: str
) -> _Asked:
    """A function of torch, numpy or jax, whose steps have the faults."""
    imported_torch("audit")
    from ._functions import bounds_of
    from ._graph_faults import named_results
    from ._judged import Found

    narrow = dtype is not None and narrower([_type_name(dtype) or ""])
    bounds = bounds_of(function, inputs, accumulate or ("f32" if narrow else None), rounds)
    name = output or next(iter(bounds))
    if name not in bounds:
        raise ValueError(f"audit: the function gives no '{name}', expected one of {', '.join(bounds)}")
    bound = bounds[name]
    if bound.unknown:
        raise ValueError(f"not judged: {'; '.join(bound.unknown[:3])}")
    dtype = bound.dtype if dtype is None else dtype

    def ratio_of(wrong: numpy.ndarray) -> float:
        found = Found(wrong, bound, _type_name(dtype) or "", first=True)
        found.settle()
        return float(found.compared()["ratio"])

    wrongs = ((what, "", wrong.astype(numpy.float64)) for what, wrong in named_results(bound._tape, bound._value))
    return _Asked(bound.value.astype(numpy.float64), ratio_of, wrongs, dtype, bound._value.z.device if bound.library == "torch" else None)
