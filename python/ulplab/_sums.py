"""Steps of sums: reductions, products of matrices, convolutions, pooling, and the adjoints of moves."""

from __future__ import annotations

import functools
import math
from typing import Any, Callable

from ._steps import count_of, dims_of, step_of
from ._roundings import distinct
from ._tape import Tape
from ._torch import Tensor, torch
from ._values import Value

aten = torch.ops.aten


@step_of("sum")
def _sum(t: Tape, x: Value, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    return t.sum(x, dims_of(dims, x), keepdim)


@step_of("mean")
def mean_of(t: Tape, x: Value, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    at = dims_of(dims, x)
    return t.div(t.sum(x, at, keepdim), float(count_of(x, at)))


@step_of("cumsum")
def _cumsum(t: Tape, x: Value, dim: int, dtype: Any = None) -> Value:
    def total(z: Tensor) -> Tensor:
        return z.cumsum(dim)

    def wide() -> Tensor | float:
        if x.z.ndim == 0 or x.z.shape[dim] <= 64:
            return 1.0
        rows = x.z.movedim(dim, -1)
        return t.widening(rows.reshape(-1, rows.shape[-1])).reshape(rows.shape[:-1]).unsqueeze(-1).movedim(-1, dim)

    return t.linear(total, wide, x)


@step_of("cumprod")
def _cumprod(t: Tape, x: Value, dim: int, dtype: Any = None) -> Value:
    out: list[Value] = []

    def local() -> tuple[Tensor, Tensor]:
        count = torch.ones_like(x.z).cumsum(dim)
        return t.u * count * out[0].z.abs(), t.u * count.sqrt() * out[0].z.abs()

    out.append(t.step(lambda z: z.cumprod(dim), x, local=local))
    return out[0]


@step_of("prod")
def _prod(t: Tape, x: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    out: list[Value] = []
    count = x.z.numel() if dim is None else x.z.shape[dim]
    # Half the smallest number of f16, or of f32: a product of some factors may be smaller, and the others large.
    least = 2.0**-25 if t.u == 2.0**-11 else 2.0**-150

    def local() -> tuple[Tensor, Tensor]:
        factors = x.z.abs().reshape(-1) if dim is None else x.z.abs()
        at = 0 if dim is None else dim
        lost = least * factors.flip(at).clamp(min=1.0).prod(at, keepdim=keepdim and dim is not None) * count
        return t.u * count * out[0].z.abs() + lost, t.u * math.sqrt(count) * out[0].z.abs() + lost

    out.append(t.step(lambda z: z.prod() if dim is None else z.prod(dim, keepdim), x, local=local))
    return out[0]


def _product_width(t: Tape, a: Tensor, b: Tensor) -> Callable[[], Any]:
    """How much equal products widen the deviations of a matrix product: those of a row with some column, and of a column with some row."""

    def plainest(rows: Tensor) -> set[int]:
        # The first row, and that with the fewest distinct numbers.
        some = rows[..., : min(rows.shape[-1], 64)].sort(-1).values
        return {0, int((some.diff(dim=-1) != 0).sum(-1).argmin())}

    def of(rows: Tensor, others: Tensor) -> Tensor:
        return functools.reduce(torch.maximum, [t.widening(rows * others[at]) for at in plainest(others)])

    def wide() -> Any:
        count = a.shape[-1]
        if count <= 64 or t.u == 0:
            return 1.0
        rows, columns = a.reshape(-1, count), b.transpose(-1, -2).reshape(-1, count)
        shapes = (*a.shape[:-1], 1), (*b.shape[:-2], 1, b.shape[-1])
        # The smaller of both: 1 if one of them is 1 everywhere.
        pairs = sorted([(rows, columns, shapes[0]), (columns, rows, shapes[1])], key=lambda pair: len(pair[0]))
        first = of(*pairs[0][:2])
        if bool((first == 1).all()):
            return 1.0
        return torch.minimum(first.reshape(pairs[0][2]), of(*pairs[1][:2]).reshape(pairs[1][2]))

    return wide


@step_of("mm", "bmm", "matmul")
def matrix_product(t: Tape, a: Value, b: Value, dtype: Any = None) -> Value:
    return t.bilinear(torch.matmul, _product_width(t, a.z, b.z), a, b)


@step_of("mv")
def _mv(t: Tape, a: Value, b: Value) -> Value:
    return t.exact(lambda z: z.squeeze(-1), matrix_product(t, a, t.exact(lambda z: z.unsqueeze(-1), b)))


@step_of("dot", "vdot")
def _dot(t: Tape, a: Value, b: Value) -> Value:
    rows = matrix_product(t, t.exact(lambda z: z.unsqueeze(0), a), t.exact(lambda z: z.unsqueeze(-1), b))
    return t.exact(lambda z: z.reshape(()), rows)


@step_of("addmm", "baddbmm", "addmv")
def _addmm(t: Tape, x: Value, a: Value, b: Value, beta: Any = 1, alpha: Any = 1) -> Value:
    product = _mv(t, a, b) if b.z.ndim == 1 else matrix_product(t, a, b)
    if alpha != 1:
        product = t.mul(product, alpha)
    if beta == 0:
        return product
    return t.add(product, t.mul(x, beta) if beta != 1 else x)


@step_of("linear")
def _linear(t: Tape, x: Value, weight: Value, bias: Value | None = None) -> Value:
    found = matrix_product(t, x, t.exact(lambda z: z.T, weight))
    return found if bias is None else t.add(found, bias)


@step_of("convolution", "_convolution")
def _convolution(
    t: Tape, x: Value, weight: Value, bias: Value | None, stride: Any, padding: Any, dilation: Any, transposed: bool, extra: Any, groups: int, *_: Any
) -> Value:
    def call(x: Tensor, w: Tensor) -> Tensor:
        return aten.convolution(x, w, None, stride, padding, dilation, transposed, extra, groups)

    found = t.bilinear(call, _width(x, weight), x, weight)
    if bias is None:
        return found
    return t.add(found, t.exact(lambda z: z.reshape(-1, *[1] * (x.z.ndim - 2)), bias))


def _width(a: Value, b: Value) -> Callable[[], float]:
    """How much equal products widen the deviations of a convolution: not at all, or by 8 if one operand has few distinct numbers."""
    return lambda: 1.0 if distinct(a.z) and distinct(b.z) else 8.0


@step_of("convolution_backward")
def _convolution_backward(t: Tape, grad: Value, x: Value, weight: Value, *args: Any) -> Any:
    *rest, mask = args

    def to_x(g: Tensor, w: Tensor) -> Tensor:
        return aten.convolution_backward(g, x.z, w, *rest, [True, False, False])[0]

    def to_weight(g: Tensor, x: Tensor) -> Tensor:
        return aten.convolution_backward(g, x, weight.z, *rest, [False, True, False])[1]

    dims = [0, *range(2, grad.z.ndim)]
    return (
        t.bilinear(to_x, _width(grad, weight), grad, weight) if mask[0] else None,
        t.bilinear(to_weight, _width(grad, x), grad, x) if mask[1] else None,
        t.sum(grad, dims) if mask[2] else None,
    )


def _positive(t: Tape, call: Callable[..., Tensor], x: Value, *args: Any, count: Any = None, wide: float = 1.0) -> Value:
    """A sum of numbers with weights of at least 0, each once: at most ``count`` terms."""

    def terms() -> tuple[Tensor, Tensor, Tensor]:
        given = [arg.z if isinstance(arg, Value) else arg for arg in args]
        magnitudes = call(x.z.abs(), *given)
        number = call((x.z != 0).double(), *given).clamp(min=1) if count is None else torch.full_like(magnitudes, float(count))
        return magnitudes, magnitudes.square(), number

    return t.summed(call, terms, lambda: wide, x, *args)


@step_of("avg_pool1d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d")
def _pool(t: Tape, x: Value, *args: Any, **words: Any) -> Value:
    call, sizes = getattr(aten, t.name), args[0] if args else [1]
    if "adaptive" in t.name:
        count = math.prod(-(-side // max(int(out), 1)) + 1 for side, out in zip(x.z.shape[-len(sizes) :], sizes))
    else:
        count = math.prod(sizes) ** (2 if len(sizes) == 1 and not t.name.endswith("1d") else 1)
    return _positive(t, lambda z: call(z, *args, **words), x, count=count + 1)


@step_of("avg_pool2d_backward", "avg_pool3d_backward")
def _avg_pool_backward(t: Tape, grad: Value, x: Value, sizes: Any, *args: Any) -> Value:
    call = getattr(aten, t.name)
    return _positive(t, lambda g: call(g, x.z, sizes, *args), grad, count=math.prod(sizes) + 1)


@step_of("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward")
def _adaptive_backward(t: Tape, grad: Value, x: Value) -> Value:
    call = getattr(aten, t.name)
    return _positive(t, lambda g: call(g, x.z), grad, count=5)


@step_of(*(f"{kind}_backward" for kind in ("max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool3d")))
def _max_pool_backward(t: Tape, grad: Value, x: Value, *args: Any) -> Value:
    *words, indices = args
    call = getattr(aten, t.name)
    return _positive(t, lambda g, at: call(g, x.z, *words, at), grad, indices)


@step_of("embedding_dense_backward")
def _embedding_backward(t: Tape, grad: Value, ids: Value, rows: int, padding: int, scale: bool) -> Value:
    return _positive(t, lambda g, ids: aten.embedding_dense_backward(g, ids, rows, padding, scale), grad, ids)


@step_of("scatter_add", "index_add")
def _scatter_add(t: Tape, x: Value, dim: int, index: Value, source: Value, alpha: Any = 1) -> Value:
    if alpha != 1:
        source = t.mul(source, alpha)
    call = torch.scatter_add if t.name.startswith("scatter") else torch.index_add
    added = _positive(t, lambda s, at, x: call(torch.zeros_like(x), dim, at, s), source, index, t.exact(torch.zeros_like, x))
    return t.add(x, added)


@step_of("scatter_reduce", "index_reduce")
def _scatter_reduce(t: Tape, x: Value, dim: int, index: Value, source: Value, reduce: str, include_self: bool = True) -> Value:
    # The rows of an index that is one number each, as index_reduce has it.
    if t.name == "index_reduce":
        wide = [1] * source.z.ndim
        wide[dim] = -1
        index = t.exact(lambda at, s: at.reshape(wide).expand_as(s), index, source)
    kind = {"add": "sum", "max": "amax", "min": "amin", "multiply": "prod"}.get(reduce, reduce)

    def call(x: Tensor, at: Tensor, source: Tensor) -> Tensor:
        return torch.scatter_reduce(x, dim, at, source, kind, include_self=include_self)

    touched = torch.zeros_like(x.z, dtype=torch.bool).scatter(dim, index.z, True)
    count = torch.zeros_like(x.z).scatter_add(dim, index.z, torch.ones_like(source.z))
    if kind in ("sum", "mean"):
        kept = x if include_self else t.exact(lambda x: torch.where(touched, 0.0, x), x)
        zeros = torch.zeros_like(x.z)
        added = _positive(t, lambda s, at: zeros.scatter_add(dim, at, s), source, index)
        found = t.add(kept, added)
        # A row that nothing is added to stays as it is.
        found = t.exact(lambda x, found: torch.where(touched, found, x), x, found)
        return found if kind == "sum" else t.units("div", lambda z: z / (count + include_self).clamp(min=1), found)
    if kind == "prod":
        out: list[Value] = []

        def local() -> tuple[Tensor, Tensor]:
            z = out[0].z.abs()
            return t.u * count * z, t.u * count.sqrt() * z

        out.append(t.step(call, x, index, source, local=local))
        return out[0]
    x.needs_spread = source.needs_spread = True

    def kinked(x: Tensor, at: Tensor, source: Tensor, off_x: Tensor, _: Tensor, off: Tensor) -> Tensor:
        """All elements that may be the largest have an influence."""
        found = call(x, at, source).detach()
        near = (source.detach() - found.gather(dim, at)).abs() <= off + off.amax()
        moved = torch.zeros_like(x).scatter_add(dim, at, near * source)
        moved = moved + ((x.detach() - found).abs() <= off_x + off.amax()) * x
        return found + moved - moved.detach()

    return t.step(call, x, index, source, kinked=kinked)


@step_of("logcumsumexp", "_logcumsumexp")
def _logcumsumexp(t: Tape, x: Value, dim: int) -> Value:
    """Kernels add one exponential after the other, and round the logarithm of each sum."""
    out: list[Value] = []

    def local() -> tuple[Tensor, Tensor]:
        size = torch.where(out[0].z.isfinite(), out[0].z.abs(), 0.0) + 8.0
        return t.u * size.cumsum(dim), t.u * size.square().cumsum(dim).sqrt()

    out.append(t.step(lambda z: torch.logcumsumexp(z, dim), x, local=local))
    return out[0]


@step_of("index_put", "_index_put_impl")
def _index_put(t: Tape, x: Value, indices: Any, source: Value, accumulate: bool = False, unsafe: bool = False) -> Value:
    def put(x: Tensor, source: Tensor, *at: Any) -> Tensor:
        return aten.index_put(x, list(at), source, accumulate)

    if not accumulate:
        return t.exact(put, x, source, *indices)
    zeros = t.exact(torch.zeros_like, x)
    added = _positive(t, lambda s, z, *at: put(z, s, *at), source, zeros, *indices)
    return t.add(x, added)


@step_of("trace")
def _trace(t: Tape, x: Value) -> Value:
    return t.sum(t.exact(lambda z: z.diagonal(), x))


@step_of(
    "col2im",
    "unfold_backward",
    *(f"{pad}_pad{dims}d_backward" for pad in ("reflection", "replication") for dims in (1, 2, 3)),
    *(f"{kind}{dims}d_backward" for kind in ("upsample_nearest", "_upsample_nearest_exact") for dims in (1, 2, 3)),
)
def _adjoint(t: Tape, grad: Value, *args: Any, **words: Any) -> Value:
    call = getattr(aten, t.name)
    return _positive(t, lambda g, *rest: call(g, *rest, **words), grad, *args)
