"""Steps of norms, softmax and losses."""

from __future__ import annotations

import math
from typing import Any

from ._steps import absolute, between, count_of, dims_of, pair_of, softplus, step_of
from ._sums import mean_of
from ._tape import Tape
from ._torch import Tensor, torch
from ._values import Value


@step_of("_softmax", "_safe_softmax", "softmax")
def _softmax(t: Tape, x: Value, dim: int, half_to_float: Any = False, dtype: Any = None) -> Value:
    weights = t.fn("exp", _below_largest(t, x, dim))
    total = t.sum(weights, [dim], keepdim=True)
    found = _from_stored_sum(t, t.div(weights, total), x, total, dim)
    if t.name == "_safe_softmax":
        return t.exact(lambda p, x: torch.where((x == -math.inf).all(dim, keepdim=True), 0.0, p), found, x)
    return found


def _from_stored_sum(t: Tape, shares: Value, x: Value, total: Value, dim: int) -> Value:
    """Shares as a backward pass may have them: e^(x - l) of the stored logarithm l of a row's sum, whose error all shares of the row have."""
    if not t.again_from_sums:
        return shares
    # The sum is of exponentials of scores minus the largest.
    largest = x.z.reshape(shares.z.shape).amax(dim, keepdim=True)
    size = (largest + total.z.log()).abs().nan_to_num(0.0, 0.0, 0.0) + 1.0

    def local() -> tuple[Tensor, Tensor]:
        return t.u * size, t.u * size * 3**-0.5

    return t.exact(torch.mul, shares, t.step(torch.ones_like, total, local=local))


def _below_largest(t: Tape, x: Value, dim: int) -> Value:
    """The scores minus the largest of their row, which is no step of its own: any near number would do."""
    if x.z.ndim == 0:
        x = t.exact(lambda z: z.reshape(1), x)
    return t.sub(x, _shift(t, x, [dim]))


def _shift(t: Tape, x: Value, at: list[int]) -> Value:
    """The largest numbers, or 0 where they are infinite, as constants: they cancel in what is computed from them."""

    def call(z: Tensor) -> Tensor:
        largest = z.detach().amax(at, keepdim=True)
        return torch.where(largest.isfinite(), largest, 0.0)

    return t.exact(call, x)


@step_of("_log_softmax", "log_softmax")
def _log_softmax(t: Tape, x: Value, dim: int, half_to_float: Any = False) -> Value:
    below = _below_largest(t, x, dim)
    total = t.sum(t.fn("exp", below), [dim], keepdim=True)
    found = t.sub(below, t.fn("log", total))
    if not t.again_from_sums:
        return found
    # x - l, with the rounding of a stored l.
    off = _from_stored_sum(t, t.exact(torch.ones_like, found), x, total, dim)
    return t.exact(lambda found, off: found + off - 1.0, found, off)


@step_of("logsumexp")
def _logsumexp(t: Tape, x: Value, dims: Any, keepdim: bool = False) -> Value:
    at = dims_of(dims, x)
    if x.z.ndim == 0:
        return x
    largest = _shift(t, x, at)
    total = t.fn("log", t.sum(t.fn("exp", t.sub(x, largest)), at, keepdim=True))
    found = t.add(total, largest)
    return found if keepdim else t.exact(lambda z: z.squeeze(tuple(at)), found)


@step_of("_softmax_backward_data")
def _softmax_backward(t: Tape, grad: Value, y: Value, dim: int, dtype: Any = None) -> Value:
    # Kernels of attention compute the sum as that of the output's products with its gradient: errors of `grad` do not cancel in it.
    total = t.sum(t.mul(t.again(grad), y), [dim], keepdim=True)
    return t.sub(t.mul(grad, y), t.mul(y, total))


@step_of("_log_softmax_backward_data")
def _log_softmax_backward(t: Tape, grad: Value, y: Value, dim: int, dtype: Any = None) -> Value:
    return t.sub(grad, t.mul(t.fn("exp", y), t.sum(grad, [dim], keepdim=True)))


def _moments(t: Tape, x: Value, at: list[int], correction: float = 0.0) -> tuple[Value, Value, Value]:
    """Mean and variance over dimensions, and the deviations from the mean."""
    count = float(count_of(x, at))
    mean = t.div(t.sum(x, at, keepdim=True), count)
    centred = t.sub(x, mean)
    return mean, t.div(t.sum(t.square(centred), at, keepdim=True), count - correction), centred


def _narrow(t: Tape, at: list[int], value: Value, keepdim: bool) -> Value:
    return value if keepdim else t.exact(lambda z: z.squeeze(tuple(at)), value)


def _correction(t: Tape, args: tuple[Any, ...], words: dict[str, Any]) -> tuple[Any, float, bool]:
    """Dimensions, correction and keepdim of the overloads of var and std."""
    if "correction" in words or (args and not isinstance(args[0], bool) and len(args) < 2):
        correction = words.get("correction")
        return (args[0] if args else words.get("dim")), 1.0 if correction is None else float(correction), bool(words.get("keepdim", False))
    if args and isinstance(args[0], bool):
        return None, float(args[0]), False
    dims = args[0] if args else words.get("dim")
    unbiased = args[1] if len(args) > 1 else words.get("unbiased", True)
    return dims, float(bool(unbiased)), bool(args[2] if len(args) > 2 else words.get("keepdim", False))


@step_of("var", "std", "var_mean", "std_mean")
def _var(t: Tape, x: Value, *args: Any, **words: Any) -> Any:
    dims, correction, keepdim = _correction(t, args, words)
    at = dims_of(dims, x)
    mean, var, _ = _moments(t, x, at, correction)
    found = _narrow(t, at, var if t.name.startswith("var") else t.fn("sqrt", var), keepdim)
    return (found, _narrow(t, at, mean, keepdim)) if t.name.endswith("mean") else found


def _shaped(t: Tape, value: Value | None, shape: list[int]) -> Value | None:
    return None if value is None else t.exact(lambda z: z.reshape(shape), value)


def _affine(t: Tape, x: Value, weight: Value | None, bias: Value | None) -> Value:
    x = x if weight is None else t.mul(x, weight)
    return x if bias is None else t.add(x, bias)


@step_of("native_layer_norm")
def _layer_norm(t: Tape, x: Value, shape: Any, weight: Value | None, bias: Value | None, eps: float) -> Any:
    at = list(range(x.z.ndim - len(shape), x.z.ndim))
    mean, var, centred = _moments(t, x, at)
    rstd = t.fn("rsqrt", t.add(var, eps))
    return _affine(t, t.mul(centred, rstd), weight, bias), mean, rstd


def _norm_backward(t: Tape, grad: Value, centred: Value, rstd: Value, at: list[int], centre: Value) -> Value:
    """The gradient of centred numbers times rstd, where both follow from the numbers.

    Kernels also compute it from sums of numbers that are not centred, with c the centre: the share of the variance from Σ g·x - c·Σ g, and
    centred numbers times that share as x·s - c·s. Each part is rounded, however small the difference is.
    """
    count = float(count_of(centred, at))
    hat = t.mul(centred, rstd)
    mean = t.div(t.sum(grad, at, keepdim=True), count)
    share = t.div(t.sum(t.mul(grad, hat), at, keepdim=True), count)

    def of_sums() -> tuple[Tensor, Tensor]:
        size = t.u * (centre.z * rstd.z).abs()
        total, squares = grad.z.sum(at, keepdim=True), grad.z.square().sum(at, keepdim=True)
        worst = size * grad.z.abs().sum(at, keepdim=True)
        return worst, torch.minimum(worst, size * ((total.square() + squares) / count).sqrt())

    def of_parts() -> tuple[Tensor, Tensor]:
        worst = (2 * t.u * (centre.z * rstd.z * share.z).abs()).expand_as(hat.z)
        return worst, worst * 3**-0.5

    parted = t.step(torch.clone, t.mul(hat, t.step(torch.clone, share, local=of_sums)), local=of_parts)
    return t.mul(rstd, t.sub(t.sub(grad, mean), parted))


@step_of("native_layer_norm_backward")
def _layer_norm_backward(
    t: Tape, grad: Value, x: Value, shape: Any, mean: Value, rstd: Value, weight: Value | None, bias: Value | None, mask: Any
) -> Any:
    at = list(range(x.z.ndim - len(shape), x.z.ndim))
    rows = list(range(x.z.ndim - len(shape)))
    centred = t.sub(x, mean)
    to_x = _norm_backward(t, grad if weight is None else t.mul(grad, weight), centred, rstd, at, mean) if mask[0] else None
    to_weight = t.sum(t.mul(grad, t.mul(centred, rstd)), rows) if mask[1] else None
    return to_x, to_weight, t.sum(grad, rows) if mask[2] else None


@step_of("_fused_rms_norm")
def _rms_norm(t: Tape, x: Value, shape: Any, weight: Value | None, eps: float | None) -> Any:
    at = list(range(x.z.ndim - len(shape), x.z.ndim))
    square = t.div(t.sum(t.square(x), at, keepdim=True), float(count_of(x, at)))
    rstd = t.fn("rsqrt", t.add(square, 1.1920928955078125e-07 if eps is None else eps))
    return _affine(t, t.mul(x, rstd), weight, None), rstd


@step_of("_fused_rms_norm_backward")
def _rms_norm_backward(t: Tape, grad: Value, x: Value, shape: Any, rstd: Value, weight: Value | None, mask: Any) -> Any:
    at = list(range(x.z.ndim - len(shape), x.z.ndim))
    rows = list(range(x.z.ndim - len(shape)))
    hat = t.mul(x, rstd)
    scaled = grad if weight is None else t.mul(grad, weight)
    share = t.div(t.sum(t.mul(scaled, hat), at, keepdim=True), float(count_of(x, at)))
    to_x = t.mul(rstd, t.sub(scaled, t.mul(hat, share))) if mask[0] else None
    return to_x, t.sum(t.mul(grad, hat), rows) if mask[1] else None


def _grouped(t: Tape, x: Value, groups: int) -> Value:
    return t.exact(lambda z: z.reshape(z.shape[0], groups, -1), x)


@step_of("native_group_norm")
def _group_norm(t: Tape, x: Value, weight: Value | None, bias: Value | None, n: int, c: int, hw: int, groups: int, eps: float) -> Any:
    mean, var, centred = _moments(t, _grouped(t, x, groups), [2])
    rstd = t.fn("rsqrt", t.add(var, eps))
    shape = list(x.z.shape)
    hat = t.exact(lambda z: z.reshape(shape), t.mul(centred, rstd))
    of_channel = [1, c, *[1] * (x.z.ndim - 2)]
    found = _affine(t, hat, _shaped(t, weight, of_channel), _shaped(t, bias, of_channel))
    return found, _narrow(t, [2], mean, False), _narrow(t, [2], rstd, False)


@step_of("native_group_norm_backward")
def _group_norm_backward(
    t: Tape, grad: Value, x: Value, mean: Value, rstd: Value, weight: Value | None, n: int, c: int, hw: int, groups: int, mask: Any
) -> Any:
    of_channel = [1, c, *[1] * (x.z.ndim - 2)]
    shape = list(x.z.shape)
    scaled = grad if weight is None else t.mul(grad, _shaped(t, weight, of_channel))
    wide = [t.exact(lambda z: z.unsqueeze(-1), value) for value in (mean, rstd)]
    centred = t.sub(_grouped(t, x, groups), wide[0])
    to_x = _norm_backward(t, _grouped(t, scaled, groups), centred, wide[1], [2], wide[0])
    hat = t.exact(lambda z: z.reshape(shape), t.mul(centred, wide[1]))
    rows = [0, *range(2, x.z.ndim)]
    return (
        t.exact(lambda z: z.reshape(shape), to_x) if mask[0] else None,
        t.sum(t.mul(grad, hat), rows) if mask[1] else None,
        t.sum(grad, rows) if mask[2] else None,
    )


def _batch_norm(t: Tape, x: Value, weight: Value | None, bias: Value | None, mean: Any, var: Any, training: bool, eps: float) -> Any:
    at = [0, *range(2, x.z.ndim)]
    of_channel = [1, -1, *[1] * (x.z.ndim - 2)]
    if training:
        mean, var, centred = _moments(t, x, at)
    else:
        mean, var = _shaped(t, mean, of_channel), _shaped(t, var, of_channel)
        assert mean is not None and var is not None
        centred = t.sub(x, mean)
    rstd = t.fn("rsqrt", t.add(var, eps))
    w, b = _shaped(t, weight, of_channel), _shaped(t, bias, of_channel)
    # Kernels compute x·(w·rstd) + (b − mean·w·rstd): both terms are rounded, however small their sum is.
    gain = rstd if w is None else t.mul(rstd, w)
    shift = t.mul(mean, gain)
    hat = t.mul(centred, gain)
    found = hat if b is None else t.add(hat, b)
    extra = t.step(torch.zeros_like, found, local=lambda: _twice(t, shift, found))
    found = t.exact(torch.add, found, extra)
    kept = [t.exact(lambda z: z.reshape(-1), value) for value in (mean, rstd)]
    return (found, *kept) if training else (found, t.exact(lambda z: z[:0], kept[0]), t.exact(lambda z: z[:0], kept[1]))


def _twice(t: Tape, shift: Value, like: Value) -> tuple[Tensor, Tensor]:
    worst = (2 * t.u * shift.z.abs()).expand_as(like.z)
    return worst, worst * 3**-0.5


@step_of("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm")
def _native_batch_norm(t: Tape, x: Value, weight: Any, bias: Any, *args: Any) -> Any:
    *running, training, _, eps = args
    mean, var = running or (None, None)
    found = _batch_norm(t, x, weight, bias, mean, var, training, eps)
    return (*found, t.exact(lambda z: z[:0].reshape(-1)[:0], x)) if t.name.startswith("cudnn") else found


@step_of("_native_batch_norm_legit_no_training")
def _batch_norm_eval(t: Tape, x: Value, weight: Any, bias: Any, mean: Any, var: Any, _: Any, eps: float) -> Any:
    return _batch_norm(t, x, weight, bias, mean, var, False, eps)


@step_of("native_batch_norm_backward")
def _batch_norm_backward(
    t: Tape, grad: Value, x: Value, weight: Value | None, mean: Any, var: Any, save_mean: Any, save_rstd: Any, train: bool, eps: float, mask: Any
) -> Any:
    at = [0, *range(2, x.z.ndim)]
    of_channel = [1, -1, *[1] * (x.z.ndim - 2)]
    rstd = _shaped(t, save_rstd if train else t.fn("rsqrt", t.add(var, eps)), of_channel)
    centre = _shaped(t, save_mean if train else mean, of_channel)
    assert rstd is not None and centre is not None
    centred = t.sub(x, centre)
    scaled = grad if weight is None else t.mul(grad, _shaped(t, weight, of_channel))
    to_x = _norm_backward(t, scaled, centred, rstd, at, centre) if train else t.mul(scaled, rstd)
    return (
        to_x if mask[0] else None,
        t.sum(t.mul(grad, t.mul(centred, rstd)), at) if mask[1] else None,
        t.sum(grad, at) if mask[2] else None,
    )


@step_of("linalg_vector_norm", "norm")
def _vector_norm(t: Tape, x: Value, order: Any = 2, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    at, order = dims_of(dims, x), 2 if order is None else order
    if order == 2:
        return t.fn("sqrt", t.sum(t.square(x), at, keepdim))
    if order == 1:
        return t.sum(absolute(t, x), at, keepdim)
    if math.isinf(order):
        return _largest(t, absolute(t, x), at, keepdim, order < 0)
    if order == 0:
        return t.sum(t.step(lambda z: (z != 0).double(), x, decides=True), at, keepdim)
    powers = t.units("pow", torch.pow, absolute(t, x), order, extra=t.constant(order))
    return t.units("pow", torch.pow, t.sum(powers, at, keepdim), 1 / order)


def _largest(t: Tape, x: Value, at: list[int], keepdim: bool, least: bool = False) -> Value:
    call = torch.amin if least else torch.amax
    x.needs_spread = True

    def kinked(x: Tensor, off: Tensor) -> Tensor:
        found = call(x, at, keepdim=True).detach()
        near = (x.detach() - found).abs() <= off + off.amax(at, keepdim=True)
        moved = torch.where(near, x, 0.0).sum(at, keepdim=True)
        whole = found + moved - moved.detach()
        return whole if keepdim else whole.squeeze(tuple(at))

    return t.step(lambda z: call(z, at, keepdim=keepdim), x, kinked=kinked)


@step_of("amax", "amin")
def _amax(t: Tape, x: Value, dims: Any = None, keepdim: bool = False) -> Value:
    return _largest(t, x, dims_of(dims, x), keepdim, t.name == "amin")


@step_of("max", "min")
def _max(t: Tape, x: Value, *args: Any, **words: Any) -> Any:
    if args and isinstance(args[0], Value):
        return pair_of(t, getattr(torch, t.name + "imum"), x, args[0])
    if not args and not words:
        return _largest(t, x, dims_of(None, x), False, t.name == "min")
    call = getattr(torch, t.name)
    return t.steps_of(lambda z: tuple(call(z, *args, **words)), x, decides=True)


@step_of("mse_loss")
def _mse_loss(t: Tape, x: Value, target: Value, reduction: int = 1) -> Value:
    return _reduced(t, t.square(t.sub(x, target)), reduction)


def _reduced(t: Tape, loss: Value, reduction: int) -> Value:
    return loss if reduction == 0 else mean_of(t, loss) if reduction == 1 else t.sum(loss)


@step_of("mse_loss_backward")
def _mse_loss_backward(t: Tape, grad: Value, x: Value, target: Value, reduction: int) -> Value:
    factor = 2 / x.z.numel() if reduction == 1 else 2
    return t.mul(t.mul(t.sub(x, target), factor), grad)


@step_of("smooth_l1_loss", "huber_loss")
def _huber_loss(t: Tape, x: Value, target: Value, reduction: int = 1, beta: float = 1.0) -> Value:
    off = absolute(t, t.sub(x, target))
    huber = t.name.startswith("huber")
    # ½·min(d, β)² + β·(d − min(d, β)), divided by β for smooth L1.
    inner = between(t, off, None, beta)
    square = t.mul(t.square(inner), 0.5 if huber else 0.5 / beta)
    outer = t.sub(off, inner)
    return _reduced(t, t.add(square, t.mul(outer, beta) if huber else outer), reduction)


@step_of("nll_loss_forward", "nll_loss2d_forward")
def _nll_loss(t: Tape, x: Value, target: Value, weight: Value | None, reduction: int, ignore: int) -> Any:
    classes = x.z.shape[1] if x.z.ndim > 1 else x.z.shape[0]

    def chosen(x: Tensor, target: Tensor) -> Tensor:
        dim = 1 if x.ndim > 1 else 0
        at = target.clamp(0, classes - 1)
        return -x.gather(dim, at.unsqueeze(dim)).squeeze(dim)

    loss = t.exact(chosen, x, target)
    kept = t.exact(lambda target: (target != ignore).double(), target)
    weights = kept if weight is None else t.exact(lambda w, at, kept: w[at.clamp(0, classes - 1)] * kept, weight, target, kept)
    loss = t.exact(torch.mul, loss, kept) if weight is None else t.mul(loss, weights)
    total = t.sum(weights)
    if reduction == 0:
        return loss, t.exact(lambda z: z * 0, total)
    return (t.div(t.sum(loss), total) if reduction == 1 else t.sum(loss)), total


@step_of("nll_loss_backward", "nll_loss2d_backward")
def _nll_loss_backward(t: Tape, grad: Value, x: Value, target: Value, weight: Value | None, reduction: int, ignore: int, total: Value) -> Value:
    dim = 1 if x.z.ndim > 1 else 0
    classes = x.z.shape[dim]
    if reduction == 1:
        grad = t.div(grad, total)
    chosen = t.exact(lambda at: -torch.nn.functional.one_hot(at.clamp(0, classes - 1), classes).double().movedim(-1, dim), target)
    kept = t.exact(lambda at: (at != ignore).double().unsqueeze(dim), target)
    if reduction == 0:
        grad = t.exact(lambda g: g.unsqueeze(dim), grad)
    found = t.exact(lambda g, chosen, kept: g * chosen * kept, grad, chosen, kept)
    if weight is None:
        return found
    return t.mul(found, t.exact(lambda w: w.reshape([-1] + [1] * (x.z.ndim - dim - 1)), weight))


@step_of("binary_cross_entropy_with_logits")
def _bce_logits(t: Tape, x: Value, target: Value, weight: Value | None = None, pos_weight: Value | None = None, reduction: int = 1) -> Value:
    low = softplus(t, t.neg(x))
    if pos_weight is not None:
        low = t.mul(low, t.add(t.mul(t.sub(pos_weight, 1.0), target), 1.0))
    loss = t.add(t.mul(t.sub(1.0, target), x), low)
    return _reduced(t, loss if weight is None else t.mul(loss, weight), reduction)


@step_of("binary_cross_entropy")
def _bce(t: Tape, x: Value, target: Value, weight: Value | None = None, reduction: int = 1) -> Value:
    def log(p: Value) -> Value:
        return between(t, t.fn("log", p), -100.0, None)

    loss = t.neg(t.add(t.mul(target, log(x)), t.mul(t.sub(1.0, target), log(t.sub(1.0, x)))))
    return _reduced(t, loss if weight is None else t.mul(loss, weight), reduction)


@step_of("dist")
def _dist(t: Tape, a: Value, b: Value, order: Any = 2) -> Value:
    return _vector_norm(t, t.sub(a, b), order)


@step_of("logaddexp")
def _logaddexp(t: Tape, a: Value, b: Value) -> Value:
    largest = pair_of(t, torch.maximum, a, b)
    found = t.add(largest, t.fn("log1p", t.fn("exp", t.neg(absolute(t, t.sub(a, b))))))
    # Equal infinities have no difference.
    return t.exact(lambda most, found: torch.where(most.isinf(), most, found), largest, found)


@step_of("smooth_l1_loss_backward", "huber_loss_backward")
def _huber_backward(t: Tape, grad: Value, x: Value, target: Value, reduction: int, beta: float) -> Value:
    scale = 1.0 if t.name.startswith("huber") else 1 / beta
    found = t.mul(between(t, t.sub(x, target), -beta, beta), scale / (x.z.numel() if reduction == 1 else 1))
    return t.mul(found, grad)


@step_of("_weight_norm_interface")
def _weight_norm(t: Tape, v: Value, g: Value, dim: int = 0) -> Any:
    at = [one for one in range(v.z.ndim) if one != dim]
    norm = t.fn("sqrt", t.sum(t.square(v), at, keepdim=True))
    return t.mul(v, t.div(g, norm)), norm
