"""The steps of a function in f64, and the rounding errors that a right kernel may add at each.

A `Tape` holds the steps of one run. It can run again with random roundings, for a standard deviation of every element, and with derivatives,
for the bound of single elements.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, Iterable, Iterator

from . import _native
from ._torch import Tensor, torch

# A bound is this many standard deviations, as that of a named operation is.
LAMBDA = 8.0
# The deviation of a rounding that is at most 1: uniform errors.
_UNIFORM = 3**-0.5
# The smallest normal number of f32, and what is small enough to have terms below it.
_FLUSHED = 2.0**-126
_SMALL = 2.0**-100
# A step with fewer distinct numbers than this share of its elements has many equal roundings.
_DISTINCT = 8
# Size of the sample from which the number of distinct numbers is estimated.
_SAMPLE = 4096

# Errors of steps with at most this many elements are kept.
_KEPT = 1 << 18

# Operations that give the same elements another shape.
_SHAPES = ("view", "_unsafe_view", "reshape", "_reshape_alias", "unsqueeze", "squeeze")

_LOCAL = {name: (kind, units) for name, kind, units in _native.local_errors()}


def place(name: str, line: str) -> str:
    """An operation, with the user's line that calls it, if that is known."""
    return f"{name} ({line})" if line else name


def kind(name: str) -> str | None:
    """The kind of the local error of an ATen operation; None if ulplab does not know the operation."""
    return _LOCAL[name][0] if name in _LOCAL else None


class Unknown(Exception):
    """A step that has no bound, and the reason."""


class Value:
    """A tensor of the tape: f64 in the place of floating-point types, else as it is."""

    __slots__ = ("z", "exact", "spread", "peak", "needs_spread")

    def __init__(self, z: Tensor, exact: bool) -> None:
        self.z = z
        #: True if all kernels have exactly these numbers.
        self.exact = exact
        #: Standard deviation of the draws, if a step asks for it.
        self.spread: Tensor | None = None
        #: How far the farthest draw is off.
        self.peak: Tensor | None = None
        self.needs_spread = False

    @property
    def floating(self) -> bool:
        return bool(self.z.is_floating_point())


@dataclasses.dataclass(slots=True)
class Step:
    """One operation on values."""

    #: Name of the ATen operation of the user's function, and the line that calls it.
    name: str
    line: str
    call: Callable[..., Any]
    args: tuple[Any, ...]
    outs: tuple[Value, ...]
    #: Largest rounding error of each element of the first output, and the standard deviation; None if the step rounds nothing.
    local: Callable[[], tuple[Tensor, Tensor]] | None = None
    #: Call with other derivatives at kinks: it also takes how far the arguments may be off.
    kinked: Callable[..., Any] | None = None
    #: True if outputs are chosen by comparing numbers that have errors.
    decides: bool = False
    #: True if the errors take as long as the step, and are kept.
    costly: bool = False
    #: The type that the step converts to.
    cast: Any = None
    #: The type that the result is rounded to besides.
    narrow: Any = None
    #: Bound of the product of the errors of two arguments.
    second: Callable[[], Tensor] | None = None
    _kept: tuple[Tensor, Tensor] | None = None
    _varied: bool | None = None

    @property
    def varied(self) -> bool:
        """False if many elements are equal, and so are their roundings."""
        if self._varied is None:
            self._varied = distinct(self.outs[0].z)
        return self._varied

    def errors(self) -> tuple[Tensor, Tensor]:
        """The largest rounding error and the deviation of each element of the first output. What is infinite has no error."""
        if self._kept is not None:
            return self._kept
        assert self.local is not None
        with torch.no_grad():
            finite = torch.isfinite(self.outs[0].z)
            worst, deviation = self.local()
            # Kernels may flush numbers below the smallest normal one to 0.
            small = (self.outs[0].z != 0) & (self.outs[0].z.abs() < _SMALL)
            flushed = torch.where(small, _FLUSHED, 0.0)
            worst, deviation = (torch.where(finite, one + flushed, 0.0).nan_to_num(0.0, 0.0, 0.0) for one in (worst, deviation))
            if self.narrow is not None:
                half = torch.where(finite, half_spacing(self.outs[0].z, self.narrow), 0.0)
                worst, deviation = worst + half, torch.hypot(deviation, half * _UNIFORM)
        if self.costly or worst.numel() <= _KEPT:
            self._kept = worst, deviation
        return worst, deviation


def walk(args: Any, found: Callable[[Value], Any]) -> Any:
    """The arguments, with what ``found`` returns for a value in its place."""
    if isinstance(args, Value):
        return found(args)
    if isinstance(args, (list, tuple)):
        return type(args)(walk(one, found) for one in args)
    return args


def values(args: Any) -> Iterator[Value]:
    """All values among arguments."""
    if isinstance(args, Value):
        yield args
    elif isinstance(args, (list, tuple)):
        for one in args:
            yield from values(one)


def half_spacing(z: Tensor, dtype: Any) -> Tensor:
    """Half the spacing of the numbers of a type around each element."""
    info = torch.finfo(dtype)
    exponent = torch.frexp(z).exponent - 1
    least = math.frexp(info.tiny)[1] - 1
    return torch.ldexp(torch.full_like(z, info.eps / 2), exponent.clamp(min=least))


class Tape:
    """The steps of a function, in order. ``u`` is the unit roundoff of the type that kernels compute in."""

    def __init__(self, u: float) -> None:
        self.u = u
        self.steps: list[Step] = []
        self._makers: dict[int, Step] = {}
        #: What the function was doing when the next step is added.
        self.name = self.line = ""
        #: Unit roundoff of the type in which kernels have a number that the function states.
        self.scalar = u
        #: The type that every step's result is rounded to; None if steps are rounded as kernels compute.
        self.narrow: Any = None

    # Steps.

    def leaf(self, z: Tensor) -> Value:
        """A tensor that all kernels are given."""
        return Value(z.detach().to(torch.float64, copy=True) if z.is_floating_point() else z.detach().clone(), True)

    def step(self, call: Callable[..., Any], *args: Any, **more: Any) -> Value:
        """Adds a step, and returns its value."""
        (out,) = self.steps_of(call, *args, **more)
        return out

    def steps_of(self, call: Callable[..., Any], *args: Any, **more: Any) -> tuple[Value, ...]:
        """Adds a step that may give several values."""
        given = walk(args, lambda value: value.z)
        with torch.no_grad():
            result = call(*given)
        several = isinstance(result, (tuple, list))
        exact = all(value.exact for value in values(args)) and more.get("local") is None
        if more.get("decides") and exact:
            more["decides"] = False
        outs = tuple(Value(one, exact) for one in (result if several else (result,)))
        if not exact or any(True for _ in values(args)):
            more.setdefault("narrow", self.narrow if more.get("local") is not None else None)
            made = Step(self.name, self.line, call, args, outs, **more)
            self.steps.append(made)
            self._makers.update((id(out), made) for out in outs)
        return outs

    def exact(self, call: Callable[..., Any], *args: Any) -> Value:
        """A step that moves or selects values."""
        return self.step(call, *args)

    def units(self, name: str, call: Callable[..., Any], *args: Any, extra: float = 0.0, **more: Any) -> Value:
        """A step whose local error is in the table of ATen operations, and ``extra`` units of it more."""
        relative, slope, absolute = _LOCAL[name][1]
        first = next(values(args))
        out: list[Value] = []

        def local() -> tuple[Tensor, Tensor]:
            z = out[0].z.abs()
            of = first.z.abs() if name.startswith("exp") else z.log().abs().nan_to_num(0.0, 0.0, 0.0)
            worst = self.u * ((relative + extra + (slope * of if slope else 0.0)) * z).clamp(min=absolute)
            return worst, worst * _UNIFORM

        out.append(self.step(call, *args, local=local, **more))
        return out[0]

    def constant(self, x: Any) -> float:
        """The relative error, in units, of a number that the function states: 0 if kernels have it exactly."""
        if isinstance(x, Value) or self.u == 0 or not math.isfinite(float(x)):
            return 0.0
        mantissa = math.frexp(float(x))[0] / (2 * self.scalar)
        return self.scalar / self.u if mantissa != int(mantissa) else 0.0

    def state(self, z: Tensor) -> Value:
        """Numbers that the function states, which kernels have in the type that they compute in."""
        value = self.leaf(z)
        mantissa = torch.frexp(value.z).mantissa / (2 * self.u)
        off = torch.where(mantissa == mantissa.round(), 0.0, self.u * value.z.abs())
        return self.step(torch.clone, value, local=lambda: (off, off * _UNIFORM)) if bool(off.any()) else value

    def number(self, x: Any) -> Any:
        """A number that the function states, as kernels have it where they only select it: in f32, unless they compute in more."""
        if not isinstance(x, float) or not math.isfinite(x) or 0 < self.u < 2.0**-24:
            return x
        return torch.tensor(x, dtype=torch.float32).item()

    def add(self, a: Any, b: Any) -> Value:
        x, y = (a, b) if isinstance(a, Value) else (b, a)
        out: list[Value] = []
        off = 0.0 if isinstance(y, Value) else self.constant(y) * abs(float(y))

        def local() -> tuple[Tensor, Tensor]:
            worst = self.u * (out[0].z.abs() + off)
            return worst, worst * _UNIFORM

        nothing = not isinstance(y, Value) and y == 0
        out.append(self.step(torch.add, x, y, local=None if nothing else local))
        return out[0]

    def neg(self, a: Any) -> Any:
        return self.exact(torch.neg, a) if isinstance(a, Value) else -a

    def sub(self, a: Any, b: Any) -> Value:
        return self.add(a, self.neg(b))

    def mul(self, a: Any, b: Any) -> Value:
        x, y = (a, b) if isinstance(a, Value) else (b, a)
        if not isinstance(y, Value) and abs(y) > 0 and math.frexp(float(y))[0] in (0.5, -0.5):
            return self.exact(torch.mul, x, y)
        return self.units("mul", torch.mul, x, y, extra=self.constant(y), **self.both(x, y, torch.mul))

    def both(self, a: Any, b: Any, product: Callable[..., Any]) -> dict[str, Any]:
        """The bound of the product of the errors of two factors, if both have errors."""
        if not (isinstance(a, Value) and isinstance(b, Value)) or a.exact or b.exact:
            return {}
        a.needs_spread = b.needs_spread = True
        return {"second": lambda: product(self.off(a), self.off(b)).abs().nan_to_num(0.0, 0.0, 0.0)}

    def div(self, a: Any, b: Any) -> Value:
        if not isinstance(b, Value) and math.frexp(float(b))[0] in (0.5, -0.5):
            return self.exact(torch.div, a, b)
        if isinstance(a, Value):
            return self.units("div", torch.div, a, b, extra=self.constant(b))
        return self.units("div", lambda b: float(a) / b, b, extra=self.constant(a))

    def square(self, a: Value) -> Value:
        return self.mul(a, a)

    def fn(self, name: str, a: Value) -> Value:
        """A function of one argument: exp, log, tanh, sqrt, …"""
        function = getattr(torch, name)
        if name not in ("sqrt", "rsqrt", "log", "log2", "log10"):
            return self.units(name, function, a)
        # Sums of squares and of exponentials are not negative in any kernel.
        return self.units(name, lambda x: function(torch.where((x < 0) & (a.z >= 0), -x, x)), a)

    def cast(self, a: Value, dtype: Any) -> Value:
        """A conversion to a type that may round."""
        out: list[Value] = []

        def local() -> tuple[Tensor, Tensor]:
            z = out[0].z
            worst = torch.where((z.to(dtype).to(z.dtype) == z) & out[0].exact, 0.0, half_spacing(z, dtype))
            return worst, worst * _UNIFORM

        most = torch.finfo(dtype).max * (1 + torch.finfo(dtype).eps / 4)
        if bool(((a.z.abs() > most) & torch.isfinite(a.z)).any()):
            raise Unknown(f"a conversion to {str(dtype).removeprefix('torch.')} that overflows")
        if a.exact and bool(torch.equal(a.z.to(dtype).to(a.z.dtype), a.z)):
            return a
        out.append(self.step(torch.clone, a, local=local, narrow=None, cast=dtype))
        return out[0]

    def unstored(self, value: Value, dtype: Any) -> Value:
        """An output before it is converted to its type, which is a rounding of the output's own."""
        step = self._makers.get(id(value))
        return step.args[0] if step is not None and step.cast == dtype and isinstance(step.args[0], Value) else value

    def again(self, value: Value) -> Value:
        """The value as a kernel would have it that computes it a second time, by another formula: its last rounding is another one."""
        step, at = self._makers.get(id(value)), value
        while step is not None and step.local is None and step.name in _SHAPES and isinstance(step.args[0], Value):
            at = step.args[0]
            step = self._makers.get(id(at))
        if step is None or step.local is None or at is not step.outs[0]:
            return value
        made, shape = step, value.z.shape
        return self.step(torch.clone, value, local=lambda: tuple(one.reshape(shape) for one in made.errors()))

    # Sums.

    def sum(self, x: Value, dims: Iterable[int] | None = None, keepdim: bool = False) -> Value:
        """A sum over dimensions, in any order."""
        at = sorted({dim % max(x.z.ndim, 1) for dim in dims}) if dims else list(range(x.z.ndim))
        if not at:
            return x
        count = math.prod(x.z.shape[dim] for dim in at)

        def total(z: Tensor) -> Tensor:
            return z.sum(at, keepdim=keepdim)

        def wide() -> Tensor | float:
            if count <= 64:
                return 1.0
            rows = x.z.movedim(at, list(range(-len(at), 0))).reshape(-1, count)
            factors = self.widening(rows)
            return factors.reshape(total(x.z).shape)

        return self.linear(total, wide, x)

    def linear(self, call: Callable[[Tensor], Tensor], wide: Callable[[], Any], x: Value) -> Value:
        """A sum of numbers of one tensor, each as it is."""
        return self.summed(call, lambda: (call(x.z.abs()), call(x.z.square()), call((x.z != 0).double())), wide, x)

    def summed(
        self,
        call: Callable[..., Any],
        terms: Callable[[], tuple[Tensor, Tensor, Tensor]],
        wide: Callable[[], Tensor | float],
        *args: Any,
        **more: Any,
    ) -> Value:
        """A sum of terms: ``terms`` returns the sums of their magnitudes and squares, and how many are not 0."""
        out: list[Value] = []

        def local() -> tuple[Tensor, Tensor]:
            magnitudes, squares, counts = terms()
            z = out[0].z
            worst = self.u * counts * magnitudes * (1 + counts * self.u) + torch.where(magnitudes < _SMALL, counts * _FLUSHED, 0.0)
            factor = torch.as_tensor(wide(), dtype=z.dtype, device=z.device)
            deviation = self.u * (counts * (z.square() + squares)).sqrt() * factor
            return worst, torch.minimum(worst, deviation)

        out.append(self.step(call, *args, local=local, costly=True, **more))
        return out[0]

    def widening(self, rows: Tensor) -> Tensor:
        """For each row of terms, the factor by which equal roundings widen the deviation of its sum."""
        found = _native.widening(rows.detach().cpu().contiguous().numpy(), self.u) if self.u else 1.0
        return torch.as_tensor(found, dtype=rows.dtype, device=rows.device)

    def bilinear(self, call: Callable[[Tensor, Tensor], Tensor], wide: Callable[[], Any], a: Value, b: Value) -> Value:
        """A sum of products of two tensors, each once."""

        def terms() -> tuple[Tensor, Tensor, Tensor]:
            x, y = a.z, b.z
            counts = call((x != 0).double(), (y != 0).double())
            return call(x.abs(), y.abs()), call(x.square(), y.square()), counts

        return self.summed(call, terms, wide, a, b, **self.both(a, b, lambda x, y: call(x, y)))

    # Runs.

    def off(self, value: Value) -> Tensor:
        """How far a value may be off: eight standard deviations of the draws."""
        if value.exact or value.spread is None:
            return torch.zeros_like(value.z)
        return (LAMBDA * value.spread).nan_to_num(0.0, 0.0, 0.0)

    def draw(self, seed: int, scale: float = 1.0, fixed: bool = False) -> Callable[[Value], Tensor]:
        """Runs the steps with random roundings, ``scale`` times as large; with ``fixed``, decisions are those of the exact run."""
        found: dict[int, Tensor] = {}

        def of(value: Value) -> Tensor:
            return found.get(id(value), value.z)

        with torch.no_grad():
            for number, step in enumerate(self.steps):
                if all(out.exact for out in step.outs):
                    continue
                result = step.call(*walk(step.args, of))
                outs = list(result) if isinstance(result, (tuple, list)) else [result]
                if step.local is not None:
                    worst, deviation = step.errors()
                    noise = deviation * _noise(outs[0], number, seed, same=not (step.costly and seed % 2))
                    outs[0] = outs[0] + scale * torch.minimum(torch.maximum(noise, -worst), worst)
                if fixed and step.decides:
                    # Numbers next to chosen indices stay those of this draw.
                    outs = [one if out.floating and len(outs) > 1 else out.z for one, out in zip(outs, step.outs)]
                for one, out in zip(outs, step.outs):
                    found[id(out)] = one
        return of

    def spread(self, draws: int, kept: list[Value]) -> None:
        """Measures the deviation of values that need it, and of ``kept``, over some draws."""
        wanted = {id(out): out for step in self.steps for out in step.outs if out.needs_spread and not out.exact}
        wanted |= {id(value): value for value in kept if not value.exact}
        for value in wanted.values():
            value.spread, value.peak = torch.zeros_like(value.z), torch.zeros_like(value.z)
        for seed in range(draws):
            of = self.draw(seed)
            for value in wanted.values():
                assert value.spread is not None and value.peak is not None
                off = torch.where(of(value) == value.z, 0.0, of(value) - value.z).abs()
                # Where the numbers themselves are infinite or undefined, nothing is off; where only a draw is, anything may be.
                off = torch.where(torch.isfinite(value.z), off.nan_to_num(math.inf, math.inf), 0.0)
                value.spread = torch.hypot(value.spread, off * draws**-0.5)
                value.peak = torch.maximum(value.peak, off)

    def derive(self) -> tuple[Callable[[Value], Tensor], list[tuple[Step, Tensor]]]:
        """Runs the steps with derivatives. Returns the tensors of all values, and those of the steps that round."""
        found: dict[int, Tensor] = {}
        rounds: list[tuple[Step, Tensor]] = []

        def of(value: Value) -> Tensor:
            return found.get(id(value), value.z)

        with torch.enable_grad():
            for step in self.steps:
                if all(out.exact for out in step.outs):
                    continue
                given = walk(step.args, of)
                if step.kinked is not None:
                    result = step.kinked(*given, *(self.off(value) for value in values(step.args)))
                else:
                    result = step.call(*given)
                outs = list(result) if isinstance(result, (tuple, list)) else [result]
                for one, out in zip(outs, step.outs):
                    if out.floating and not one.requires_grad:
                        one = one.detach().requires_grad_()
                    found[id(out)] = one
                if step.local is not None and step.outs[0].floating:
                    rounds.append((step, found[id(step.outs[0])]))
        return of, rounds


def distinct(z: Tensor) -> bool:
    """False if many elements are equal, and so are their roundings."""
    flat = z.detach().reshape(-1)
    if flat.numel() > _SAMPLE:
        at = torch.arange(_SAMPLE, device=flat.device, dtype=torch.float64) * (flat.numel() * 0.6180339887498949 % 1 + flat.numel() / _SAMPLE)
        flat = flat[at.remainder(flat.numel()).long()]
    flat = flat[flat != 0]
    return bool(_DISTINCT * flat.unique().numel() >= flat.numel())


_PRIME = -0x61C8864680B583EB  # 2**64 / the golden ratio, as a signed number


def _noise(z: Tensor, number: int, seed: int, same: bool) -> Tensor:
    """Random numbers of mean 0 and deviation 1 that a hash gives. With ``same``, equal numbers of a step get equal roundings;
    without, they do not, as equal sums of different terms."""
    bits = z.contiguous().view(torch.int64)
    if not same:
        bits = bits ^ torch.arange(z.numel(), device=z.device).reshape(z.shape) * _PRIME
    salt = ((number * 0x9E3779B97F4A7C15 + seed * 0xD1B54A32D192ED03 + 0x2545F4914F6CDD1D) & (2**64 - 1)) - 2**63
    bits = (bits ^ salt) * _PRIME
    # Shifts fill up with the sign, which is masked out.
    bits ^= (bits >> 32) & 0xFFFFFFFF
    bits *= -0x4B47D0C5E2A2F5C7
    bits ^= (bits >> 29) & 0x7FFFFFFFF
    # The sum of two uniform numbers of 32 bits: rounding errors have no long tails.
    total = (bits & 0xFFFFFFFF) + ((bits >> 32) & 0xFFFFFFFF)
    return (total.double() - (2.0**32 - 1)) * (math.sqrt(6) / 2.0**32)
