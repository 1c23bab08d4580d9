"""Faults that an assertion would let pass: it is asked again with faults in what it passed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Iterable

import numpy

from . import _native, reference
from ._close import _type_name, narrower
from ._tensors import imported_torch

# How many times as large a tensor is when a gate is asked what gain it notices.
_GAINS = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 9.0)


def _copy(x: Any) -> Any:
    return x.clone() if hasattr(x, "clone") else x.copy()


def _roll(x: Any, axis: int) -> Any:
    return x.roll(1, axis) if hasattr(x, "clone") else numpy.roll(x, 1, axis)


def _with(x: Any, index: Any, value: Any) -> Any:
    x = _copy(x)
    x[index] = value
    return x


def _tile(x: Any) -> int:
    return min(16, max(1, int(x.shape[-1]) // 2))


def _stale_row(x: Any) -> Any:
    return _with(x, -1, _copy(x[-2])) if x.ndim > 1 and x.shape[0] > 1 else None


# Each makes a faulty tensor of a right one, or gives None where it cannot.
FAULTS: dict[str, Callable[[Any], Any]] = {
    "all zeros": lambda x: _with(x, ..., 0),
    "twice too large": lambda x: x * 2,
    "5 % too large": lambda x: x * 1.05,
    "all signs flipped": lambda x: -x,
    "everywhere the mean": lambda x: _with(x, ..., x.mean()),
    "rows moved on by one": lambda x: _roll(x, 0) if x.ndim > 1 and x.shape[0] > 1 else None,
    "columns moved on by one": lambda x: _roll(x, x.ndim - 1) if x.shape[-1] > 1 else None,
    "last columns not written (zeros)": lambda x: _with(x, (..., slice(-_tile(x), None)), 0),
    "last row that of the one before": _stale_row,
    "one element NaN": lambda x: _with(x, (-1,) * x.ndim, float("nan")),
    "one element 0": lambda x: _with(x, (-1,) * x.ndim, 0),
}


def _tensor(x: Any) -> Any:
    """Arrays of jax, lists and tuples as numpy arrays, whose elements can be changed."""
    is_jax = type(x).__module__.partition(".")[0] in ("jax", "jaxlib")
    return numpy.asarray(x) if is_jax or isinstance(x, (list, tuple)) else x


def _is_tensor(x: Any) -> bool:
    """True for a tensor of real numbers, in which faults can be planted."""
    if isinstance(x, numpy.ndarray):
        # bfloat16 is not a floating type of numpy's.
        floating = numpy.issubdtype(x.dtype, numpy.floating) or x.dtype.name == "bfloat16"
        return floating and x.size > 1 and x.ndim > 0
    floating = getattr(x, "is_floating_point", None)
    # Tensors of 8-bit floats have no arithmetic.
    return callable(floating) and bool(floating()) and x.ndim > 0 and x.numel() > 1 and "float8" not in str(x.dtype)


def _plain(x: Any) -> numpy.ndarray:
    if hasattr(x, "detach"):
        x = x.detach().cpu().double().numpy()
    return numpy.asarray(x, numpy.float64)


@dataclass
class Place:
    """The result for the assertions at a line."""

    gate: str
    calls: int = 0
    #: Calls that passed and were not asked again: they compare no two tensors of floating-point numbers of the same shape.
    not_asked: int = 0
    #: For each fault, how often it was planted, and how often it passed.
    faults: dict[str, list[int]] = field(default_factory=dict)
    #: The largest gain that passed, in any call.
    gain: float = 0.0
    #: The smallest rtol = atol that passes all calls.
    needed: float = 0.0
    #: For each fault that passed, the largest rtol = atol that notices it in every call.
    noticing: dict[str, float] = field(default_factory=dict)

    def survivors(self) -> list[str]:
        """Faults that passed in at least one call, those that always did first."""
        passed = {fault: passes / planted for fault, (planted, passes) in self.faults.items() if passes}
        return sorted(passed, key=lambda fault: -passed[fault])

    def join(self, other: Place) -> None:
        """Adds what was found in another process."""
        self.calls += other.calls
        self.not_asked += other.not_asked
        for fault, counts in other.faults.items():
            mine = self.faults.setdefault(fault, [0, 0])
            mine[0] += counts[0]
            mine[1] += counts[1]
        self.gain = max(self.gain, other.gain)
        self.needed = max(self.needed, other.needed)
        for fault, tolerance in other.noticing.items():
            self.noticing[fault] = min(tolerance, self.noticing.get(fault, tolerance))

    def lines(self, where: str) -> list[str]:
        """The report of this line."""
        calls = "1 call" if self.calls == 1 else f"{self.calls} calls"
        lines = [f"{where}: {self.gate}, {calls}"]
        survivors = self.survivors()
        if self.not_asked:
            lines[0] += f", and {self.not_asked} that compare no two tensors of floating-point numbers of the same shape"
        if not self.calls:
            return [lines[0]]
        if not self.faults:
            return [lines[0] + ": no fault changes these values"]
        if not survivors:
            return [lines[0] + ": notices every fault"]
        for fault in survivors:
            planted, passed = self.faults[fault]
            lines.append(f"    lets pass: {fault}{'' if passed == planted else f' ({passed} of {planted})'}")
        if self.gain:
            lines.append(f"    largest gain that passes: {self.gain:.2g}")
        # Twice what the values need leaves room for another seed.
        tolerance = 2 * self.needed
        still = [fault for fault in survivors if self.noticing.get(fault, 0.0) <= tolerance]
        noticed = "all of them" if not still else f"all but: {', '.join(still)}"
        if len(still) < len(survivors) and self.needed > 0:
            lines.append(f"    rtol = atol = {tolerance:.2g} passes these values, twice over, and notices {noticed}")
        return lines


def _distance(got: numpy.ndarray, want: numpy.ndarray) -> float:
    """The smallest rtol = atol with which they are close."""
    with numpy.errstate(invalid="ignore"):
        off = numpy.abs(got - want) / (1 + numpy.abs(want))
        same = (got == want) | numpy.isnan(got) & numpy.isnan(want)
    off = numpy.where(same, 0.0, off)
    return float("inf") if numpy.isnan(off).any() else float(off.max(initial=0.0))


def ask(gate: Callable[[Any], bool], got: Any, want: Any, place: Place) -> None:
    """Asks a gate that has passed ``got`` what it says of faults in it. ``gate`` says whether a tensor passes."""
    got, want = _tensor(got), _tensor(want)
    if not _is_tensor(got) or not _is_tensor(want) or got.shape != want.shape:
        place.not_asked += 1
        return
    place.calls += 1
    plain = _plain(want)
    place.needed = max(place.needed, _distance(_plain(got), plain))
    for name, make in FAULTS.items():
        wrong = make(got)
        if wrong is None or _distance(_plain(wrong), _plain(got)) == 0.0:
            continue
        counts = place.faults.setdefault(name, [0, 0])
        counts[0] += 1
        if gate(wrong):
            counts[1] += 1
            noticing = _distance(_plain(wrong), plain)
            place.noticing[name] = min(noticing, place.noticing.get(name, noticing))
    passing = [gain for gain in _GAINS if gate(got * (1 + gain))]
    place.gain = max([place.gain, *passing])


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
