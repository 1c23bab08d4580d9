"""Size and power of a gate: how often it fails what is right, and which faults it notices."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Iterator, Protocol, Sequence

import numpy

from . import _draws, _errors, _inputs, _native, reference
from ._close import _check_judged, assumed, dtypes_of, narrower, unit
from ._tensors import array, check_operation, imported_torch, inputs as given_inputs

# Gains that are tried: 2^-24, a unit roundoff of f32, to 1.
_GAINS = tuple(2.0**power for power in range(-24, 1))
# What numbers such as eps are multiplied by.
_FACTORS = (1.001, 1.01, 1.1, 2.0, 10.0, 100.0)
# Seeds on which faults are tried: each computes the operation again.
_FAULT_SEEDS = 10


@dataclass(frozen=True)
class Calibration:
    """The size and the power of a gate, measured with a right kernel on drawn inputs. ``print`` shows all of it.

    A kernel that is `outside` its bound is not right, and no threshold of its errors is one for right kernels.
    """

    op: str
    #: The type of the kernel's output.
    dtype: str
    #: The largest error over bound of each seed, the smallest first.
    ratios: numpy.ndarray
    #: The rate of false alarms that the caller wants, and the confidence.
    alarms: float
    confidence: float
    #: The ratio that fails right kernels at most that often; None if the seeds do not support one.
    threshold: float | None
    #: The least number of seeds that the rate needs.
    seeds_needed: int
    #: Least rate of false alarms that these seeds can support with the confidence. The threshold of that rate is the largest ratio
    #: found.
    supported: float
    #: Largest |mean error| over bound of a seed, and largest ratio of a mean error to the allowed one. None if the allowed mean
    #: error is not derived for the operation.
    bias: tuple[float, float] | None
    #: For each gate (``bound``, ``threshold``, ``bias``), how often it failed the kernel.
    failed: dict[str, int]
    #: For each gate and fault, the share of seeds in which it is noticed; faults that change nothing are left out.
    faults: dict[str, dict[str, float]] = field(default_factory=dict)
    #: For each gate, the smallest gain noticed in all seeds that were tried; infinite if none is.
    gains: dict[str, float] = field(default_factory=dict)
    #: For each gate and number of the operation, the smallest factor noticed in all seeds that were tried; infinite if none is.
    factors: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def outside(self) -> float:
        """The share of seeds in which the kernel is outside its bound: 0 for a right kernel, 1 for one that always is."""
        return self.failed["bound"] / len(self.ratios)

    def __str__(self) -> str:
        quantiles = [float(numpy.quantile(self.ratios, q)) for q in (0.5, 0.9, 0.99, 1.0)]
        seeds, percent = len(self.ratios), f"{100 * self.confidence:g} %"
        lines = [
            f"{self.op}, {self.dtype}, {seeds:,} seeds",
            "  error / bound: median {:.3g}, 90 % {:.3g}, 99 % {:.3g}, largest {:.3g}".format(*quantiles),
        ]
        if self.outside:
            times = f"in all {seeds:,} seeds" if self.outside == 1 else f"in {self.failed['bound']:,} of {seeds:,} seeds"
            lines.append(f"  the kernel is outside its bound {times}: it is wrong, or computes otherwise than accumulate= and rounds= say")
            lines.append("  what follows is measured with its errors, and tells nothing of right kernels")
        if self.threshold is None:
            lines.append(
                f"  no threshold for {self.alarms:g} false alarms: that takes {self.seeds_needed:,} seeds; "
                f"these support {self.supported:.2g} for {quantiles[-1]:.3g} ({percent} confidence)"
            )
        else:
            lines.append(f"  threshold {self.threshold:.3g}: at most {self.alarms:g} false alarms, with {percent} confidence")
        if self.bias:
            lines.append(f"  mean error / bound: at most {self.bias[0]:.3g}, {self.bias[1]:.3g} times what is allowed")
        for gate, failed in self.failed.items():
            unnoticed = [f"{fault} ({share:.0%})" for fault, share in self.faults[gate].items() if share < 1]
            all_of = f"{sum(share == 1 for share in self.faults[gate].values())} of {len(self.faults[gate])} faults"
            gain = self.gains[gate]
            lines.append(
                f"  {gate}: size {failed} of {seeds:,}; power: {all_of}, gains {f'from {gain:.2g}' if gain < math.inf else 'none'}"
            )
            for number, factor in self.factors[gate].items():
                lines.append(f"    {number}: {f'{factor:g} times as large' if factor < math.inf else 'no factor up to 100'} is noticed")
            if unnoticed:
                lines.append(f"    not always noticed: {', '.join(unnoticed)}")
        return "\n".join(lines)


def calibrate(
    kernel: Callable[..., Any],
    op: str | Callable[..., Any],
    seeds: int = 1000,
    *,
    inputs: Callable[[numpy.random.Generator], Any] | Sequence[Any] | None = None,
    output: str | None = None,
    accumulate: str | None = None,
    rounds: str = "end",
    alarms: float = 1e-2,
    confidence: float = 0.95,
    writes: str | int | Iterable[str | int] = (),
) -> Calibration:
    """Measures a gate on a kernel that is right: its size (how often it fails the kernel) and its power (what it notices).

    ``kernel(**given)`` gives the output, of the shape that ``ulplab.reference.OP`` gives. ``inputs(rng)`` draws what it is given; without
    it, float32 arrays of 24 to 32 rows are drawn. ``op`` may be a function of torch, a plain reference: then ``inputs(rng)`` draws its
    arguments, a tuple or a dictionary, and ``rounds`` is that of `assert_close`. ``inputs`` may also be a list of such arguments, each
    of which counts as a seed. Three gates are measured: the ``bound`` (an error larger than it fails), the ``threshold`` (the ratio of
    error and bound that at most a share of ``alarms`` of such draws passes, with ``confidence``), and the ``bias`` (the mean error, and
    the mean square; of some named operations). A threshold is measured, not extrapolated: a rate p takes about 3/p seeds for 95 %. It
    holds for this kernel and such inputs; if the kernel is outside its bound in some seeds, ``outside`` has their share, and none of it is to be
    used. ``writes`` names inputs that the kernel may write to; any other must be as it was after the
    call.

    Raises ValueError if an argument is out of its range, inputs do not fit, or there is nothing to judge; AssertionError if an output has
    another shape, or the kernel has overwritten an input.
    """
    for name, value in (("alarms", alarms), ("confidence", confidence)):
        if not 0 < value < 1:
            raise ValueError(f"{name} = {value!r}, expected a number between 0 and 1")
    if inputs is not None and not callable(inputs):
        seeds = len(_listed(inputs))
    if isinstance(seeds, bool) or not isinstance(seeds, numbers.Integral) or seeds < 1:
        raise ValueError(f"seeds = {seeds!r}, expected an integer of at least 1")
    assumed(accumulate, [])
    subject = _Function(op, output, accumulate, rounds) if callable(op) else _Operation(op, output, accumulate)
    if rounds != "end" and not callable(op):
        raise TypeError("calibrate: rounds is for op=function")
    draw: Any = inputs or subject.draw()
    ratios, biases, failed = numpy.zeros(seeds), [], {"bound": 0, "threshold": 0, "bias": 0}
    samples, dtype = [], ""
    for seed in range(seeds):
        drawn = draw(numpy.random.default_rng(seed)) if callable(draw) else draw[seed]
        before = _inputs.Snapshot(drawn, writes)
        returned = _inputs.called(kernel, before.live, before.writes)
        before.check(f"seed {seed}: the kernel")
        sample = subject.judged(returned, before, seed)
        dtype = sample.dtype
        ratios[seed] = sample.ratio
        failed["bound"] += sample.outside
        errors = sample.errors(sample.got)
        if errors is not None:
            mean = max(abs(errors["gain"]), abs(errors["offset"]))
            biases.append((mean, mean / errors["allowed"] if errors["allowed"] else 0.0))
            failed["bias"] += bool(_errors.biased(errors))
        if seed < _FAULT_SEEDS:
            samples.append(sample)
    ratios.sort()
    # The k-th largest of n draws is passed by a share p of all draws or more with probability P(Bin(n, p) < k) (Clopper and Pearson 1934).
    above, seeds_needed = _native.tolerated(seeds, alarms, confidence)
    threshold = float(ratios[seeds - above]) if above else None
    if threshold is None:
        del failed["threshold"]
    else:
        failed["threshold"] = int((ratios > threshold).sum())
    if not biases:
        del failed["bias"]
    found = Calibration(
        op=subject.name,
        dtype=dtype,
        ratios=ratios,
        alarms=alarms,
        confidence=confidence,
        threshold=threshold,
        seeds_needed=seeds_needed,
        supported=1 - (1 - confidence) ** (1 / seeds),
        bias=tuple(max(part) for part in zip(*biases)) if biases else None,
        failed=failed,
    )
    _power(found, samples)
    return found


def _listed(inputs: Any) -> Any:
    """A list of arguments of calls."""
    if not isinstance(inputs, (list, tuple)) or not inputs or not all(isinstance(one, (tuple, list, dict)) for one in inputs):
        raise TypeError(
            "calibrate: inputs is neither a function that draws arguments from a random generator nor a list of arguments, "
            "each a tuple or a dictionary; for one call, say inputs=[(x, w)]"
        )
    return inputs


class _Sample(Protocol):
    """What a kernel gave on one seed, judged."""

    dtype: str
    ratio: float
    outside: bool
    #: What the kernel gave, and what is right in the type of that.
    got: numpy.ndarray
    right: numpy.ndarray

    def errors(self, wrong: numpy.ndarray) -> dict[str, Any] | None:
        """The mean errors; None if they are not derived."""

    def ratio_of(self, wrong: numpy.ndarray) -> float:
        """The largest error over its bound of another output."""

    def faults(self) -> Iterator[tuple[str, numpy.ndarray | None]]:
        """What each fault gives; None if it has another shape."""

    def numbers(self) -> dict[Any, float]:
        """The numbers that the operation is given, by name."""

    def scaled(self, name: Any, factor: float) -> numpy.ndarray | None:
        """What is right for another of these numbers."""


class _Operation:
    """A named operation."""

    def __init__(self, op: str, output: str | None, accumulate: str | None) -> None:
        check_operation(op)
        self.name, self.output, self.accumulate = op, output, accumulate

    def draw(self) -> Any:
        return _draws.of(self.name)

    def judged(self, returned: Any, before: _inputs.Snapshot, seed: int) -> _Sample:
        of_output = isinstance(returned, dict) and self.output is not None
        return _OfOperation(self, array(returned[self.output] if of_output else returned, "kernel(...)"), given_inputs(before))


class _OfOperation:
    """A named operation on one seed."""

    def __init__(self, subject: _Operation, got: _native.Array, given: dict[str, Any]) -> None:
        self.subject, self.given, self.dtype = subject, given, got.dtype
        self.u = unit(assumed(subject.accumulate, dtypes_of([*given.values(), got])))
        self.found = _native.judge(subject.name, got, given, self.u, subject.output)
        _check_judged(self.found, given, subject.name, "kernel(...)")
        self.ratio, self.outside, self.got = self.found["ratio"], bool(self.found["outside"]), self.found["got"]
        self.right = _native.rounded(self.found["value"], self.dtype)

    def errors(self, wrong: numpy.ndarray) -> dict[str, Any] | None:
        return _errors.mean_errors(self.subject.name, self.found, wrong, self.dtype, self.u)

    def ratio_of(self, wrong: numpy.ndarray) -> float:
        return float(_native.compare(wrong, self.found["value"], self.found["bound"])["ratio"])

    def computed(self, given: dict[str, Any], fault: str | None = None) -> numpy.ndarray | None:
        outputs = _native.expected(self.subject.name, given, self.dtype, self.u, fault)
        values = next(value for name, value, *_ in outputs if self.subject.output in (None, name))
        return _native.rounded(values, self.dtype) if values.shape == self.right.shape else None

    def operation(self) -> dict[str, Any]:
        return next(known for known in reference.operations() if known["name"] == self.subject.name)

    def faults(self) -> Iterator[tuple[str, numpy.ndarray | None]]:
        yield from ((fault, self.computed(self.given, fault)) for fault, _ in self.operation()["faults"])

    def numbers(self) -> dict[Any, float]:
        given = {name: self.given.get(name, default) for name, kind, default, _ in self.operation()["takes"] if kind == "number"}
        # Whole numbers count something: twice as many is another question, or none.
        kept = {name: x for name, x in given.items() if not isinstance(x, numbers.Integral) and x not in ("", "None", "0", 0.0)}
        return {name: float(x) for name, x in kept.items()}

    def scaled(self, name: Any, factor: float) -> numpy.ndarray | None:
        return self.computed({**self.given, name: self.numbers()[name] * factor})


class _Function:
    """A function of torch, whose steps have the faults."""

    def __init__(self, function: Callable[..., Any], output: str | None, accumulate: str | None, rounds: str) -> None:
        imported_torch("calibrate")
        from ._functions import name_of

        self.function, self.output, self.accumulate, self.rounds = function, output, accumulate, rounds
        self.name = name_of(function)

    def draw(self) -> Any:
        what = f"a function that draws the arguments of {self.name} from a random generator"
        raise TypeError(f"calibrate: give inputs, {what}, or a list of them")

    def bounds(self, given: Any, accumulate: str | None) -> dict[str, Any]:
        from ._functions import bounds_of

        return bounds_of(self.function, given, accumulate, self.rounds)

    def judged(self, returned: Any, before: _inputs.Snapshot, seed: int) -> _Sample:
        outputs = _inputs.outputs(returned)
        bounds = self.bounds(before, self.accumulate or ("f32" if narrower(dtypes_of([outputs])) else None))
        output = self.output or next(iter(bounds))
        for who, has in ((self.name, bounds), ("the kernel", outputs)):
            if output not in has:
                raise ValueError(f"{who} gives no '{output}', expected one of {', '.join(has)}; say which by output=")
        return _OfFunction(self, array(outputs[output], "kernel(...)"), before, bounds[output], seed)


class _OfFunction:
    """A function of torch on one seed."""

    def __init__(self, subject: _Function, got: _native.Array, before: _inputs.Snapshot, bound: Any, seed: int) -> None:
        from ._judged import judged

        self.subject, self.before, self.bound, self.dtype = subject, before, bound, got.dtype
        found = judged(got, bound, subject.name, "any")
        compared = found.compared()
        self.ratio, self.outside = float(compared["ratio"]), bool(compared["outside"])
        if not self.outside and (why := found.unsaid(subject.name)):
            raise ValueError(f"seed {seed}: {why}")
        self.got = found.got.reshape(bound.value.shape)
        self.right = self.stored(bound.value)

    def stored(self, value: numpy.ndarray) -> numpy.ndarray:
        return _native.rounded(numpy.ascontiguousarray(value, numpy.float64), self.dtype)

    def errors(self, wrong: numpy.ndarray) -> dict[str, Any] | None:
        return None

    def ratio_of(self, wrong: numpy.ndarray) -> float:
        from ._judged import Found

        found = Found(wrong, self.bound, self.dtype, first=True)
        found.settle()
        return float(found.compared()["ratio"])

    def faults(self) -> Iterator[tuple[str, numpy.ndarray | None]]:
        from ._graph_faults import named_results

        for what, wrong in named_results(self.bound._tape, self.bound._value):
            yield what, self.stored(wrong) if wrong.shape == self.right.shape else None

    def numbers(self) -> dict[Any, float]:
        return {_inputs.said(name): x for name, x in self.before.items() if isinstance(x, float) and x != 0 and math.isfinite(x)}

    def scaled(self, name: Any, factor: float) -> numpy.ndarray | None:
        given = {key: x * factor if _inputs.said(key) == name else x for key, x in self.before.items()}
        bound = self.subject.bounds(given, self.bound.accumulate).get(self.bound.name)
        return self.stored(bound.value) if bound is not None and bound.value.shape == self.right.shape else None


def _power(found: Calibration, samples: list[_Sample]) -> None:
    """Tries every fault, gain and factor on the first seeds."""
    gates = list(found.failed)

    def noticed(wrong: numpy.ndarray | None, sample: _Sample) -> dict[str, bool]:
        """The answer of each gate; nothing for a change of no stored element, which is not a fault."""
        if wrong is None or numpy.array_equal(wrong, sample.right, equal_nan=True):
            return {}
        ratio = sample.ratio_of(wrong)
        said = {"bound": ratio > 1, "threshold": found.threshold is not None and ratio > found.threshold}
        if "bias" in gates:
            said["bias"] = bool(_errors.biased(sample.errors(wrong)))
        return {gate: said[gate] for gate in gates}

    for gate in gates:
        found.faults[gate], found.factors[gate], found.gains[gate] = {}, {}, math.inf
    answers: dict[str, list[dict[str, bool]]] = {}
    for sample in samples:
        for fault, wrong in sample.faults():
            answers.setdefault(fault, []).append(noticed(wrong, sample))
    for fault, all_said in answers.items():
        counted = [said for said in all_said if said]
        for gate in gates if counted else ():
            found.faults[gate][fault] = sum(said[gate] for said in counted) / len(counted)

    def smallest(
        sizes: tuple[float, ...], make: Callable[[_Sample, float], numpy.ndarray | None], keep: Callable[[str, float], None]
    ) -> None:
        # From the largest down: what is noticed must be noticed at every larger size, too.
        left = set(gates)
        for size in sorted(sizes, reverse=True):
            all_said = [noticed(make(sample, size), sample) for sample in samples]
            left = {gate for gate in left if all(said.get(gate, False) for said in all_said)}
            for gate in left:
                keep(gate, size)
            if not left:
                break

    smallest(
        _GAINS,
        lambda sample, gain: _native.rounded(numpy.asarray(sample.got * (1 + gain)), found.dtype),
        lambda gate, gain: found.gains.__setitem__(gate, gain),
    )
    for name in samples[0].numbers():
        try:
            # One that must be whole, or is too large, is refused.
            for factor in (_FACTORS[0], _FACTORS[-1]):
                samples[0].scaled(name, factor)
        except ValueError:
            continue
        for gate in gates:
            found.factors[gate][name] = math.inf
        smallest(
            _FACTORS,
            lambda sample, factor: sample.scaled(name, factor),
            lambda gate, factor: found.factors[gate].__setitem__(name, factor),
        )
