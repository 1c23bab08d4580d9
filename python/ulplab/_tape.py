"""The steps of a function in f64, and the rounding errors that a right kernel may add at each.

A `Tape` holds the steps of one run. It can run again with random roundings, for a standard deviation of every element, and with derivatives,
for the bound of single elements.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Iterable, Iterator

from . import _native
from ._roundings import Draws, half_spacing, rounded
from ._torch import Tensor, torch
from ._values import FLUSHED, LAMBDA, LOCAL, SMALL, UNIFORM, Step, Unknown, Value, parts, walk

# A number whose exponential is 0, and whose products are finite.
_LARGE = 1e30
# Errors of steps are kept within so many bytes, and draws run at the same time whose values take so many.
ROOM = 1 << 28
# Calls that give the same for each of several draws as for one.
_ELEMENTWISE = {
    getattr(torch, name)
    for name in "add sub mul div neg clone square maximum minimum abs exp exp2 expm1 log1p sin cos tanh erf erfc reciprocal atan".split()
}
# Operations whose derivative grows with their argument by as much as they do.
_STEEP = ("exp", "exp2", "expm1", "sinh", "cosh")
# Operations that give whole numbers.
_WHOLE = ("floor", "ceil", "round", "trunc", "sign", "floor_divide")
# Operations that give the same elements another shape.
_SHAPES = ("view", "_unsafe_view", "reshape", "_reshape_alias", "unsqueeze", "squeeze")

#: Steps in order, with their numbers, and the values that no later one of them needs.
Plan = list[tuple[int, Step, list[int]]]
#: The outputs of deciding steps, by the number of the step and the seed of the draw.
Decisions = dict[tuple[int, int], list[Tensor]]
#: Returns the outputs of a step, from its number and from the values that others have made, by identity.
Make = Callable[[int, Step, dict[int, Any]], Iterable[Any]]


class Tape:
    """The steps of a function, in order. ``u`` is the unit roundoff of the type that kernels compute in."""

    def __init__(self, u: float) -> None:
        self.u = u
        self.steps: list[Step] = []
        self._makers: dict[int, Step] = {}
        #: Indices, by the identity of their value: the scores that they are chosen by, and the dimension.
        self.choices: dict[int, tuple[Value, int | None]] = {}
        #: Bytes that are left for errors of steps that are kept.
        self._room = ROOM
        #: What the function was doing when the next step is added.
        self.name = self.line = ""
        #: The number of operations that the function has called.
        self.turn = 0
        #: Unit roundoff of the type in which kernels have a number that the function states.
        self.scalar = u
        #: True if kernels may compute again what a forward pass has not stored.
        self.again_from_sums = False
        #: The type that every step's result is rounded to; None if steps are rounded as kernels compute.
        self.narrow: Any = None

    def maker(self, value: Value) -> Step | None:
        """The step that makes a value; None for one that the function is given."""
        return self._makers.get(id(value))

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
        inputs = tuple(parts(args))
        exact = all(value.exact for value in inputs) and more.get("local") is None
        if more.get("decides") and exact:
            more["decides"] = False
        outs = tuple(Value(one, exact) for one in (result if several else (result,)))
        if inputs or not exact:
            more.setdefault("narrow", self.narrow if more.get("local") is not None else None)
            self._room -= 16 * outs[0].z.numel() if more.get("local") is not None else 0
            more["keeps"] = self._room >= 0 or more.get("costly", False)
            made = Step(self.name, self.line, call, args, inputs, outs, turn=self.turn, **more)
            self.steps.append(made)
            self._makers.update((id(out), made) for out in outs)
        return outs

    def tie(self, out: Value) -> None:
        """Says that the step of a value chooses among equal numbers, so that another choice is as right."""
        step = self.maker(out)
        if step is not None:
            step.decides = step.tied = True
            out.exact = False

    def exact(self, call: Callable[..., Any], *args: Any) -> Value:
        """A step that moves or selects values."""
        return self.step(call, *args)

    def units(self, name: str, call: Callable[..., Any], *args: Any, extra: float = 0.0, **more: Any) -> Value:
        """A step whose local error is in the table of ATen operations, and ``extra`` units of it more."""
        relative, slope, absolute = LOCAL[name][1]
        first = parts(args)[0]
        out: list[Value] = []

        def local() -> tuple[Tensor, Tensor]:
            z = out[0].z.abs()
            units = relative + extra
            if slope:
                units = units + slope * (first.z.abs() if name.startswith("exp") else z.log().abs().nan_to_num(0.0, 0.0, 0.0))
            worst = self.u * (units * z).clamp(min=absolute)
            return worst, worst * UNIFORM

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
        return self.step(torch.clone, value, local=lambda: (off, off * UNIFORM)) if bool(off.any()) else value

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
            return worst, worst * UNIFORM

        nothing = (not isinstance(y, Value) and y == 0) or self.short(x, y)
        out.append(self.step(torch.add, x, y, local=None if nothing else local))
        return out[0]

    def short(self, *args: Any) -> bool:
        """True if all are sixteenths by construction, so small that kernels' sums and products are exact: numbers of places, masks."""
        most = 2.0**-16 / max(self.u, torch.finfo(self.narrow).eps / 2 if self.narrow else 0.0, 2.0**-53)
        return all(self._short(one, most) if isinstance(one, Value) else (16 * one) % 1 == 0 and abs(one) < most for one in args)

    def _short(self, value: Value, most: float) -> bool:
        if value.short is None:
            step = self.maker(value)
            made = value.exact or not value.floating
            if not made and step is not None and step.local is None:
                made = step.name in _WHOLE or all(self._short(one, most) for one in step.inputs)
            z = value.z
            value.short = made and (not value.floating or bool(((16 * z == (16 * z).round()) & (z.abs() < most)).all()))
        return value.short

    def neg(self, a: Any) -> Any:
        return self.exact(torch.neg, a) if isinstance(a, Value) else -a

    def sub(self, a: Any, b: Any) -> Value:
        return self.add(a, self.neg(b))

    def mul(self, a: Any, b: Any) -> Value:
        x, y = (a, b) if isinstance(a, Value) else (b, a)
        if not isinstance(y, Value) and abs(y) > 0 and math.frexp(float(y))[0] in (0.5, -0.5):
            return self.exact(torch.mul, x, y)
        if self.short(x, y):
            return self.exact(torch.mul, x, y)
        return self.units("mul", torch.mul, x, y, extra=self.constant(y), **self.both(x, y, torch.mul))

    def both(self, a: Any, b: Any, product: Callable[..., Any]) -> dict[str, Any]:
        """The bound of the product of the errors of two factors, if both have errors."""
        if not (isinstance(a, Value) and isinstance(b, Value)) or any(one.exact or not one.floating for one in (a, b)):
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
        function = getattr(torch.special, name.removeprefix("special_")) if name.startswith("special_") else getattr(torch, name)
        if name in _STEEP:
            return self.units(name, function, a, **self.beyond(name, function, a))
        if name not in ("sqrt", "rsqrt", "log", "log2", "log10"):
            return self.units(name, function, a)
        logarithm = name.startswith("log")

        def call(x: Tensor, exact: Tensor) -> Tensor:
            # Sums of squares and of exponentials are not negative in any kernel.
            x = torch.where((x < 0) & (exact >= 0), -x, x)
            if not logarithm:
                return function(x)
            # A logarithm of 0 has no error that its infinite derivative would multiply.
            none = (exact == 0) & (x == 0)
            return torch.where(none, -math.inf, function(torch.where(none, 1.0, x)))

        return self.units(name, call, a, Value(a.z, True))

    def beyond(self, name: str, function: Callable[..., Any], a: Value) -> dict[str, Any]:
        """The error of an exponential beyond its derivative, where its argument may be off by as much as 1: by twice the farthest draw."""
        if a.exact or self.u == 0:
            return {}
        a.needs_spread = True

        def second() -> Tensor:
            off = torch.minimum(self.off(a), 2 * a.peak if a.peak is not None else torch.zeros_like(a.z))
            steep = function(a.z).abs() + (0.0 if name in ("exp", "exp2") else 1.0)
            return (steep * (torch.expm1(off) - off)).nan_to_num(0.0, math.inf, 0.0)

        return {"second": second}

    def cast(self, a: Value, dtype: Any) -> Value:
        """A conversion to a type that may round."""
        out: list[Value] = []

        def local() -> tuple[Tensor, Tensor]:
            z = out[0].z
            worst = torch.where((z.to(dtype).to(z.dtype) == z) & out[0].exact, 0.0, half_spacing(z, dtype))
            return worst, worst * UNIFORM

        most = torch.finfo(dtype).max * (1 + torch.finfo(dtype).eps / 4)
        if bool(((a.z.abs() > most) & torch.isfinite(a.z)).any()):
            raise Unknown(f"a conversion to {str(dtype).removeprefix('torch.')} that overflows")
        if a.exact and bool(torch.equal(a.z.to(dtype).to(a.z.dtype), a.z)):
            return a
        out.append(self.step(torch.clone, a, local=local, narrow=None, cast=dtype))
        return out[0]

    def unstored(self, value: Value, dtype: Any) -> Value:
        """An output before it is converted to its type, which is a rounding of the output's own."""
        step = self.maker(value)
        return step.args[0] if step is not None and step.cast == dtype and isinstance(step.args[0], Value) else value

    def again(self, value: Value) -> Value:
        """The value as a kernel would have it that computes it a second time, by another formula: its last rounding is another one."""
        step, at = self.maker(value), value
        while step is not None and step.local is None and step.name in _SHAPES and isinstance(step.args[0], Value):
            at = step.args[0]
            step = self.maker(at)
        if step is None or step.local is None or at is not step.outs[0]:
            return value
        made, shape = step, value.z.shape
        return self.step(torch.clone, value, local=lambda: tuple(one.reshape(shape) for one in made.errors()))

    # Sums.

    def sum(self, x: Value, dims: Iterable[int] | None = None, keepdim: bool = False) -> Value:
        """A sum over dimensions, in any order."""
        at = list(range(x.z.ndim)) if dims is None else sorted({dim % max(x.z.ndim, 1) for dim in dims})
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
            worst = self.u * counts * magnitudes * (1 + counts * self.u) + torch.where(magnitudes < SMALL, counts * FLUSHED, 0.0)
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

    def plan(self, wanted: Iterable[Value], exact: bool = False) -> Plan:
        """The steps that values follow from, in order: their numbers, and which values no later step of them needs. Steps whose outputs
        are exact are among them if ``exact`` says so."""
        needed = {id(value) for value in wanted}
        used: set[int] = set()
        found = []
        for number in range(len(self.steps) - 1, -1, -1):
            step = self.steps[number]
            if (not exact and all(out.exact for out in step.outs)) or not any(id(out) in needed for out in step.outs):
                continue
            here = {id(value) for value in step.inputs}
            unused = {id(out) for out in step.outs} - used
            found.append((number, step, [*(here - used), *unused]))
            needed |= here
            used |= here
        return found[::-1]

    def replay(self, make: Make, plan: Plan, wanted: Iterable[Value]) -> Iterator[tuple[Value, Any]]:
        """Runs the steps of a plan again, and yields each wanted value when it is made."""
        asked = {id(value) for value in wanted}
        found: dict[int, Any] = {}
        for number, step, done in plan:
            for out, one in zip(step.outs, make(number, step, found)):
                found[id(out)] = one
                if id(out) in asked:
                    yield out, one
            for gone in done:
                found.pop(gone, None)

    def draws(
        self, seeds: Iterable[int], wanted: Iterable[Value], scale: float = 1.0, fixed: bool = False, decisions: Decisions | None = None
    ) -> Iterator[tuple[Value, list[int], Tensor]]:
        """Runs the steps with random roundings, ``scale`` times as large, for some seeds at a time. Yields each value that has errors with
        the seeds and what they give, stacked. ``decisions`` takes those of the draws; with ``fixed``, they are those that it has, or those of
        the exact run."""
        wanted, left = list(wanted), list(seeds)
        plan = self.plan(wanted) if wanted and left else []
        live = most = 0
        sizes: dict[int, int] = {}
        for _, step, done in plan:
            sizes.update((id(out), out.z.numel()) for out in step.outs)
            live += sum(out.z.numel() for out in step.outs)
            most = max(most, live)
            live -= sum(sizes.get(one, 0) for one in done)
        size = max(1, ROOM // max(8 * most, 1))
        while left:
            some, left = left[:size], left[size:]
            for value, drawn in self.replay(self._drawing(some, scale, fixed, decisions), plan, wanted):
                yield value, some, drawn.whole()

    def _drawing(self, seeds: list[int], scale: float, fixed: bool, decisions: Decisions | None) -> Make:
        salts: dict[Any, Tensor] = {}

        def make(number: int, step: Step, found: dict[int, Any]) -> list[Draws]:
            with torch.no_grad():
                outs = _untied(step, found, seeds) if step.tied and not fixed else _called(step, found, len(seeds))
                if step.local is not None:
                    z = outs[0].whole()
                    if z.device not in salts:
                        salts[z.device] = torch.tensor(seeds, device=z.device)
                    outs[0] = Draws(whole=rounded(z, *step.errors(), number, salts[z.device], step.costly, scale))
                if step.decides and decisions is not None and not fixed:
                    decisions.update(((number, seed), [one.each()[at] for one in outs]) for at, seed in enumerate(seeds))
                elif step.decides and fixed:
                    exact = [out.z for out in step.outs]
                    of = [(decisions or {}).get((number, seed), exact) for seed in seeds]
                    # Numbers next to chosen indices stay those of this draw.
                    outs = [
                        one if out.floating and len(outs) > 1 else Draws([each[at] for each in of])
                        for at, (one, out) in enumerate(zip(outs, step.outs))
                    ]
                return outs

        return make

    def spread(self, draws: int, kept: list[Value]) -> None:
        """Measures the deviation of values that need it, and of ``kept``, over some draws."""
        wanted = {id(out): out for _, step, _ in self.plan(kept) for out in step.outs if out.needs_spread and not out.exact}
        wanted |= {id(value): value for value in kept if value.floating and not value.exact}
        for value in wanted.values():
            value.spread, value.peak = torch.zeros_like(value.z), torch.zeros_like(value.z)
        # Decisions stay: another one is not a rounding.
        for value, _, drawn in self.draws(range(draws), wanted.values(), fixed=True):
            assert value.spread is not None and value.peak is not None
            off = torch.where(drawn == value.z, 0.0, drawn - value.z).abs()
            # Where the numbers themselves are infinite or undefined, nothing is off; where only a draw is, anything may be.
            off = torch.where(torch.isfinite(value.z), off.nan_to_num(math.inf, math.inf), 0.0)
            for one in off:
                value.spread = torch.hypot(value.spread, one * draws**-0.5)
            value.peak = torch.maximum(value.peak, off.amax(0))

    def derive(self, value: Value, finite: bool = False) -> tuple[Tensor, list[tuple[Step, Tensor]]]:
        """Runs the steps of a value with derivatives. Returns its tensor, and those of the steps that round. With ``finite``, large numbers
        are in the place of infinite ones, and 0 in that of undefined ones, so that no derivative is their product with 0."""
        rounds: list[tuple[Step, Tensor]] = []

        def tame(z: Tensor) -> Tensor:
            return z.nan_to_num(0.0, _LARGE, -_LARGE) if finite and z.is_floating_point() else z

        def make(number: int, step: Step, found: dict[int, Any]) -> list[Tensor]:
            given = walk(step.args, lambda one: tame(found.get(id(one), one.z)))
            if step.kinked is not None:
                result = step.kinked(*given, *(self.off(one) for one in step.inputs))
            else:
                result = step.call(*given)
            outs = list(result) if isinstance(result, (tuple, list)) else [result]
            outs = [one.detach().requires_grad_() if out.floating and not one.requires_grad else one for one, out in zip(outs, step.outs)]
            if step.local is not None and step.outs[0].floating:
                rounds.append((step, outs[0]))
            return outs

        made = value.z
        with torch.enable_grad():
            for _, one in self.replay(make, self.plan([value]), [value]):
                made = one
        return made, rounds


# Share by which equal scores differ in a draw: too little to move what follows from them.
_APART = 2.0**-44
# Draws in which the first and the last of equal scores are preferred, and in which all are larger or smaller.
_ORDERS = {0: (1.0, 0.5), 1: (-1.0, -0.5)}


def _untied(step: Step, found: dict[int, Draws], seeds: list[int]) -> list[Draws]:
    """The outputs of a step that chooses among equal scores, for each draw in an order of its own."""
    each = []
    for at, seed in enumerate(seeds):
        given = walk(step.args, lambda one: found[id(one)].each()[at] if id(one) in found else one.z)  # noqa: B023
        scores = given[0]
        random = torch.Generator(scores.device).manual_seed(seed)
        by = 2 * torch.rand(scores.shape, generator=random, dtype=scores.dtype, device=scores.device) - 1
        if seed in _ORDERS:
            by = torch.linspace(*_ORDERS[seed], max(scores.numel(), 2), dtype=scores.dtype, device=scores.device)[: scores.numel()]
            by = by.reshape(scores.shape)
        result = step.call(scores + _APART * torch.where(scores == 0, 1e-300, scores.abs()) * by, *given[1:])
        each.append(list(result) if isinstance(result, (tuple, list)) else [result])
    return [Draws(list(one)) for one in zip(*each)]


def _called(step: Step, found: dict[int, Draws], count: int) -> list[Draws]:
    """The outputs of a step before it rounds."""
    drawn = {id(value): found[id(value)] for value in step.inputs if id(value) in found}
    shape = step.outs[0].z.shape

    def call(of: Callable[[Draws, Value], Tensor]) -> list[Tensor]:
        result = step.call(*walk(step.args, lambda value: of(drawn[id(value)], value) if id(value) in drawn else value.z))
        return list(result) if isinstance(result, (tuple, list)) else [result]

    if not drawn:
        return [Draws(whole=one.expand(count, *one.shape)) for one in call(lambda one, _: one.whole())]
    if step.call in _ELEMENTWISE and all(one.z.device == step.outs[0].z.device for one in step.inputs):
        return [Draws(whole=one) for one in call(lambda one, value: one.whole()[(slice(None), *[None] * (len(shape) - value.z.ndim))])]
    if step.call is torch.reshape:
        return [Draws(whole=drawn[id(step.args[0])].whole().reshape(count, *shape))]
    return [Draws(each) for each in zip(*(call(lambda one, _: one.each()[at]) for at in range(count)))]  # noqa: B023
