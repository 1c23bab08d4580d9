"""Functions of numpy that torch has not by numpy's name, or has otherwise."""

from __future__ import annotations

import functools
import operator
from typing import Any, Callable

import numpy

from ._arrays import FUNCTIONS, NUMBERS, TNP, Array, common, into, of_torch, tensor
from ._torch import Tensor, torch


def _where(condition: Any, *either: Any) -> Any:
    if not either:
        return numpy.nonzero(condition)
    dtype = numpy.result_type(*(x if type(x) in NUMBERS else numpy.ones((1,) * min(numpy.ndim(x), 1), common(x)) for x in either))
    return Array(torch.where(tensor(condition, bool), *(tensor(x, dtype) for x in either)))


def _clip(x: Any, low: Any = None, high: Any = None, out: Any = None, **more: Any) -> Any:
    low, high = more.get("min", low), more.get("max", high)
    found = x if low is None else numpy.maximum(x, low)
    found = found if high is None else numpy.minimum(found, high)
    return found if out is None else into(out, found)


def _along(call: Callable[..., Any], axis: int, x: Any, *args: Any, **more: Any) -> Any:
    rows = numpy.moveaxis(x, axis, -1)
    found = [call(row, *args, **more) for row in rows.reshape(-1, rows.shape[-1])]
    made = Array(tensor(found))
    more_dims, at = made.ndim - 1, axis % x.ndim
    whole = made.reshape(rows.shape[:-1] + made.shape[1:])
    return numpy.moveaxis(whole, range(rows.ndim - 1, rows.ndim - 1 + more_dims), range(at, at + more_dims))


def _filled(x: Any, value: Any, dtype: Any = None, shape: Any = None, **_: Any) -> Any:
    found = tensor(value, x.dtype if dtype is None else dtype)
    return Array(found.expand(x.shape if shape is None else shape).clone())


def _of_rows(call: Callable[..., Tensor]) -> Callable[..., Any]:
    """A function of scipy.special over one axis, or over all elements."""

    def of(x: Any, axis: Any = None) -> Any:
        x = tensor(x, x.dtype if x.dtype.kind == "f" else float)
        return Array(call(x, axis) if axis is not None else call(x.reshape(-1), 0).reshape(x.shape))

    return of


def _logsumexp(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    axis = tuple(range(x.ndim)) if axis is None else axis
    return Array(torch.logsumexp(tensor(x, x.dtype if x.dtype.kind == "f" else float), axis, keepdims))


#: Functions of scipy.special that are not operations on every element.
SPECIAL: dict[str, Callable[..., Any]] = {
    "softmax": _of_rows(torch.softmax),
    "log_softmax": _of_rows(torch.log_softmax),
    "logsumexp": _logsumexp,
}


def _reshaped(x: Any, shape: Any, order: str = "C", **_: Any) -> Any:
    shape = tuple(map(operator.index, shape)) if isinstance(shape, (tuple, list)) else (operator.index(shape),)
    return Array(x.tensor.reshape(shape)) if order != "F" else x.T.reshape(shape[::-1]).T


def _joined(call: Callable[..., Tensor]) -> Callable[..., Any]:
    def of(arrays: Any, axis: Any = 0, out: Any = None, dtype: Any = None, **_: Any) -> Any:
        arrays = [x if hasattr(x, "dtype") else Array(tensor(x)) for x in arrays]
        dtype = common(*arrays) if dtype is None else dtype
        parts = [tensor(x, dtype) for x in arrays]
        parts, axis = ([x.reshape(-1) for x in parts], 0) if axis is None else (parts, axis)
        found = Array(call(parts, axis))
        return found if out is None else into(out, found)

    return of


def _einsum(equation: str, *arrays: Any, optimize: Any = False, dtype: Any = None, out: Any = None, **_: Any) -> Any:
    dtype = common(*arrays) if dtype is None else dtype
    found = Array(torch.einsum(equation, *(tensor(x, dtype) for x in arrays)))
    return found if out is None else into(out, found)


def _dot(a: Any, b: Any, out: Any = None) -> Any:
    if numpy.ndim(b) > 2:
        return of_torch(TNP.dot, a, b, out=out)
    found = numpy.matmul(a, b) if numpy.ndim(a) and numpy.ndim(b) else numpy.multiply(a, b)
    return found if out is None else into(out, found)


def _sum(x: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, where: Any = True, **more: Any) -> Any:
    x = x if where is True else numpy.where(where, x, x.dtype.type(0))
    return of_torch(TNP.sum, x, axis, dtype=dtype, out=out, keepdims=bool(keepdims), **more)


def _selected(conditions: Any, choices: Any, default: Any = 0) -> Any:
    for condition, choice in zip(reversed(conditions), reversed(choices)):
        default = numpy.where(condition, choice, default)
    return default


def _windows(x: Any, window_shape: Any, axis: Any = None, **_: Any) -> Any:
    sizes = window_shape if isinstance(window_shape, (tuple, list)) else (window_shape,)
    axes = range(x.ndim) if axis is None else axis if isinstance(axis, (tuple, list)) else (axis,)
    found = x.tensor
    for at, size in zip(axes, sizes, strict=True):
        found = found.unfold(at % x.ndim, size, 1)
    return Array(found)


def _trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    y = numpy.moveaxis(y, axis, -1)
    return ((dx if x is None else numpy.diff(x)) * (y[..., 1:] + y[..., :-1]) / 2.0).sum(-1)


FUNCTIONS |= {
    "where": _where,
    "clip": _clip,
    "apply_along_axis": _along,
    "full_like": _filled,
    "reshape": _reshaped,
    "concatenate": _joined(torch.cat),
    "stack": _joined(torch.stack),
    "einsum": _einsum,
    "dot": _dot,
    "sum": _sum,
    "select": _selected,
    "trapezoid": _trapezoid,
    "lib.stride_tricks.sliding_window_view": _windows,
    "outer": lambda a, b: numpy.multiply.outer(numpy.ravel(a), numpy.ravel(b)),
    "diag": lambda x, k=0: Array(torch.diagonal(x.tensor, k).clone()) if x.ndim == 2 else of_torch(TNP.diag, x, k),
    "polyval": lambda p, x: functools.reduce(lambda y, c: y * x + c, numpy.asarray(p), numpy.zeros_like(x)),
    "copy": lambda x, *_, **__: x.copy(),
    "astype": lambda x, dtype, **_: x.astype(dtype),
    "partition": lambda x, kth, axis=-1, **_: numpy.sort(x, axis),
    "argpartition": lambda x, kth, axis=-1, **_: numpy.argsort(x, axis),
    "shape": lambda x: x.shape,
    "ndim": lambda x: x.ndim,
    "size": lambda x, axis=None: x.size if axis is None else x.shape[axis],
    "may_share_memory": lambda *_: False,
    "iscomplexobj": lambda x: bool(x.tensor.is_complex()),
    "isrealobj": lambda x: not x.tensor.is_complex(),
}
