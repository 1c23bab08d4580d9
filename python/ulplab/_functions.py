"""Bounds of any function of torch: how far a right kernel may be from what it gives, and from its gradients."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import math
import warnings
from typing import Any, Callable, Iterable, Iterator

import numpy

from . import _inputs, _native, _rows
from ._close import _sums, assumed, dtypes_of, unit
from ._derivatives import check_grad_output, wanted_inputs
from ._shadows import Leaks, Shadows
from ._tape import ROOM, Decisions, Tape
from ._tensors import is_jax
from ._torch import pytree, torch
from ._translated import translated
from ._values import LAMBDA, Step, Unknown, Value, place

ROUNDS = ("end", "as_written", "every_step")
_DRAWS = 8
# Number of elements that get a bound of their own, unless the user states another.
_ELEMENTS = 16
# From so many elements on, single bounds are those of rows alone, where these do not depend on each other.
_LARGE = 1 << 18
# Factor by which random roundings are enlarged to find decisions that no draw of the usual size changes.
_FAR = 4.0
# Unit roundoff of f64.
_F64 = 2.0**-53
# How many times as far as such a draw a kernel may be that decides as it does.
_AS_FAR = 2.0


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Without Python's collector of cycles, which would look at each step again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclasses.dataclass
class _Sensitivity:
    """The error of one element."""

    bound: float
    #: What each step brings, of the largest first: its operation, the line, and its share of the bound.
    terms: list[tuple[str, str, float]]
    #: The operation whose derivative is infinite; empty if all are finite.
    infinite: str = ""


class Bound:
    """What a function gives in f64, and how far right kernels may be from it.

    ``value`` has the elements, ``sigma`` the standard deviation of the errors of right kernels, ``undetermined`` marks elements on which a
    decision has an influence that flips within its errors, and ``unknown`` names steps without a bound: with one, ``sigma`` is NaN.
    """

    def __init__(self, name: str, dtype: str, accumulate: str, library: str, tape: Tape, value: Value, unknown: list[str]) -> None:
        self.name = name
        #: The type that the function gives.
        self.dtype = dtype
        #: The type that kernels add in.
        self.accumulate = accumulate
        #: The library of the function: torch, numpy or jax.
        self.library = library
        self._tape = tape
        self._value = value
        self.unknown = unknown
        self.value: numpy.ndarray = value.z.detach().cpu().numpy()
        self.sigma: numpy.ndarray = numpy.zeros(self.value.shape)
        self.peak: numpy.ndarray = numpy.zeros(self.value.shape)
        self.undetermined: numpy.ndarray = numpy.zeros(self.value.shape, bool)
        self._alternatives: list[tuple[numpy.ndarray, numpy.ndarray]] = []
        self._known: dict[int, _Sensitivity] = {}
        self._derived: Any = None
        #: True if derivatives are those of finite numbers in the place of others.
        self._finite = False
        #: True if rows depend on each other.
        self._tied = False

    def _number(self, element: Any) -> int:
        """The number of an element, from its number or its indices. ValueError if there is none, or if nothing is known of its error."""
        shape = self.value.shape
        sizes = shape if isinstance(element, tuple) else (self.value.size,)
        index = element if isinstance(element, tuple) else (element,)
        whole = all(isinstance(one, (int, numpy.integer)) and not isinstance(one, bool) for one in index)
        if not whole or len(index) != len(sizes) or not all(-size <= one < size for one, size in zip(index, sizes)):
            raise ValueError(
                f"{self.name}: {element!r} names no element of {list(shape)}; "
                f"expected a number below {self.value.size:,}, or a tuple of {len(shape)} indices; for several elements, ask for each"
            )
        if self.unknown:
            raise ValueError(f"not judged: {self.name}: {'; '.join(self.unknown[:3])}")
        return int(numpy.ravel_multi_index([one % size for one, size in zip(index, sizes)], sizes)) if sizes else 0

    def _measure(self) -> None:
        if self._value.spread is not None and self._value.peak is not None:
            self.peak = self._value.peak.cpu().numpy()
            self.sigma = self._value.spread.cpu().numpy()
            self.undetermined |= ~numpy.isfinite(self.sigma)

    def _choose(self, own: numpy.ndarray, drawn: numpy.ndarray) -> None:
        """Keeps what elements are by other decisions, ``own``, and how far ``drawn`` is off, which has roundings besides."""
        value = self.value.astype(numpy.float64)
        with numpy.errstate(invalid="ignore"):
            off, moved = (numpy.nan_to_num(numpy.where(own == one, 0.0, numpy.abs(own - one)), nan=math.inf) for one in (drawn, value))
        self._alternatives.append((own, _AS_FAR * numpy.where(numpy.isfinite(off), off, 0.0)))
        self.undetermined |= moved > LAMBDA * self.sigma

    def of(self, element: int | tuple[int, ...]) -> _Sensitivity:
        """The bound of one element, by its number or its indices, from the derivatives with respect to all roundings."""
        at = self._number(element)
        self.ask([at])
        return self._known[at]

    @_uncollected()
    def ask(self, elements: Iterable[int | tuple[int, ...]]) -> None:
        """Finds the bounds of some elements, which then cost little."""
        new = [element for element in dict.fromkeys(map(self._number, elements)) if element not in self._known]
        if not new:
            return
        # Independent of the mode that the caller is in.
        with torch.inference_mode(False), torch.enable_grad():
            rows, (out, rounds) = self._derivation(new)
            if not rounds or not out.requires_grad:
                self._known.update((element, _Sensitivity(0.0, [])) for element in new)
                return
            room = ROOM // (8 * sum(z.numel() for _, z in rounds)) + 1
            for at in range(0, len(new), room):
                some = new[at : at + room]
                shares = _shares(out, rounds, some, rows)
                if shares[..., 0].any() and not self._finite:
                    self._finite = True
                    rows, self._derived = None, self._tape.derive(self._value, finite=True)
                    out, rounds = self._derived
                    shares = _shares(out, rounds, some, rows)
                steps = [step for step, _ in rounds]
                self._known.update((element, self._sensitivity(element, steps, share)) for element, share in zip(some, shares))

    def _derivation(self, elements: list[int]) -> tuple[list[int] | None, Any]:
        """The steps with derivatives: of the rows of elements, where that is enough, or of all of them, and then None."""
        z = self._value.z
        inner = z[:1].numel() if z.ndim else 1
        rows = sorted({element // max(inner, 1) for element in elements})
        rows += [row for row in (0, 1) if len(rows) == 1 and row != rows[0]][:1]
        if z.ndim and z.numel() >= _LARGE and 4 * len(rows) <= len(z) and not self._tied and self._derived is None:
            found = _rows.derive(self._tape, self._value, rows)
            if found is not None:
                return rows, found
            self._tied = True
        if self._derived is None:
            self._derived = self._tape.derive(self._value)
        return None, self._derived

    def _sensitivity(self, element: int, steps: list[Step], shares: Any) -> _Sensitivity:
        worst = variance = together = 0.0
        found: dict[tuple[str, str], float] = {}
        for step, (infinite, most, squares, second) in zip(steps, shares.tolist()):
            if infinite:
                return _Sensitivity(math.inf, [], place(step.name, step.line))
            if most == squares == second == 0:
                continue
            equal = not step.varied
            worst += most + second
            together += second + (most if equal else 0.0)
            variance += 0.0 if equal else squares
            key = (step.name, step.line)
            found[key] = found.get(key, 0.0) + (most if equal else LAMBDA * math.sqrt(squares)) + second
        bound = min(worst, LAMBDA * math.sqrt(variance) + together)
        if math.isnan(bound):
            return _Sensitivity(math.inf, [], "a step")
        if self.peak.reshape(-1)[element] > 1.05 * bound:
            # No draw may be outside. Errors are so large that derivatives do not tell their effect, as of exponentials of large scores.
            bound = max(bound, LAMBDA * float(self.sigma.reshape(-1)[element]), _FAR * float(self.peak.reshape(-1)[element]))
        total = sum(found.values()) or 1.0
        terms = sorted(((name, line, share / total) for (name, line), share in found.items()), key=lambda term: -term[2])
        return _Sensitivity(bound, terms)

    def largest_terms(self, count: int = 5, element: int | tuple[int, ...] | None = None) -> list[tuple[str, str, float]]:
        """The steps that bring most of an element's error: operation, line and share. Without ``element``, of the element that errs most."""
        return self.of(int(self.sigma.size and numpy.argmax(self.sigma)) if element is None else element).terms[:count]

    def __repr__(self) -> str:
        kind = "f64" if self.value.dtype == numpy.float64 else self.value.dtype.name
        lines = [f"{self.name}: {kind}{list(self.value.shape)}"]
        if self.unknown:
            return "\n".join(lines + [f"  not judged: {why}" for why in self.unknown[:4]])
        if self._value.floating:
            deviation = float(self.sigma.max(initial=0.0, where=numpy.isfinite(self.sigma)))
            lines[0] += f", deviations of right kernels up to {deviation:.3g}, {_sums(self.accumulate)[1]}"
        if self.undetermined.any():
            lines.append(f"  not determined: {int(self.undetermined.sum()):,} elements, by decisions within their errors")
        return "\n".join(lines)


def _shares(out: Any, rounds: Any, elements: list[int], rows: list[int] | None) -> Any:
    """What each step that rounds brings to the errors of elements: by element and step, whether it is infinite, the largest error, its
    variance, and the bound of products of two errors. ``rows`` are those that were derived, if not all."""

    def cut(one: Any) -> Any:
        return (one if rows is None else one[rows]).reshape(-1)

    if rows is not None:
        inner = out[:1].numel()
        elements = [rows.index(element // inner) * inner + element % inner for element in elements]
    shares = []
    for (step, _), gradient in zip(rounds, _derivatives(out, [z for _, z in rounds], elements)):
        if gradient is None:
            shares.append(torch.zeros(4, len(elements), dtype=out.dtype, device=out.device))
            continue
        steep = gradient.detach().abs().reshape(len(elements), -1)
        largest, deviation = map(cut, step.errors())
        most = steep @ largest
        infinite = torch.zeros_like(most)
        if not bool(torch.isfinite(most).all()):
            infinite = (~(steep < math.inf) & (largest > 0)).any(1).to(out.dtype)
            steep = steep.nan_to_num(0.0, 0.0, 0.0)
            most = steep @ largest
        second = steep @ cut(step.second()) if step.second is not None else torch.zeros_like(most)
        shares.append(torch.stack([infinite, most, steep.mul_(deviation).square_().sum(1), second]))
    return torch.stack(shares).permute(2, 0, 1).cpu().numpy()


def _derivatives(out: Any, zs: list[Any], elements: list[int]) -> Any:
    """The derivatives of elements with respect to each rounding, stacked."""
    if len(elements) > 1:
        chosen = torch.zeros(len(elements), out.numel(), dtype=out.dtype, device=out.device)
        chosen[range(len(elements)), elements] = 1.0
        try:
            with warnings.catch_warnings():
                # Operations that have no derivatives in a batch are run one by one.
                warnings.simplefilter("ignore")
                chosen = chosen.reshape(-1, *out.shape)
                return torch.autograd.grad(out, zs, chosen, retain_graph=True, allow_unused=True, is_grads_batched=True)
        except RuntimeError:
            pass
    each = [torch.autograd.grad(out.reshape(-1)[element], zs, retain_graph=True, allow_unused=True) for element in elements]
    return [None if of_all[0] is None else torch.stack(of_all) for of_all in zip(*each)]


@_uncollected()
def bounds_of(
    function: Callable[..., Any],
    inputs: Any,
    accumulate: str | None = None,
    rounds: str = "end",
    grads: dict[str, Any] | None = None,
    grad_output: Any = None,
) -> dict[str, Bound]:
    """Runs a function, and returns a `Bound` for each of its outputs, and of the gradients that ``grads`` names.

    Without ``accumulate``, kernels add in f64 if the function computes in f64 alone, with inputs and outputs in f64, and else in f32.
    """
    if rounds not in ROUNDS:
        raise ValueError(f"rounds = {rounds!r}, expected one of {', '.join(ROUNDS)}")
    again = functools.partial(bounds_of, function, inputs, rounds=rounds, grads=grads, grad_output=grad_output)
    given_types = dtypes_of([inputs, grad_output])
    sums = assumed(accumulate, given_types)
    tape = Tape(unit(sums))
    tape.again_from_sums = bool(grads)
    shadows = Shadows(tape, rounds)
    args, named = _inputs.split(inputs)
    followed = translated(function, args, dict(named), shadows, grads or {}, grad_output)
    if followed is not None:
        function, args, named = followed, followed.args, followed.named
        grads, grad_output = followed.grads, followed.grad_output
    # Copies, since the function may write to its inputs.
    every: dict[Any, Any] = {**dict(enumerate(args)), **named}
    with torch.inference_mode(False):
        given = _copies(every, set(wanted_inputs(grads or {}, every)))
    guard = torch.set_grad_enabled(bool(grads) or torch.is_grad_enabled())
    try:
        with torch.inference_mode(False), guard, _plain_operations(), Leaks(shadows), shadows:
            result = function(*(given[at] for at in range(len(args))), **{name: given[name] for name in named})
            outputs = _inputs.outputs(result)
            if not any(isinstance(one, torch.Tensor) for one in outputs.values()):
                said = f"{name_of(function)} gives a {type(result).__name__}"
                library = "numpy" if isinstance(result, numpy.ndarray) else "jax" if is_jax(result) else ""
                hint = f"; a function of {library} needs an array of {library} among its inputs" if library else ""
                raise TypeError(f"{said}, expected a tensor, or a tuple or a dictionary of tensors{hint}")
            if grads:
                shadows.backwards = True
                wanted = [given[at] for at in grads.values()]
                outputs |= dict(zip(grads, _gradients(result, wanted, grad_output)))
        if followed is not None:
            followed.keep()
    finally:
        shadows.restore()
    types = [str(x.dtype).removeprefix("torch.") for x in outputs.values() if isinstance(x, torch.Tensor)]
    right = assumed(accumulate, [*given_types, *types, *(["float32"] if shadows.coarsest > _F64 else [])])
    if right != sums:
        return again(right)
    found, library = {}, "torch" if followed is None else followed.library
    for name, x in outputs.items():
        if not isinstance(x, torch.Tensor):
            continue
        unknown = list(shadows.unknown)
        try:
            if x.is_complex():
                raise Unknown(f"output '{name}' is complex; expected real numbers, as of torch.view_as_real")
            value = tape.unstored(shadows.of(x), x.dtype)
            if shadows.empty and bool((value.z.isnan() & ~x.isnan()).any()):
                raise Unknown(f"output '{name}': elements of memory that the function has not written")
        except Unknown as why:
            unknown.append(str(why))
            value = tape.leaf(x)
        found[name] = Bound(name, str(x.dtype).removeprefix("torch."), sums, library, tape, value, unknown)
    kept = [bound._value for bound in found.values()]
    try:
        tape.spread(_DRAWS, kept)
        for bound in found.values():
            bound._measure()
        _decide(tape, found, shadows.branches)
    except (RuntimeError, IndexError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        for bound in found.values():
            bound.unknown.append(f"a step whose result has another size within the errors: {error}".splitlines()[0])
    if followed is not None:
        followed.check(found, _inputs.outputs)
    for bound in found.values():
        if bound.unknown:
            bound.sigma = numpy.full(bound.value.shape, math.nan)
    return found


@contextlib.contextmanager
def _plain_operations() -> Iterator[None]:
    """Torch's own operations in the place of those of other libraries, which have no steps, and attention in the function's own types."""
    library, fused = torch._C._get_mkldnn_enabled(), torch.backends.mha.get_fastpath_enabled()
    reduced = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    attention = torch.nn.attention
    torch._C._set_mkldnn_enabled(False)
    torch.backends.mha.set_fastpath_enabled(False)
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    try:
        with attention.sdpa_kernel(attention.SDPBackend.MATH), torch.backends.cudnn.flags(enabled=False):
            yield
    finally:
        torch._C._set_mkldnn_enabled(library)
        torch.backends.mha.set_fastpath_enabled(fused)
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(reduced)


def _decide(tape: Tape, found: dict[str, Bound], branches: list[tuple[Value, bool, str]]) -> None:
    """Marks elements that depend on decisions which flip within their errors, and keeps what they may be instead."""
    flipping = {id(value): seeds for value, seeds in _flipping(tape, [value for value, _, _ in branches])}
    for value, same, line in branches:
        if not same or id(value) in flipping:
            for bound in found.values():
                bound.unknown.append(f"{line}: a branch of the function flips within its errors")
    judged = [bound._value for bound in found.values()]
    chosen = [out for _, step, _ in tape.plan(judged) if step.decides for out in step.outs if not out.floating or len(step.outs) == 1]
    seeds = sorted({seed for _, some in _flipping(tape, chosen) for seed in some})
    decisions: Decisions = {}
    drawn = {(id(value), seed): one for value, some, own in tape.draws(seeds, judged, _FAR, decisions=decisions) for seed, one in zip(some, own)}
    # The same decisions, with numbers as they are.
    for value, some, own in tape.draws(seeds, judged, 0.0, fixed=True, decisions=decisions):
        for bound in (one for one in found.values() if one._value is value):
            for seed, one in zip(some, own.double()):
                if bool(((one != value.z) & ~(one.isnan() & value.z.isnan())).any()):
                    bound._choose(one.cpu().numpy(), drawn[id(value), seed].double().cpu().numpy())


def _flipping(tape: Tape, values: list[Value]) -> Iterator[tuple[Value, list[int]]]:
    """Values that some draws change, and the seeds of these."""
    # Equal sums have roundings of their own in odd draws, and equal scores have many orders.
    tied = any(step.tied for step in tape.steps)
    wanted = [*range(_DRAWS), *range(_DRAWS + 1, (6 if tied else 3) * _DRAWS, 1 if tied else 2)]
    for value, seeds, drawn in tape.draws(wanted, values, _FAR):
        changed = (drawn != value.z).reshape(len(seeds), -1).any(1).tolist()
        if any(changed):
            yield value, [seed for seed, one in zip(seeds, changed) if one]


def _copies(inputs: dict[Any, Any], wanted: set[Any]) -> dict[Any, Any]:
    """Copies of inputs, those that are ``wanted`` for derivatives. Tensors that share memory share that of their copies."""
    tensors = [x for x in pytree.tree_leaves(list(inputs.values())) if isinstance(x, torch.Tensor)]
    places = [x.untyped_storage()._cdata for x in tensors if x.layout == torch.strided]
    shared: dict[int, Any] = {}

    def copied(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if x.layout != torch.strided or places.count(x.untyped_storage()._cdata) < 2:
            return x.detach().clone()
        memory = shared.setdefault(x.untyped_storage()._cdata, x.untyped_storage().clone())
        return torch.empty(0, dtype=x.dtype, device=x.device).set_(memory, x.storage_offset(), x.shape, x.stride())

    return {key: x.detach().clone().requires_grad_() if key in wanted else pytree.tree_map(copied, x) for key, x in inputs.items()}


def _gradients(result: Any, inputs: list[Any], grad_output: Any) -> tuple[Any, ...]:
    outputs = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor) and x.requires_grad]
    if not outputs:
        raise ValueError("not judged: what the function gives has no gradient: it is detached, or does not depend on these inputs")
    given = None if grad_output is None else [x for x in pytree.tree_leaves(grad_output) if isinstance(x, torch.Tensor)]
    check_grad_output(given, outputs)
    return tuple(torch.autograd.grad(outputs, inputs, given, allow_unused=True))


def largest(x: numpy.ndarray, count: int) -> numpy.ndarray:
    """The places of the largest numbers, the largest first, and of equal ones the first."""
    if not 0 < count < x.size // 8:
        return numpy.argsort(-x, kind="stable")[:count]
    least = numpy.partition(-x, count - 1)[count - 1]
    several = numpy.flatnonzero(-x < least), numpy.flatnonzero(-x == least)[:count], numpy.flatnonzero(numpy.isnan(x))[:count]
    at = numpy.sort(numpy.concatenate(several))
    return at[numpy.argsort(-x[at], kind="stable")][:count]


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function, or of the class of a module, in messages."""
    return str(getattr(function, "__name__", "") or type(function).__name__)


def stored_bound(value: Any, error: Any, dtype: str) -> numpy.ndarray:
    """Bounds after an output is stored in its type."""
    value, error = (numpy.ascontiguousarray(one, numpy.float64) for one in (value, error))
    return _native.bounds(value, error, dtype)


def bound_of(
    function: Callable[..., Any],
    inputs: Any,
    *,
    rounds: str = "end",
    accumulate: str | None = None,
    grads: dict[str, Any] | None = None,
    grad_output: Any = None,
    elements: int = _ELEMENTS,
) -> Any:
    """How far right kernels may be from what a function of torch, numpy or jax, or a module, gives.

        bound = ulplab.bound_of(model, (ids,), rounds="as_written")
        print(bound); bound.largest_terms(5)

    Returns a `Bound` with the elements in f64 and the standard deviation of their errors; a dictionary of them if the function has several
    outputs, or if ``grads`` names gradients (see `assert_close`). The ``elements``, a number of them, that err most get a bound of their own
    at once; ``bound.of(i)`` is that of any element, by its number or a tuple of its indices.
    """
    if isinstance(elements, bool) or not isinstance(elements, (int, numpy.integer)) or elements < 0:
        hint = "the bound of a single element is that of the result, bound.of((0, 1))"
        raise ValueError(f"bound_of: elements = {elements!r} does not say how many; expected an integer of at least 0; {hint}")
    found = bounds_of(function, inputs, accumulate, rounds, grads, grad_output)
    for bound in found.values():
        if not bound.unknown and bound._value.floating:
            bound.ask(map(int, largest(bound.sigma.reshape(-1), elements)))
    return next(iter(found.values())) if list(found) == ["out"] else found
