"""Steps of ATen operations: what each computes in f64, made of the simple steps of a tape."""

from __future__ import annotations

import functools
import math
from typing import Any, Callable

from ._tape import Tape
from ._torch import Tensor, torch
from ._values import Unknown, Value, names_in

aten = torch.ops.aten
_STEPS: dict[str, Callable[..., Any]] = {}


def find(name: str) -> Callable[..., Any] | None:
    """The function that adds an operation's steps to a tape."""
    return _STEPS.get(name)


# Marks a function as that of the ATen operations of these names.
step_of = names_in(_STEPS)


def dims_of(dims: Any, x: Value) -> list[int]:
    """The dimensions that an argument names: all, without one."""
    count = len(x.shape)
    if dims is None or dims == []:
        return list(range(count))
    return [dim % max(count, 1) for dim in ([dims] if isinstance(dims, int) else dims)]


def count_of(x: Value, dims: list[int]) -> int:
    """The number of elements along dimensions."""
    return math.prod(x.z.shape[dim] for dim in dims)


# Arithmetic.


@step_of("add")
def _add(t: Tape, a: Any, b: Any, alpha: Any = 1) -> Value:
    return t.add(a, b if alpha == 1 else t.mul(b, alpha) if isinstance(b, Value) else b * alpha)


@step_of("sub")
def _sub(t: Tape, a: Any, b: Any, alpha: Any = 1) -> Value:
    return _add(t, a, t.neg(b), alpha)


@step_of("rsub")
def _rsub(t: Tape, a: Any, b: Any, alpha: Any = 1) -> Value:
    return _sub(t, b, a, alpha)


@step_of("mul")
def _mul(t: Tape, a: Any, b: Any) -> Value:
    return t.mul(a, b)


@step_of("div", "true_divide")
def _div(t: Tape, a: Any, b: Any, rounding_mode: str | None = None) -> Value:
    found = t.div(a, b)
    if rounding_mode is None:
        return found
    return t.step(torch.floor if rounding_mode == "floor" else torch.trunc, found, decides=True)


@step_of("_neg_view")
def _neg_view(t: Tape, a: Value) -> Value:
    return t.exact(torch.neg, a)


@step_of("square")
def _square(t: Tape, a: Value) -> Value:
    return t.square(a)


@step_of("addcmul")
def _addcmul(t: Tape, x: Value, a: Value, b: Value, value: Any = 1) -> Value:
    return _add(t, x, t.mul(a, b), value)


@step_of("addcdiv")
def _addcdiv(t: Tape, x: Value, a: Value, b: Value, value: Any = 1) -> Value:
    return _add(t, x, t.div(a, b), value)


@step_of("lerp")
def _lerp(t: Tape, a: Value, b: Value, weight: Any) -> Value:
    # Kernels begin at the end that is nearer.
    near = abs(weight) < 0.5 if not isinstance(weight, Value) else None
    if near is False:
        return t.sub(b, t.mul(t.sub(b, a), 1 - weight))
    return t.add(a, t.mul(t.sub(b, a), weight))


@step_of("pow")
def _pow(t: Tape, a: Any, b: Any) -> Value:
    if isinstance(a, Value) and not isinstance(b, Value):
        if b == 0.5:
            return t.fn("sqrt", a)
        if b == -0.5:
            return t.fn("rsqrt", a)
        if float(b).is_integer() and 1 <= abs(b) <= 4:
            found = functools.reduce(t.mul, [a] * int(abs(b)))
            return found if b > 0 else t.fn("reciprocal", found)
    return t.units("pow", torch.pow, a, b)


for _name in (
    "sqrt rsqrt reciprocal exp exp2 expm1 log log1p log2 log10 sin cos tan tanh erf erfc sinh cosh asinh acosh atanh asin acos atan "
    "erfinv lgamma digamma i0 special_i0e special_i1 special_i1e special_erfcx special_ndtri"
).split():
    _STEPS[_name] = functools.partial(lambda name, t, a: t.fn(name, a), _name)

@step_of("polygamma")
def _polygamma(t: Tape, order: int, x: Value) -> Value:
    # A rounding of the operand counts, near the poles.
    near = t.exact(torch.clone, x) if t.u == 0 else t.step(torch.clone, x, local=lambda: (8 * t.u * x.z.abs(), 8 * t.u * x.z.abs() * 3**-0.5))
    return t.units("polygamma", lambda z: torch.polygamma(order, z), near)


for _name in ("atan2", "hypot", "xlogy"):
    _STEPS[_name] = functools.partial(lambda name, t, a, b: t.units(name, getattr(torch, name), a, b), _name)


# Activations. Where a derivative jumps, kernels may be on the other side.


def _kinked(inside: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A call with the derivative ``inside``, for arguments and how far they may be off."""

    def call(function: Callable[..., Tensor], x: Tensor, *more: Any) -> Tensor:
        slope = inside(x.detach(), *more)
        moved = torch.where(slope != 0, slope * x, 0.0)
        return function(x).detach() + moved - moved.detach()

    return call


@step_of("relu")
def _relu(t: Tape, x: Value) -> Value:
    return between(t, x, 0.0, None)


@step_of("hardtanh")
def _hardtanh(t: Tape, x: Value, low: Any = -1.0, high: Any = 1.0) -> Value:
    return between(t, x, low, high)


@step_of("clamp")
def _clamp(t: Tape, x: Value, low: Any = None, high: Any = None) -> Value:
    if isinstance(low, Value) or isinstance(high, Value):
        found = x if low is None else pair_of(t, torch.maximum, x, low)
        return found if high is None else pair_of(t, torch.minimum, found, high)
    return between(t, x, low, high)


@step_of("clamp_min")
def _clamp_min(t: Tape, x: Value, low: Any) -> Value:
    return _clamp(t, x, low)


@step_of("clamp_max")
def _clamp_max(t: Tape, x: Value, high: Any) -> Value:
    return _clamp(t, x, None, high)


def between(t: Tape, x: Value, low: float | None, high: float | None) -> Value:
    low, high = t.number(low), t.number(high)
    call = functools.partial(torch.clamp, min=low, max=high)
    x.needs_spread = True

    def inside(x: Tensor, off: Tensor) -> Tensor:
        above = x >= low - off if low is not None else torch.ones_like(x, dtype=torch.bool)
        below = x <= high + off if high is not None else torch.ones_like(x, dtype=torch.bool)
        # An exact number at the kink does not move.
        return (above & below & ((off > 0) | (x != (low if low is not None else math.inf)))).double()

    return t.step(call, x, kinked=lambda x, off: _kinked(inside)(call, x, off))


@step_of("abs")
def absolute(t: Tape, x: Value) -> Value:
    def inside(x: Tensor, off: Tensor) -> Tensor:
        return torch.where(x < 0, -1.0, 1.0)

    return t.step(torch.abs, x, kinked=lambda x, off: _kinked(inside)(torch.abs, x, off))


@step_of("maximum", "fmax")
def _maximum(t: Tape, a: Value, b: Value) -> Value:
    return pair_of(t, torch.maximum, a, b)


@step_of("minimum", "fmin")
def _minimum(t: Tape, a: Value, b: Value) -> Value:
    return pair_of(t, torch.minimum, a, b)


def pair_of(t: Tape, call: Callable[..., Tensor], a: Value, b: Value) -> Value:
    a.needs_spread = b.needs_spread = True

    def kinked(a: Tensor, b: Tensor, off_a: Tensor, off_b: Tensor) -> Tensor:
        found = call(a, b).detach()
        of_a = (a.detach() - found).abs() <= off_a + off_b
        of_b = (b.detach() - found).abs() <= off_a + off_b
        moved = torch.where(of_a, a, 0.0) + torch.where(of_b, b, 0.0)
        return found + moved - moved.detach()

    return t.step(call, a, b, kinked=kinked)


def sided(t: Tape, call: Callable[..., Tensor], x: Value, *edges: float) -> Value:
    """A choice of the derivative's side at each of the edges. Kernels may take either where a number lies on one exactly."""
    chosen = t.step(call, x, decides=True)
    if any(bool((x.z == edge).any()) for edge in edges):
        t.tie(chosen)
    return chosen


@step_of("threshold")
def _threshold(t: Tape, x: Value, threshold: Any, value: Any) -> Value:
    return t.step(lambda x: torch.where(x > threshold, x, value), x, decides=True)


@step_of("threshold_backward")
def _threshold_backward(t: Tape, grad: Value, x: Value, threshold: Any) -> Value:
    return t.exact(torch.mul, grad, sided(t, lambda x: (x > threshold).double(), x, threshold))


@step_of("hardtanh_backward")
def _hardtanh_backward(t: Tape, grad: Value, x: Value, low: Any, high: Any) -> Value:
    return t.exact(torch.mul, grad, sided(t, lambda x: ((x > low) & (x < high)).double(), x, low, high))


@step_of("leaky_relu")
def _leaky_relu(t: Tape, x: Value, slope: Any = 0.01) -> Value:
    return pair_of(t, torch.maximum if slope <= 1 else torch.minimum, x, t.mul(x, slope))


@step_of("leaky_relu_backward")
def _leaky_relu_backward(t: Tape, grad: Value, x: Value, slope: Any, result: bool) -> Value:
    keep = sided(t, lambda x: (x > 0).double(), x, 0.0)
    return t.add(t.exact(torch.mul, grad, keep), t.exact(torch.mul, t.mul(grad, slope), t.exact(torch.rsub, keep, 1)))


@step_of("prelu", "_prelu_kernel")
def _prelu(t: Tape, x: Value, weight: Value) -> Value:
    low = t.mul(between(t, x, None, 0.0), weight)
    return t.exact(torch.add, between(t, x, 0.0, None), low)


@step_of("sigmoid")
def _sigmoid(t: Tape, x: Value) -> Value:
    # 1 / (1 + e^-x), by the exponential that does not overflow: e^x / (1 + e^x) has the same errors.
    small = t.fn("exp", t.neg(absolute(t, x)))
    whole = t.add(small, 1.0)
    low, high = t.div(small, whole), t.fn("reciprocal", whole)
    return t.exact(lambda x, low, high: torch.where(x < 0, low, high), x, low, high)


@step_of("sigmoid_backward")
def _sigmoid_backward(t: Tape, grad: Value, y: Value) -> Value:
    return t.mul(grad, t.mul(t.sub(1.0, y), y))


@step_of("tanh_backward")
def _tanh_backward(t: Tape, grad: Value, y: Value) -> Value:
    return t.mul(grad, t.sub(1.0, t.square(y)))


@step_of("silu")
def _silu(t: Tape, x: Value) -> Value:
    return t.mul(x, _sigmoid(t, x))


@step_of("silu_backward")
def _silu_backward(t: Tape, grad: Value, x: Value) -> Value:
    s = _sigmoid(t, x)
    return t.mul(t.mul(grad, s), t.add(t.mul(x, t.sub(1.0, s)), 1.0))


def _inner(t: Tape, x: Value) -> Value:
    return t.mul(t.add(x, t.mul(functools.reduce(t.mul, [x, x, x]), 0.044715)), math.sqrt(2 / math.pi))


@step_of("gelu")
def _gelu(t: Tape, x: Value, approximate: str = "none") -> Value:
    if approximate == "tanh":
        return t.mul(t.mul(x, 0.5), t.add(t.fn("tanh", _inner(t, x)), 1.0))
    return t.mul(t.mul(x, 0.5), t.add(t.fn("erf", t.mul(x, math.sqrt(0.5))), 1.0))


@step_of("gelu_backward")
def _gelu_backward(t: Tape, grad: Value, x: Value, approximate: str = "none") -> Value:
    if approximate == "tanh":
        tanh = t.fn("tanh", _inner(t, x))
        steep = t.mul(t.add(t.mul(t.square(x), 3 * 0.044715), 1.0), math.sqrt(2 / math.pi))
        right = t.mul(t.mul(t.mul(x, 0.5), t.sub(1.0, t.square(tanh))), steep)
        return t.mul(grad, t.add(t.mul(t.add(tanh, 1.0), 0.5), right))
    share = t.mul(t.add(t.fn("erf", t.mul(x, math.sqrt(0.5))), 1.0), 0.5)
    density = t.mul(t.fn("exp", t.mul(t.square(x), -0.5)), 1 / math.sqrt(2 * math.pi))
    return t.mul(grad, t.add(share, t.mul(x, density)))


@step_of("softplus")
def softplus(t: Tape, x: Value, beta: Any = 1, threshold: Any = 20) -> Value:
    # ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|): above the threshold, the last term is smaller than a rounding.
    scaled = t.mul(x, beta) if beta != 1 else x
    low = t.fn("log1p", t.fn("exp", t.neg(absolute(t, scaled))))
    found = t.add(between(t, scaled, 0.0, None), low)
    found = t.div(found, beta) if beta != 1 else found
    if threshold >= 20:
        return found
    far = t.step(lambda z: z > threshold, scaled, decides=True)
    return t.exact(torch.where, far, x, found)


@step_of("softplus_backward")
def _softplus_backward(t: Tape, grad: Value, x: Value, beta: Any, threshold: Any) -> Value:
    scaled = t.mul(x, beta) if beta != 1 else x
    found = t.mul(grad, _sigmoid(t, scaled))
    if threshold >= 20:
        return found
    far = t.step(lambda z: z > threshold, scaled, decides=True)
    return t.exact(torch.where, far, grad, found)


@step_of("log_sigmoid_forward")
def _log_sigmoid(t: Tape, x: Value) -> Any:
    found = t.neg(softplus(t, t.neg(x)))
    return found, t.exact(torch.zeros_like, x)


@step_of("log_sigmoid_backward")
def _log_sigmoid_backward(t: Tape, grad: Value, x: Value, _: Any) -> Value:
    return t.mul(grad, _sigmoid(t, t.neg(x)))


@step_of("elu")
def _elu(t: Tape, x: Value, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Value:
    low = t.mul(t.fn("expm1", t.mul(between(t, x, None, 0.0), input_scale)), alpha * scale)
    high = between(t, x, 0.0, None)
    return t.exact(torch.add, t.mul(high, scale) if scale != 1 else high, low)


@step_of("elu_backward")
def _elu_backward(t: Tape, grad: Value, alpha: Any, scale: Any, input_scale: Any, is_result: bool, x: Value) -> Value:
    if is_result:
        raise Unknown("elu_backward of the result, which is written in place")
    steep = t.mul(t.fn("exp", t.mul(between(t, x, None, 0.0), input_scale)), alpha * scale * input_scale)
    keep = sided(t, lambda x: x > 0, x, 0.0)
    return t.mul(grad, t.exact(lambda keep, steep: torch.where(keep, scale, steep), keep, steep))


@step_of("selu")
def _selu(t: Tape, x: Value) -> Value:
    return _elu(t, x, 1.6732632423543772, 1.0507009873554805)


@step_of("celu")
def _celu(t: Tape, x: Value, alpha: Any = 1.0) -> Value:
    return _elu(t, x, alpha, 1, 1 / alpha)


@step_of("mish")
def _mish(t: Tape, x: Value) -> Value:
    return t.mul(x, t.fn("tanh", softplus(t, x)))


@step_of("mish_backward")
def _mish_backward(t: Tape, grad: Value, x: Value) -> Value:
    tanh = t.fn("tanh", softplus(t, x))
    right = t.mul(t.mul(x, _sigmoid(t, x)), t.sub(1.0, t.square(tanh)))
    return t.mul(grad, t.add(tanh, right))


@step_of("hardsigmoid")
def _hardsigmoid(t: Tape, x: Value) -> Value:
    return t.div(between(t, t.add(x, 3.0), 0.0, 6.0), 6.0)


@step_of("hardswish")
def _hardswish(t: Tape, x: Value) -> Value:
    return t.mul(x, _hardsigmoid(t, x))


@step_of("glu")
def _glu(t: Tape, x: Value, dim: int = -1) -> Value:
    a, b = t.steps_of(lambda x: torch.chunk(x, 2, dim), x)
    return t.mul(a, _sigmoid(t, b))


@step_of("softshrink", "hardshrink")
def _shrink(t: Tape, x: Value, size: Any = 0.5) -> Value:
    if t.name.startswith("hard"):
        keep = t.step(lambda x: (x.abs() > size).double(), x, decides=True)
        return t.exact(torch.mul, x, keep)
    return t.add(x, t.neg(between(t, x, -size, size)))


@step_of("softshrink_backward", "hardshrink_backward")
def _shrink_backward(t: Tape, grad: Value, x: Value, size: Any = 0.5) -> Value:
    return t.exact(torch.mul, grad, sided(t, lambda x: (x.abs() > size).double(), x, -size, size))


@step_of("hardsigmoid_backward")
def _hardsigmoid_backward(t: Tape, grad: Value, x: Value) -> Value:
    keep = sided(t, lambda x: ((x > -3) & (x < 3)).double(), x, -3.0, 3.0)
    return t.exact(torch.mul, t.div(grad, 6.0), keep)


@step_of("hardswish_backward")
def _hardswish_backward(t: Tape, grad: Value, x: Value) -> Value:
    inner = t.mul(grad, t.add(t.div(x, 3.0), 0.5))
    part = sided(t, lambda x: torch.where(x < -3, 0, torch.where(x <= 3, 1, 2)), x, -3.0, 3.0)
    return t.exact(lambda part, inner, grad: torch.where(part == 0, 0.0, torch.where(part == 1, inner, grad)), part, inner, grad)


@step_of("glu_backward")
def _glu_backward(t: Tape, grad: Value, x: Value, dim: int) -> Value:
    a, b = t.steps_of(lambda x: torch.chunk(x, 2, dim), x)
    s = _sigmoid(t, b)
    to_a = t.mul(grad, s)
    to_b = t.mul(t.mul(t.mul(t.sub(1.0, s), s), grad), a)
    return t.exact(lambda a, b: torch.cat([a, b], dim), to_a, to_b)


@step_of("logit")
def _logit(t: Tape, x: Value, eps: float | None = None) -> Value:
    if eps is not None and eps > 0.5:
        raise Unknown("logit with limits in the wrong order")
    x = x if eps is None else between(t, x, eps, 1 - eps)
    return t.fn("log", t.div(x, t.sub(1.0, x)))


@step_of("linalg_cross")
def _cross(t: Tape, a: Value, b: Value, dim: int = -1) -> Value:
    def turned(value: Value, by: int) -> Value:
        return t.exact(lambda z: z.roll(by, dim), value)

    return t.sub(t.mul(turned(a, -1), turned(b, -2)), t.mul(turned(a, -2), turned(b, -1)))
