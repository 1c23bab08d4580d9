"""Bounds of any function of torch: how far a right kernel may be from what it gives, and from its gradients."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import Any, Callable, Iterator

import numpy

from . import _native, _numpy
from ._close import unit
from ._shadows import Leaks, Shadows
from ._tape import LAMBDA, Tape, Unknown, Value, place
from ._torch import pytree, torch

ROUNDS = ("end", "as_written", "every_step")
_DRAWS = 8
# Number of elements that get a bound of their own, unless the user states another.
_ELEMENTS = 16
# Factor by which random roundings are enlarged to find decisions that no draw of the usual size changes.
_FAR = 4.0


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
    decision has an influence that flips within its errors, and ``unknown`` names steps without a bound.
    """

    def __init__(self, name: str, dtype: str, tape: Tape, value: Value, unknown: list[str]) -> None:
        self.name = name
        #: The type that the function gives.
        self.dtype = dtype
        #: True if the function is one of numpy.
        self.is_numpy = False
        self._tape = tape
        self._value = value
        self.unknown = unknown
        self.value: numpy.ndarray = value.z.detach().cpu().numpy()
        self.sigma: numpy.ndarray = numpy.zeros_like(self.value)
        self.peak: numpy.ndarray = numpy.zeros_like(self.value)
        self.undetermined: numpy.ndarray = numpy.zeros(self.value.shape, bool)
        self._alternatives: list[numpy.ndarray] = []
        self._known: dict[int, _Sensitivity] = {}
        self._derived: Any = None

    def _measure(self) -> None:
        if self._value.spread is not None and self._value.peak is not None:
            self.peak = self._value.peak.cpu().numpy()
            self.sigma = self._value.spread.cpu().numpy()
            self.undetermined |= ~numpy.isfinite(self.sigma)

    def of(self, element: int) -> _Sensitivity:
        """The bound of one element, by the derivatives with respect to all roundings."""
        if element not in self._known:
            # Independent of the mode that the caller is in.
            with torch.inference_mode(False), torch.enable_grad():
                if self._derived is None:
                    self._derived = self._tape.derive()
                self._known[element] = self._sensitivity(element)
        return self._known[element]

    def _sensitivity(self, element: int) -> _Sensitivity:
        of, rounds = self._derived
        out = of(self._value).reshape(-1)[element]
        if not rounds or not out.requires_grad:
            return _Sensitivity(0.0, [])
        gradients = torch.autograd.grad(out, [z for _, z in rounds], retain_graph=True, allow_unused=True)
        worst = variance = together = 0.0
        shares: dict[tuple[str, str], float] = {}
        for (step, _), gradient in zip(rounds, gradients):
            if gradient is None:
                continue
            steep = gradient.abs()
            largest, deviation = step.errors()
            if not bool(torch.isfinite(steep).all()):
                bad = ~torch.isfinite(steep) & (largest > 0)
                if bool(bad.any()):
                    return _Sensitivity(math.inf, [], place(step.name, step.line))
                steep = steep.nan_to_num(0.0, 0.0, 0.0)
            most = float((steep * largest).sum())
            squares = float((steep * deviation).square().sum())
            equal = not step.varied
            second = 0.0 if step.second is None else float((steep * step.second()).sum())
            worst += most + second
            together += second + (most if equal else 0.0)
            variance += 0.0 if equal else squares
            key = (step.name, step.line)
            shares[key] = shares.get(key, 0.0) + (most if equal else LAMBDA * math.sqrt(squares)) + second
        bound = min(worst, LAMBDA * math.sqrt(variance) + together)
        if math.isnan(bound):
            return _Sensitivity(math.inf, [], "a step")
        if self.peak.reshape(-1)[element] > 1.05 * bound:
            # No draw may be outside. Errors are so large that derivatives do not tell their effect, as of exponentials of large scores.
            bound = max(bound, LAMBDA * float(self.sigma.reshape(-1)[element]))
        total = sum(shares.values()) or 1.0
        terms = sorted(((name, line, share / total) for (name, line), share in shares.items()), key=lambda term: -term[2])
        return _Sensitivity(bound, terms)

    def largest_terms(self, count: int = 5, element: int | None = None) -> list[tuple[str, str, float]]:
        """The steps that bring most of an element's error: operation, line and share. Without ``element``, of the element that errs most."""
        at = int(numpy.argmax(self.sigma)) if element is None else element
        return self.of(at).terms[:count]

    def __repr__(self) -> str:
        lines = [f"{self.name}: f64{list(self.value.shape)}, deviations of right kernels up to {float(self.sigma.max(initial=0.0)):.3g}"]
        lines += [f"  not judged: {why}" for why in self.unknown[:4]]
        if self.undetermined.any():
            lines.append(f"  not determined: {int(self.undetermined.sum()):,} elements, by decisions within their errors")
        return "\n".join(lines)


def bounds_of(
    function: Callable[..., Any],
    inputs: Any,
    u: float,
    rounds: str = "end",
    grads: dict[str, Any] | None = None,
    grad_output: Any = None,
) -> dict[str, Bound]:
    """Runs a function, and returns a `Bound` for each of its outputs, and of the gradients that ``grads`` names."""
    if rounds not in ROUNDS:
        raise ValueError(f"rounds = {rounds!r}, expected one of {', '.join(ROUNDS)}")
    # Subclasses, such as a snapshot, are no trees for torch.
    inputs = dict(inputs) if isinstance(inputs, dict) else tuple(inputs)
    tape = Tape(u)
    shadows = Shadows(tape, rounds)
    followed = _numpy.Followed(function, inputs, shadows) if _numpy.is_numpy(inputs) else None
    if followed is not None:
        function, inputs, grad_output = followed, followed.inputs, _numpy.tensors(grad_output)
    args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
    mark = _marked(grads, args, kwargs) if grads else {}
    # Copies, since the function may write to its inputs.
    with torch.inference_mode(False):
        args, kwargs = pytree.tree_map(lambda x: mark.get(id(x), x.detach().clone()) if isinstance(x, torch.Tensor) else x, (args, kwargs))
    buffers = [(x, x.clone()) for x in function.buffers()] if isinstance(function, torch.nn.Module) else []
    guard = torch.set_grad_enabled(bool(grads) or torch.is_grad_enabled())
    try:
        with torch.inference_mode(False), guard, _plain_operations(), Leaks(shadows), shadows:
            result = function(*args, **kwargs)
            outputs = _named(result)
            if grads:
                given = [mark[id(_input(at, inputs))] for at in grads.values()]
                outputs |= dict(zip(grads, _gradients(result, given, grad_output)))
    finally:
        for x, before in buffers:
            x.copy_(before)
    found = {}
    for name, x in outputs.items():
        if not isinstance(x, torch.Tensor):
            continue
        try:
            value = tape.unstored(shadows.of(x), x.dtype)
        except Unknown as why:
            shadows.note(f"output '{name}'", str(why))
            value = tape.leaf(x)
        found[name] = Bound(name, str(x.dtype).removeprefix("torch."), tape, value, shadows.unknown)
    if not found:
        raise TypeError(f"the function gives {type(result).__name__}, expected tensors of torch; one of numpy needs an array among its inputs")
    kept = [bound._value for bound in found.values() if bound._value.floating]
    tape.spread(_DRAWS, kept)
    for bound in found.values():
        bound._measure()
    _decide(tape, found, shadows.branches)
    if followed is not None:
        followed.check(found, _named)
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
    for value, same, line in branches:
        if not same or any(bool((tape.draw(seed, scale=_FAR)(value) != value.z).any()) for seed in range(_DRAWS)):
            for bound in found.values():
                bound.unknown.append(f"{line}: a branch of the function flips within its errors")
    chosen = [out for step in tape.steps if step.decides for out in step.outs if not out.floating or len(step.outs) == 1]
    if not chosen:
        return
    for seed in range(_DRAWS):
        own = tape.draw(seed, scale=_FAR)
        if not any(bool((own(out) != out.z).any()) for out in chosen):
            continue
        fixed = tape.draw(seed, scale=_FAR, fixed=True)
        for bound in found.values():
            value = bound._value
            other = (own(value) - fixed(value)) if value.floating else (own(value) != value.z).double()
            moved = other.cpu().numpy()
            if (moved != 0).any():
                bound._alternatives.append(moved)
                bound.undetermined |= numpy.nan_to_num(numpy.abs(moved), nan=math.inf) > LAMBDA * bound.sigma


def _marked(grads: dict[str, Any], args: Any, kwargs: Any) -> dict[int, Any]:
    """Copies of the inputs whose gradients are wanted, by the inputs' identities."""
    found = {}
    for name, at in grads.items():
        x = _input(at, kwargs if kwargs else args)
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            raise ValueError(f"grads: '{name}' is the gradient of {at!r}, which is no tensor of numbers")
        with torch.inference_mode(False):
            found[id(x)] = x.detach().clone().requires_grad_()
    return found


def _input(at: Any, inputs: Any) -> Any:
    try:
        return inputs[at]
    except (KeyError, IndexError, TypeError):
        names = ", ".join(map(repr, inputs)) if isinstance(inputs, dict) else f"0 to {len(inputs) - 1}"
        raise ValueError(f"grads: no input {at!r}, expected one of {names}") from None


def _gradients(result: Any, inputs: list[Any], grad_output: Any) -> tuple[Any, ...]:
    outputs = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor) and x.requires_grad]
    if grad_output is None:
        if len(outputs) != 1 or outputs[0].numel() != 1:
            raise ValueError("grads: give grad_output, the gradient of what the function gives, as it is no single number")
        given = None
    else:
        given = [x for x in pytree.tree_leaves(grad_output) if isinstance(x, torch.Tensor)]
    found: tuple[Any, ...] = torch.autograd.grad(outputs, inputs, given, allow_unused=True)
    return found


def _named(result: Any) -> dict[str, Any]:
    """The outputs of a function by name: `out`, or those of a dictionary, or `out0`, `out1`, …"""
    if isinstance(result, torch.Tensor):
        return {"out": result}
    if isinstance(result, dict):
        return dict(result)
    return {f"out{at}": one for at, one in enumerate(result)}


def stored_bound(value: Any, error: Any, dtype: str) -> numpy.ndarray:
    """Bounds after an output is stored in its type."""
    value, error = (numpy.ascontiguousarray(one, numpy.float64) for one in (value, error))
    return _native.bounds(value, error, dtype)


def bound_of(
    function: Callable[..., Any],
    inputs: Any,
    *,
    rounds: str = "end",
    accumulate: str = "f32",
    grads: dict[str, Any] | None = None,
    grad_output: Any = None,
    elements: int = _ELEMENTS,
) -> Any:
    """How far right kernels may be from what a function of torch or numpy, or a module, gives.

        bound = ulplab.bound_of(model, (ids,), rounds="as_written")
        print(bound); bound.largest_terms(5)

    Returns a `Bound` with the elements in f64 and the standard deviation of their errors; a dictionary of them if the function has several
    outputs, or if ``grads`` names gradients (see `assert_close`). The ``elements`` that err most get a bound of their own, ``bound.of(i)``.
    """
    found = bounds_of(function, inputs, unit(accumulate), rounds, grads, grad_output)
    for bound in found.values():
        for element in numpy.argsort(-bound.sigma.reshape(-1), kind="stable")[:elements]:
            if not bound.unknown and bound._value.floating:
                bound.of(int(element))
    return next(iter(found.values())) if list(found) == ["out"] else found
