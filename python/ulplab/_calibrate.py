"""Size and power of a gate: how often it fails what is right, and which faults it notices."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable

import numpy

from . import _draws, _errors, _inputs, _native, reference
from ._close import _check_judged, unit
from ._tensors import array, inputs as given_inputs

# Gains that are tried: 2^-24, a unit roundoff of f32, to 1.
_GAINS = tuple(2.0**power for power in range(-24, 1))
# What numbers such as eps are multiplied by.
_FACTORS = (1.001, 1.01, 1.1, 2.0, 10.0, 100.0)
# What makes an output of a fault, of what an operation is given and what it gives; None if it has none.
_Fault = Callable[[dict[str, Any], dict[str, Any]], "numpy.ndarray | None"]
# Seeds on which faults are tried: each computes the operation again.
_FAULT_SEEDS = 10


@dataclass(frozen=True)
class Calibration:
    """The size and the power of a gate, measured with a right kernel on drawn inputs. ``print`` shows all of it."""

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

    def __str__(self) -> str:
        quantiles = [float(numpy.quantile(self.ratios, q)) for q in (0.5, 0.9, 0.99, 1.0)]
        seeds, percent = len(self.ratios), f"{100 * self.confidence:g} %"
        lines = [
            f"{self.op}, {self.dtype}, {seeds:,} seeds",
            "  error / bound: median {:.3g}, 90 % {:.3g}, 99 % {:.3g}, largest {:.3g}".format(*quantiles),
        ]
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
    op: str,
    seeds: int = 1000,
    *,
    inputs: Callable[[numpy.random.Generator], dict[str, Any]] | None = None,
    output: str | None = None,
    accumulate: str = "f32",
    alarms: float = 1e-2,
    confidence: float = 0.95,
    writes: str | Iterable[str] = (),
) -> Calibration:
    """Measures a gate on a kernel that is right: its size (how often it fails the kernel) and its power (what it notices).

    ``kernel(**given)`` gives the output, of the shape that ``ulplab.reference.OP`` gives. ``inputs(rng)`` draws what it is given; without
    it, float32 arrays of 24 to 32 rows are drawn. Three gates are measured: the ``bound`` (an error larger than it fails), the
    ``threshold`` (the ratio of error and bound that at most a share of ``alarms`` of such draws passes, with ``confidence``), and the
    ``bias`` (the mean error, and the mean square). A threshold is measured, not extrapolated: a rate p takes about 3/p seeds for 95 %. It
    holds for this kernel and such inputs. ``writes`` names inputs that the kernel may write to; any other must be as it was after the call.

    Raises ValueError if an argument is out of its range, inputs do not fit, or there is nothing to judge; AssertionError if an output has
    another shape, or the kernel has overwritten an input.
    """
    if isinstance(seeds, bool) or not isinstance(seeds, numbers.Integral) or seeds < 1:
        raise ValueError(f"seeds = {seeds!r}, expected an integer of at least 1")
    for name, value in (("alarms", alarms), ("confidence", confidence)):
        if not 0 < value < 1:
            raise ValueError(f"{name} = {value!r}, expected a number between 0 and 1")
    u, draw = unit(accumulate), inputs or _draws.of(op)
    ratios, biases, failed = numpy.zeros(seeds), [], {"bound": 0, "threshold": 0, "bias": 0}
    samples, dtype = [], ""
    for seed in range(seeds):
        before = _inputs.Snapshot(draw(numpy.random.default_rng(seed)), writes)
        returned = _inputs.called(kernel, before.live, before.writes)
        before.check(f"seed {seed}: the kernel")
        got = array(returned[output] if isinstance(returned, dict) and output is not None else returned, "kernel(...)")
        given = given_inputs(before)
        found, dtype = _native.judge(op, got, given, u, output), got.dtype
        _check_judged(found, given, op, "kernel(...)")
        ratios[seed] = found["ratio"]
        failed["bound"] += bool(found["outside"])
        errors = _errors.mean_errors(op, found, found["got"], dtype, u)
        if errors is not None:
            mean = max(abs(errors["gain"]), abs(errors["offset"]))
            biases.append((mean, mean / errors["allowed"] if errors["allowed"] else 0.0))
            failed["bias"] += bool(_errors.biased(errors))
        if seed < _FAULT_SEEDS:
            samples.append((given, found))
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
        op=op,
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
    _power(found, samples, output, accumulate)
    return found


def _power(found: Calibration, samples: list[tuple[dict[str, Any], dict[str, Any]]], output: str | None, accumulate: str) -> None:
    """Tries every fault, gain and factor on the first seeds."""
    operation = next(known for known in reference.operations() if known["name"] == found.op)
    u, gates = unit(accumulate), list(found.failed)

    def outcome(wrong: numpy.ndarray, right: dict[str, Any]) -> dict[str, bool]:
        ratio = _native.compare(wrong, right["value"], right["bound"])["ratio"]
        noticed = {"bound": ratio > 1, "threshold": found.threshold is not None and ratio > found.threshold, "bias": False}
        if "bias" in gates:
            noticed["bias"] = bool(_errors.biased(_errors.mean_errors(found.op, right, wrong, found.dtype, u)))
        return noticed

    def computed(given: dict[str, Any], shape: tuple[int, ...], fault: str | None = None) -> numpy.ndarray | None:
        outputs = _native.expected(found.op, given, found.dtype, u, fault)
        values = next(value for name, value, *_ in outputs if output in (None, name))
        return _native.rounded(values, found.dtype) if values.shape == shape else None

    def tried(make: _Fault) -> dict[str, list[bool]]:
        said: dict[str, list[bool]] = {gate: [] for gate in gates}
        for given, right in samples:
            wrong = make(given, right)
            # A change of no stored element is not a fault.
            if wrong is None or numpy.array_equal(wrong, _native.rounded(right["value"], found.dtype), equal_nan=True):
                continue
            for gate, noticed in outcome(wrong, right).items():
                if gate in said:
                    said[gate].append(noticed)
        return said

    for gate in gates:
        found.faults[gate], found.factors[gate], found.gains[gate] = {}, {}, math.inf
    for fault, _ in operation["faults"]:
        for gate, said in tried(lambda given, right: computed(given, right["value"].shape, fault)).items():
            if said:
                found.faults[gate][fault] = sum(said) / len(said)

    def smallest(sizes: tuple[float, ...], make: Callable[[float], _Fault], keep: Callable[[str, float], None]) -> None:
        # From the largest down: what is noticed must be noticed at every larger size, too.
        left = set(gates)
        for size in sorted(sizes, reverse=True):
            said = tried(make(size))
            left = {gate for gate in left if len(said[gate]) == len(samples) and all(said[gate])}
            for gate in left:
                keep(gate, size)
            if not left:
                break

    smallest(
        _GAINS,
        lambda gain: lambda given, right: _native.rounded(numpy.asarray(right["got"] * (1 + gain)), found.dtype),
        lambda gate, gain: found.gains.__setitem__(gate, gain),
    )
    for name, kind, default, _ in operation["takes"]:
        value = samples[0][0].get(name, default)
        # Whole numbers count something: twice as many is another question, or none.
        if kind != "number" or isinstance(value, numbers.Integral) or value in ("", "None", "0", 0.0):
            continue

        def scaled(factor: float, name: str = name, default: str = default) -> _Fault:
            def make(given: dict[str, Any], right: dict[str, Any]) -> numpy.ndarray | None:
                return computed({**given, name: float(given.get(name, default)) * factor}, right["value"].shape)

            return make

        def keep(gate: str, factor: float, name: str = name) -> None:
            found.factors[gate][name] = factor

        try:
            # One that must be whole, or is too large, is refused.
            for factor in (_FACTORS[0], _FACTORS[-1]):
                scaled(factor)(*samples[0])
        except ValueError:
            continue
        for gate in gates:
            found.factors[gate][name] = math.inf
        smallest(_FACTORS, scaled, keep)
