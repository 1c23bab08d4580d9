"""Operations of torch that are the primitives of jax, by the primitives' names: each takes the parameters, then tensors."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any, Callable

from . import _jax_indices, _jax_windows
from ._arrays import bounded, torch_type
from ._torch import Tensor, torch
from ._values import names_in

_PRIMITIVES: dict[str, Callable[..., Any]] = {**_jax_indices.PRIMITIVES, **_jax_windows.PRIMITIVES}
_primitive = names_in(_PRIMITIVES)
Params = dict[str, Any]


def find(name: str) -> Callable[..., Any] | None:
    """The operation of torch that a primitive is; None if there is none."""
    return _PRIMITIVES.get(name.replace("-", "_"))


_larger, _smaller = bounded(torch.maximum, "min"), bounded(torch.minimum, "max")
# Operations on every element. Of two operands, one may be a number.
_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    name: getattr(torch, name)
    for name in (
        "abs neg sign floor ceil exp exp2 expm1 log log1p sqrt rsqrt tanh sin cos tan sinh cosh asin acos atan asinh acosh atanh erf erfc "
        "lgamma digamma square atan2 real imag complex conj"
    ).split()
} | {name: getattr(operator, name) for name in "add sub mul pow eq ne lt le gt ge".split()}
_ELEMENTWISE |= {
    "max": _larger,
    "min": _smaller,
    "clamp": lambda low, x, high: _smaller(_larger(x, low), high),
    "erf_inv": torch.erfinv,
    "lt_to": torch.lt,
    "le_to": torch.le,
    "logistic": torch.sigmoid,
    "is_finite": torch.isfinite,
    "add_any": torch.add,
    "not": torch.bitwise_not,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "rem": torch.fmod,
    "nextafter": torch.nextafter,
    "cbrt": lambda x: torch.sign(x) * torch.abs(x) ** (1 / 3),
    "polygamma": lambda order, x: torch.polygamma(int(order.reshape(-1)[0]), x),
}
_PRIMITIVES |= {name: functools.partial(lambda call, params, *given: call(*given), call) for name, call in _ELEMENTWISE.items()}
# Primitives that take numbers in the place of tensors.
NUMBERS = set("add sub mul div pow max min eq ne lt le gt ge clamp".split())


@_primitive("div")
def _div(params: Params, a: Any, b: Any) -> Tensor:
    x = a if isinstance(a, torch.Tensor) else b
    return a / b if x.is_floating_point() or x.is_complex() else torch.div(a, b, rounding_mode="trunc")


@_primitive("integer_pow")
def _integer_pow(params: Params, x: Tensor) -> Tensor:
    return x ** params["y"]


@_primitive("round")
def _round(params: Params, x: Tensor) -> Tensor:
    if int(params["rounding_method"]) == 1:
        return torch.round(x)
    return torch.sign(x) * torch.floor(torch.abs(x) + 0.5)


@_primitive("select_n")
def _select(params: Params, which: Tensor, *cases: Tensor) -> Tensor:
    if which.dtype == torch.bool:
        return torch.where(which, *reversed(cases))
    found = cases[0]
    for at, case in enumerate(cases[1:], 1):
        found = torch.where(which == at, case, found)
    return found


# Types.


@_primitive("convert_element_type")
def _convert(params: Params, x: Tensor) -> Tensor:
    return x.to(torch_type(params["new_dtype"]), copy=True)


@_primitive("reduce_precision")
def _reduce_precision(params: Params, x: Tensor) -> Tensor:
    sizes = params["exponent_bits"], params["mantissa_bits"]
    own = torch.finfo(x.dtype)
    for dtype, (exponent, mantissa) in {torch.float16: (5, 10), torch.bfloat16: (8, 7), torch.float32: (8, 23)}.items():
        if sizes == (exponent, mantissa) and torch.finfo(dtype).eps >= own.eps:
            return x.to(dtype).to(x.dtype)
    raise NotImplementedError(f"a type of {sizes[0]} exponent and {sizes[1]} mantissa bits")


@_primitive("stop_gradient", "copy", "copy_p", "device_put", "sharding_constraint", "optimization_barrier", "pvary", "reshard")
def _as_is(params: Params, *given: Tensor) -> Any:
    return given


# Shapes.


@_primitive("iota")
def _iota(params: Params, *_: Any) -> Tensor:
    shape, dim = params["shape"], params["dimension"]
    row = torch.arange(shape[dim]).to(torch_type(params["dtype"]))
    return row.reshape([size if at == dim else 1 for at, size in enumerate(shape)]).expand(tuple(shape))


@_primitive("broadcast_in_dim")
def _broadcast(params: Params, x: Tensor, *_: Any) -> Tensor:
    shape, at = params["shape"], dict(zip(params["broadcast_dimensions"], x.shape))
    return x.reshape([at.get(dim, 1) for dim in range(len(shape))]).expand(tuple(shape))


@_primitive("reshape")
def _reshape(params: Params, x: Tensor, *_: Any) -> Tensor:
    order = params.get("dimensions")
    return (x if order is None else x.permute(tuple(order))).reshape(tuple(params["new_sizes"]))


@_primitive("squeeze")
def _squeeze(params: Params, x: Tensor) -> Tensor:
    gone = {dim % x.ndim for dim in params["dimensions"]}
    return x.reshape([size for dim, size in enumerate(x.shape) if dim not in gone])


@_primitive("expand_dims")
def _expand(params: Params, x: Tensor) -> Tensor:
    for dim in sorted(params["dimensions"]):
        x = x.unsqueeze(int(dim))
    return x


@_primitive("transpose")
def _transpose(params: Params, x: Tensor) -> Tensor:
    return x.permute(tuple(map(int, params["permutation"])))


@_primitive("concatenate")
def _concatenate(params: Params, *parts: Tensor) -> Tensor:
    return torch.cat(parts, params["dimension"])


@_primitive("split")
def _split(params: Params, x: Tensor) -> Any:
    return torch.split(x, list(params["sizes"]), params["axis"])


@_primitive("rev")
def _reverse(params: Params, x: Tensor) -> Tensor:
    return x.flip(tuple(map(int, params["dimensions"])))


@_primitive("slice")
def _slice(params: Params, x: Tensor) -> Tensor:
    steps = params["strides"] or [1] * x.ndim
    return x[tuple(map(slice, params["start_indices"], params["limit_indices"], steps))]


# Reductions, and scans of an axis.


@_primitive("reduce_sum")
def _sum(params: Params, x: Tensor) -> Tensor:
    axes = tuple(map(int, params["axes"]))
    return x.sum(axes, dtype=x.dtype) if axes else x


def _reduced(call: Callable[..., Tensor], params: Params, x: Tensor) -> Tensor:
    for axis in sorted(map(int, params["axes"]), reverse=True):
        x = call(x, axis)
    return x


for _name, _call in {
    "max": torch.amax,
    "min": torch.amin,
    "and": torch.all,
    "or": torch.any,
    "prod": lambda x, axis: x.prod(axis, dtype=x.dtype),
}.items():
    _PRIMITIVES[f"reduce_{_name}"] = functools.partial(_reduced, _call)

for _name in ("argmax", "argmin"):
    _PRIMITIVES[_name] = functools.partial(
        lambda call, params, x: call(x, int(params["axes"][0])).to(torch_type(params["index_dtype"])), getattr(torch, _name)
    )


def _scanned(call: Callable[..., Tensor], params: Params, x: Tensor) -> Tensor:
    axis = params["axis"]
    return call(x.flip(axis), axis).flip(axis) if params["reverse"] else call(x, axis)


for _name, _call in {
    "cumsum": lambda x, axis: torch.cumsum(x, axis, dtype=x.dtype),
    "cumprod": lambda x, axis: torch.cumprod(x, axis, dtype=x.dtype),
    "cumlogsumexp": torch.logcumsumexp,
    "cummax": lambda x, axis: torch.cummax(x, axis).values,
    "cummin": lambda x, axis: torch.cummin(x, axis).values,
}.items():
    _PRIMITIVES[_name] = functools.partial(_scanned, _call)


# Products.


@_primitive("dot_general")
def _dot(params: Params, a: Tensor, b: Tensor) -> Tensor:
    (inner_a, inner_b), (batch_a, batch_b) = params["dimension_numbers"]
    a, b = _jax_windows.preferred(params, a, b)
    outer_a, outer_b = (
        [dim for dim in range(x.ndim) if dim not in (*inner, *batch)] for x, inner, batch in ((a, inner_a, batch_a), (b, inner_b, batch_b))
    )
    batch = [a.shape[dim] for dim in batch_a]
    rows, columns = [a.shape[dim] for dim in outer_a], [b.shape[dim] for dim in outer_b]
    inner = math.prod(a.shape[dim] for dim in inner_a)
    left = a.permute(*batch_a, *outer_a, *inner_a).reshape(math.prod(batch), math.prod(rows), inner)
    right = b.permute(*batch_b, *inner_b, *outer_b).reshape(math.prod(batch), inner, math.prod(columns))
    found = torch.bmm(left, right) if batch else torch.mm(left[0], right[0])
    return found.reshape(*batch, *rows, *columns)


@_primitive("ragged_dot_general")
def _ragged_dot(params: Params, a: Tensor, b: Tensor, sizes: Tensor, *_: Any) -> Tensor:
    dims = params["ragged_dot_dimension_numbers"]
    (inner_a, inner_b), batch = dims.dot_dimension_numbers
    (rows,), of = dims.lhs_ragged_dimensions, list(dims.rhs_group_dimensions)
    if any(batch) or sizes.ndim != 1 or params.get("group_offset") is not None:
        raise NotImplementedError("groups of a product that are of a batch, or that do not begin with the first")
    counts = [int(size) for size in sizes]
    counts.append(a.shape[rows] - sum(counts))
    parts = torch.split(a, counts, rows)[:-1]
    summed = rows in inner_a
    others = torch.split(b, counts, inner_b[inner_a.index(rows)]) if summed else b.unbind(of[0])
    numbers = (inner_a, inner_b if summed else tuple(dim - (dim > of[0]) for dim in inner_b)), batch
    found = [_dot({**params, "dimension_numbers": numbers}, *pair) for pair in zip(parts, others)]
    if summed:
        return torch.stack(found)
    # Rows that are in no group are 0.
    place = sum(dim not in inner_a for dim in range(rows))
    shape = [counts[-1] if dim == place else size for dim, size in enumerate(found[0].shape)]
    return torch.cat([*found, found[0].new_zeros(shape)], place)


@_primitive("fft")
def _fft(params: Params, x: Tensor) -> Tensor:
    kind, sizes = str(params["fft_type"]).rpartition(".")[2].lower(), list(params["fft_lengths"])
    kind = {"0": "fft", "1": "ifft", "2": "rfft", "3": "irfft"}.get(kind, kind)
    found: Tensor = getattr(torch.fft, f"{kind}n")(x, s=sizes, dim=list(range(-len(sizes), 0)))
    return found


@_primitive("triangular_solve")
def _triangular_solve(params: Params, a: Tensor, b: Tensor) -> Tensor:
    lower = params["lower"]
    if params["transpose_a"]:
        a, lower = a.mT, not lower
    return torch.linalg.solve_triangular(a, b, upper=not lower, left=params["left_side"], unitriangular=params["unit_diagonal"])


@_primitive("cholesky")
def _cholesky(params: Params, a: Tensor) -> Tensor:
    return torch.linalg.cholesky(a)


# Order.


@_primitive("sort")
def _sort(params: Params, *given: Tensor) -> Any:
    axis = params["dimension"]
    if params["num_keys"] != 1:
        raise NotImplementedError("a sort by several keys")
    values, order = torch.sort(given[0], dim=axis, stable=True)
    return [values, *(torch.gather(x, axis, order) for x in given[1:])]


@_primitive("top_k")
def _top_k(params: Params, x: Tensor) -> Any:
    axis, count = params.get("axis", -1), params["k"]
    # Of equal numbers, the first, as jax has it.
    values, order = torch.sort(x, dim=axis, stable=True, descending=True)
    return values.narrow(axis, 0, count), order.narrow(axis, 0, count).to(torch.int32)
