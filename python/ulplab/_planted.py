"""Faults in what a gate passed, and what the gate says of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Iterator

import numpy

# How many times as large a tensor is when a gate is asked what gain it notices.
_GAINS = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 9.0)
# Calls of a line that are asked: in one test, and in all.
CALLS, LINE_CALLS = 8, 64
# Entries of a dictionary or a sequence that are asked.
_ENTRIES = 16
# Elements of a tensor that a gate is asked about, unless an option says more.
ELEMENTS = 1 << 18
# Names of tests that a line of the report has.
_NAMED = 3
# Why an assertion is not asked that compares nothing in which faults can be planted.
NO_PAIR = "it compares no two tensors or numbers of floating point of the same shape"


def _copy(x: Any) -> Any:
    return x.clone() if hasattr(x, "clone") else x.copy()


def _roll(x: Any, axis: int) -> Any:
    return x.roll(1, axis) if hasattr(x, "clone") else numpy.roll(x, 1, axis)


def _with(x: Any, index: Any, value: Any) -> Any:
    x = _copy(x)
    x[index] = value
    return x


def _without_imaginary(x: Any) -> Any:
    x = _copy(x)
    x.imag[...] = 0
    return x


def _tile(x: Any) -> int:
    return min(16, max(1, int(x.shape[-1]) // 2))


def _has(x: Any, rows: bool) -> bool:
    """True if a tensor has several rows, or several columns."""
    return bool(x.ndim > 1 and x.shape[0] > 1 if rows else x.ndim > 0 and x.shape[-1] > 1)


# Each makes a faulty tensor of a right one, or gives None where it cannot.
FAULTS: dict[str, Callable[[Any], Any]] = {
    "all zeros": lambda x: _with(x, ..., 0),
    "twice too large": lambda x: x * 2,
    "5 % too large": lambda x: x * 1.05,
    "all signs flipped": lambda x: -x,
    "everywhere the mean": lambda x: _with(x, ..., x.mean()),
    "rows moved on by one": lambda x: _roll(x, 0) if _has(x, rows=True) else None,
    "columns moved on by one": lambda x: _roll(x, x.ndim - 1) if _has(x, rows=False) else None,
    "last columns not written (zeros)": lambda x: _with(x, (..., slice(-_tile(x), None)), 0) if _has(x, rows=False) else None,
    "last row that of the one before": lambda x: _with(x, -1, _copy(x[-2])) if _has(x, rows=True) else None,
    "imaginary parts not written (zeros)": lambda x: _without_imaginary(x) if "complex" in str(x.dtype) else None,
    "one element NaN": lambda x: _with(x, (-1,) * x.ndim, float("nan")),
    "one element 0": lambda x: _with(x, (-1,) * x.ndim, 0) if _has(x, rows=False) else None,
}


def _tensor(x: Any) -> Any:
    """Arrays of jax, numbers, lists and tuples as numpy arrays, whose elements can be changed."""
    if type(x).__module__.partition(".")[0] in ("jax", "jaxlib") and hasattr(x, "shape"):
        return numpy.array(x)
    if isinstance(x, (float, complex, numpy.inexact)):
        return numpy.array(x)
    if isinstance(x, (list, tuple)) and x and all(isinstance(one, (int, float, complex, list, tuple, numpy.number)) for one in x):
        try:
            return numpy.asarray(x)
        except ValueError:
            return x
    return x


def is_tensor(x: Any) -> bool:
    """True for a tensor of real or complex numbers, in which faults can be planted."""
    if isinstance(x, numpy.ndarray):
        # bfloat16 is not an inexact type of numpy's.
        return (numpy.issubdtype(x.dtype, numpy.inexact) or x.dtype.name == "bfloat16") and x.size > 0
    kinds = [getattr(x, kind, None) for kind in ("is_floating_point", "is_complex")]
    # Tensors of 8-bit floats have no arithmetic.
    return all(map(callable, kinds)) and any(kind() for kind in kinds if kind) and x.numel() > 0 and "float8" not in str(x.dtype)


def has_numbers(x: Any, depth: int = 3) -> bool:
    """True for a tensor of floating-point numbers, for such a number, and for what holds one of them."""
    if isinstance(x, (list, tuple, dict)) and depth:
        return any(has_numbers(one, depth - 1) for one in list(x.values() if isinstance(x, dict) else x)[:_ENTRIES])
    if isinstance(x, (str, bytes, bool, int, type(None))):
        return False
    try:
        return is_tensor(_tensor(x)) or "float8" in str(getattr(x, "dtype", ""))
    except Exception:  # noqa: BLE001 -- an object of the test's that is like a tensor
        return False


def _plain(x: Any) -> numpy.ndarray:
    if hasattr(x, "detach"):
        x = x.detach().cpu().resolve_conj().resolve_neg()
        x = (x.to(dtype=x.dtype.to_complex()) if x.is_complex() else x.double()).numpy()
    return numpy.asarray(x, numpy.complex128 if "complex" in str(x.dtype) else numpy.float64)


def sampled(x: Any, elements: int) -> Any:
    """A view of a tensor with about so many elements at most: rows, then columns, in steps."""
    for axis in range(x.ndim):
        count = int(numpy.prod(x.shape))
        if count <= elements:
            break
        step = min(-(-count // elements), max(1, int(x.shape[axis]) // 2))
        x = x[(slice(None),) * axis + (slice(None, None, step),)]
    return x


def _put(x: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A dictionary or sequence with another entry."""
    if not path:
        return value
    entries = dict(x) if isinstance(x, dict) else list(x)
    entries[path[0]] = _put(entries[path[0]], path[1:], value)
    return type(x)(entries)


def pairs(got: Any, want: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """The entries that two values have in common, with their places: tensors and numbers that can be asked."""
    ours, theirs = _tensor(got), _tensor(want)
    if type(ours) is type(theirs) and type(ours) in (dict, list, tuple) and len(path) < 3:
        keys = [key for key in ours if key in theirs] if isinstance(ours, dict) else list(range(min(len(ours), len(theirs))))
        for key in keys:
            yield from pairs(got[key], want[key], (*path, key))
        return
    if isinstance(theirs, int) and not isinstance(theirs, bool) and getattr(ours, "shape", None) == ():
        theirs = numpy.array(float(theirs))
    if is_tensor(ours) and is_tensor(theirs) and tuple(ours.shape) == tuple(theirs.shape):
        yield path, got, want


@dataclass
class Asked:
    """The answers for the calls of a line in one test."""

    #: Calls that passed, and those of them that were asked again.
    calls: int = 0
    asked: int = 0
    #: For each fault, how often it was planted, and how often it passed.
    faults: dict[str, list[int]] = field(default_factory=dict)
    #: The largest gain that passed, in any call.
    gain: float = 0.0
    #: The smallest rtol = atol that passes all calls.
    needed: float = 0.0
    #: For each fault that passed, the largest rtol = atol that notices it in every call.
    noticing: dict[str, float] = field(default_factory=dict)

    def join(self, other: Asked) -> None:
        """Adds other calls."""
        self.calls += other.calls
        self.asked += other.asked
        for fault, counts in other.faults.items():
            mine = self.faults.setdefault(fault, [0, 0])
            mine[0] += counts[0]
            mine[1] += counts[1]
        self.gain = max(self.gain, other.gain)
        self.needed = max(self.needed, other.needed)
        for fault, tolerance in other.noticing.items():
            self.noticing[fault] = min(tolerance, self.noticing.get(fault, tolerance))

    def survivors(self) -> list[str]:
        """Faults that passed in at least one call, those that always did first."""
        passed = {fault: passes / planted for fault, (planted, passes) in self.faults.items() if passes}
        return sorted(passed, key=lambda fault: -passed[fault])


def _called(test: str) -> str:
    """A test without its file."""
    return test.partition("::")[2] or test


@dataclass
class Place:
    """The answers for the assertions at a line, by test."""

    gate: str
    #: The function that the line stands in, and its text.
    function: str = ""
    text: str = ""
    tests: dict[str, Asked] = field(default_factory=dict)

    @classmethod
    def read(cls, found: dict[str, Any]) -> Place:
        """A place as another process, or a file, has it."""
        return cls(**{**found, "tests": {test: Asked(**one) for test, one in found["tests"].items()}})

    def of(self, test: str) -> Asked:
        """The answers in a test."""
        return self.tests.setdefault(test, Asked())

    def wants(self, test: str) -> bool:
        """True if another call in a test is asked; it is counted."""
        mine = self.of(test)
        mine.calls += 1
        return mine.asked < CALLS and sum(one.asked for one in self.tests.values()) < LINE_CALLS

    def whole(self) -> Asked:
        """The answers in all tests."""
        whole = Asked()
        for one in self.tests.values():
            whole.join(one)
        return whole

    def join(self, other: Place) -> None:
        """Adds what was found in another process."""
        for test, one in other.tests.items():
            self.of(test).join(one)

    def _where(self, fault: str, every: bool) -> str:
        """The tests whose calls let a fault pass, unless all calls of the only test do."""
        names = [_called(test) for test, one in self.tests.items() if one.faults.get(fault, [0, 0])[1]]
        if every and len(self.tests) == 1:
            return ""
        if every and len(names) == len(self.tests) > _NAMED:
            return f" (in all {len(names)} tests)"
        more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return f" (in {', '.join(names[:_NAMED])}{more})"

    def lines(self, where: str) -> list[str]:
        """The report of this line."""
        whole = self.whole()
        calls = "1 call" if whole.calls == 1 else f"{whole.calls} calls"
        if whole.asked != whole.calls:
            calls += f", {whole.asked} of them asked"
        lines = [f"{where}: {self.gate}, {calls}"]
        survivors = whole.survivors()
        if not whole.faults:
            return [lines[0] + ": no fault changes these values"]
        if not survivors:
            return [lines[0] + ": notices every fault"]
        for fault in survivors:
            planted, passed = whole.faults[fault]
            share = "" if passed == planted else f", {passed} of {planted}"
            lines.append(f"    lets pass: {fault}{share}{self._where(fault, passed == planted)}")
        if whole.gain:
            lines.append(f"    largest gain that passes: {whole.gain:.2g}")
        # Twice what the values need leaves room for another seed.
        tolerance = 2 * whole.needed
        still = [fault for fault in survivors if whole.noticing.get(fault, 0.0) <= tolerance]
        noticed = "all of them" if not still else f"all but: {', '.join(still)}"
        if len(still) < len(survivors) and whole.needed > 0:
            lines.append(f"    rtol = atol = {tolerance:.2g} passes these values, twice over, and notices {noticed}")
        return lines


def _distance(got: numpy.ndarray, want: numpy.ndarray) -> float:
    """The smallest rtol = atol with which they are close."""
    with numpy.errstate(invalid="ignore", over="ignore"):
        off = numpy.abs(got - want) / (1 + numpy.abs(want))
        same = (got == want) | numpy.isnan(got) & numpy.isnan(want)
    off = numpy.where(same, 0.0, off)
    return float("inf") if numpy.isnan(off).any() else float(off.max(initial=0.0))


def ask(gate: Callable[[Any, Any], bool], got: Any, want: Any, mine: Asked, elements: int = ELEMENTS) -> str | None:
    """Asks a gate that has passed ``got`` and ``want`` about faults in ``got``. Returns why it cannot be asked, or None.

    ``gate`` says whether two values pass. Of a tensor with more than ``elements`` elements, it is asked about a sample.
    """
    found = list(pairs(got, want))[:_ENTRIES]
    if not found:
        return NO_PAIR
    refused = None
    asked = False
    for path, ours, theirs in found:
        back = type(ours) if isinstance(ours, (float, complex, numpy.inexact)) else None

        def passes(x: Any, y: Any) -> bool:
            return gate(_put(got, path, back(x.item()) if back else x), _put(want, path, y))

        ours, right = _tensor(ours), _tensor(theirs)
        if isinstance(right, numpy.ndarray) and right.ndim == 0 or isinstance(theirs, int):
            right = theirs
        elif int(numpy.prod(ours.shape)) > elements:
            ours, right = sampled(ours, elements), sampled(right, elements)
            if not passes(ours, right):
                refused = f"it refuses a sample of {int(numpy.prod(ours.shape)):,} elements; raise --ulplab-audit-elements"
                continue
        asked = True
        _ask(passes, ours, right, mine)
    mine.asked += asked
    return None if asked else refused


def _ask(passes: Callable[[Any, Any], bool], got: Any, want: Any, mine: Asked) -> None:
    """Plants faults in a tensor, one after another."""
    plain, right = _plain(got), _plain(_tensor(float(want) if isinstance(want, int) else want))
    mine.needed = max(mine.needed, _distance(plain, right))
    for name, make in FAULTS.items():
        wrong = make(got)
        if wrong is None:
            continue
        wrong = numpy.asarray(wrong, got.dtype) if isinstance(got, numpy.ndarray) else wrong
        if _distance(_plain(wrong), plain) == 0.0:
            continue
        counts = mine.faults.setdefault(name, [0, 0])
        counts[0] += 1
        if passes(wrong, want):
            counts[1] += 1
            noticing = _distance(_plain(wrong), right)
            mine.noticing[name] = min(noticing, mine.noticing.get(name, noticing))
    low, high = -1, len(_GAINS)
    while high - low > 1:
        at = (low + high) // 2
        scaled = got * (1 + _GAINS[at])
        low, high = (at, high) if passes(numpy.asarray(scaled, got.dtype) if isinstance(got, numpy.ndarray) else scaled, want) else (low, at)
    mine.gain = max(mine.gain, _GAINS[low] if low >= 0 else 0.0)
