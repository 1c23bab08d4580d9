"""Operations of torch that consist of others: torch's own decompositions, and those that torch has none for."""

from __future__ import annotations

import importlib
from typing import Any, Callable

from ._torch import Tensor, autograd_on, modes_off, torch
from ._values import names_in

_PARTS: dict[str, Callable[..., Any]] = {}


def parts_of(func: Any, name: str) -> Callable[..., Any] | None:
    """The function that computes an operation by others, in its place; None if there is none."""
    if func.namespace == "prims":
        return getattr(func, "impl_aten", None)
    plain = out_of_place(func)
    found = _PARTS.get(name) or _decomposition(plain) or _copied(name)
    if found is None or plain is func:
        return found
    call = found

    def written(*args: Any, **kwargs: Any) -> Any:
        into = kwargs.pop("out", args[0])
        return into.copy_(call(*args, **kwargs))

    return written


def out_of_place(func: Any) -> Any:
    """The form of an operation that writes to none of its arguments."""
    name = func._schema.name.partition("::")[2]
    overload = func._schema.overload_name or "default"
    if name.endswith("_") and hasattr(torch.ops.aten, name[:-1]):
        packet = getattr(torch.ops.aten, name[:-1])
        return getattr(packet, overload) if hasattr(packet, overload) else packet
    if overload.endswith("out"):
        return getattr(torch.ops.aten, name)
    return func


def _decomposition(func: Any) -> Callable[..., Any] | None:
    found: Callable[..., Any] | None = importlib.import_module("torch._decomp").decomposition_table.get(func)
    return found


def _copied(name: str) -> Callable[..., Any] | None:
    """A view, copied: `narrow_copy`, `t_copy`, …"""
    base = name.removesuffix("_copy")
    if base == name or not hasattr(torch.ops.aten, base):
        return None
    view = getattr(torch.ops.aten, base)

    def call(*args: Any, **kwargs: Any) -> Any:
        found = view(*args, **kwargs)
        return [one.clone() for one in found] if isinstance(found, (list, tuple)) else found.clone()

    return call


_part = names_in(_PARTS)


def pulled_back(call: Callable[..., Tensor], grad: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    """The gradients of a function of these inputs, by the derivatives of its parts."""
    with autograd_on():
        leaves = [x.detach().requires_grad_() for x in inputs]
        found: tuple[Tensor, ...] = torch.autograd.grad(call(*leaves), leaves, grad, allow_unused=True, materialize_grads=True)
    return found


# Distances.


@_part("_cdist_forward")
def _cdist(a: Tensor, b: Tensor, p: float, mode: int | None) -> Tensor:
    if p == 2 and mode != 2 and (mode == 1 or a.shape[-2] > 25 or b.shape[-2] > 25):
        # |a - b|² = |a|² - 2·ab + |b|², as torch has it for many rows.
        squares = a.square().sum(-1, keepdim=True) + b.square().sum(-1).unsqueeze(-2)
        return (squares - 2 * (a @ b.mT)).clamp_min(0).sqrt()
    return torch.linalg.vector_norm(a.unsqueeze(-2) - b.unsqueeze(-3), p, -1)


@_part("_cdist_backward")
def _cdist_back(grad: Tensor, a: Tensor, b: Tensor, p: float, distance: Tensor) -> Tensor:
    return pulled_back(lambda a: _cdist(a, b, p, 2), grad, a)[0]


@_part("_pdist_forward")
def _pdist(x: Tensor, p: float = 2) -> Tensor:
    first, second = torch.triu_indices(len(x), len(x), 1, device=x.device)
    return torch.linalg.vector_norm(x[first] - x[second], p, -1)


@_part("_pdist_backward")
def _pdist_back(grad: Tensor, x: Tensor, p: float, distance: Tensor) -> Tensor:
    return pulled_back(lambda x: _pdist(x, p), grad, x)[0]


# Bags of rows.


def _bags(indices: Tensor, offsets: Tensor, last: bool) -> tuple[Tensor, Tensor]:
    """The bag that each index belongs to, and the number of indices in each bag."""
    ends = torch.cat([offsets[1:], offsets.new_tensor([len(indices)])])[: len(offsets) - last]
    sizes = ends - offsets[: len(ends)]
    return torch.repeat_interleave(torch.arange(len(ends), device=indices.device), sizes), sizes


@_part("_embedding_bag", "_embedding_bag_forward_only")
def _embedding_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, scale: bool = False, mode: int = 0, sparse: bool = False, by: Tensor | None = None,
    last: bool = False, padding: int = -1,
) -> Any:  # fmt: skip
    bag, sizes = _bags(indices, offsets, last)
    kept = indices != padding
    chosen, of = weight[indices[kept]], bag[kept]
    if by is not None:
        chosen = chosen * by[kept].unsqueeze(-1)
    count = torch.zeros_like(sizes).index_add(0, of, torch.ones_like(of))
    zeros = weight.new_zeros(len(sizes), weight.shape[1])
    most = zeros.long() - 1
    if mode == 2:
        at = of.unsqueeze(-1).expand_as(chosen)
        found = zeros.scatter_reduce(0, at, chosen, "amax", include_self=False)
        for row in range(len(sizes)):
            if bool((of == row).any()):
                most[row] = indices[kept][of == row][chosen[of == row].argmax(0)]
    else:
        found = zeros.index_add(0, of, chosen)
        if mode == 1:
            found = found / count.clamp(min=1).unsqueeze(-1)
    return found, bag, count, most


@_part("_embedding_bag_dense_backward")
def _embedding_bag_backward(
    grad: Tensor, indices: Tensor, bag: Tensor, sizes: Tensor, most: Tensor, rows: int, scale: bool, mode: int, by: Tensor | None, padding: int = -1
) -> Tensor:
    zeros = grad.new_zeros(rows, grad.shape[1])
    if mode == 2:
        return zeros.scatter_add(0, most.clamp(min=0), torch.where(most < 0, 0.0, grad))
    if mode == 1:
        grad = grad / sizes.clamp(min=1).unsqueeze(-1)
    kept = indices != padding
    chosen = grad[bag[kept]]
    if by is not None:
        chosen = chosen * by[kept].unsqueeze(-1)
    return zeros.index_add(0, indices[kept], chosen)


@_part("_embedding_bag_backward")
def _embedding_bag_any_backward(
    grad: Tensor, indices: Tensor, offsets: Tensor, bag: Tensor, sizes: Tensor, most: Tensor, rows: int, scale: bool, mode: int, sparse: bool,
    by: Tensor | None, padding: int = -1,
) -> Tensor:  # fmt: skip
    return _embedding_bag_backward(grad, indices, bag, sizes, most, rows, scale, mode, by, padding)


@_part("_embedding_bag_per_sample_weights_backward")
def _embedding_bag_by(grad: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, bag: Tensor, mode: int, padding: int = -1) -> Tensor:
    return (grad[bag] * weight[indices]).sum(-1) * (indices != padding)


# Products.


@_part("_trilinear")
def _trilinear(a: Tensor, b: Tensor, c: Tensor, of_a: Any, of_b: Any, of_c: Any, dims: Any, unroll: int = 1) -> Tensor:
    for dim in of_a:
        a = a.unsqueeze(dim)
    for dim in of_b:
        b = b.unsqueeze(dim)
    for dim in of_c:
        c = c.unsqueeze(dim)
    found = a * b * c
    return found.sum(tuple(dims)) if dims else found


@_part("addbmm")
def _addbmm(x: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """A sum of products is one product of longer rows."""
    rows = a.transpose(0, 1).reshape(a.shape[1], -1)
    return torch.addmm(x, rows, b.reshape(-1, b.shape[-1]), beta=beta, alpha=alpha)


@_part("_grouped_mm")
def _grouped_mm(a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Any = None, out_dtype: Any = None) -> Tensor:
    if offs is None:
        return torch.bmm(a, b)
    ends = [0, *offs.tolist()]
    slices = [slice(first, last) for first, last in zip(ends, ends[1:])]
    if a.ndim == 2 and b.ndim == 2:
        return torch.stack([a[:, one] @ b[one] for one in slices])
    if a.ndim == 2:
        return torch.cat([a[one] @ b[at] for at, one in enumerate(slices)])
    return torch.cat([a[at] @ b[:, one] for at, one in enumerate(slices)], -1)


@_part("_scaled_mm")
def _scaled_mm(
    a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, bias: Any = None, result: Any = None, out_dtype: Any = None, fast: bool = False
) -> Tensor:
    found = (a.float() @ b.float()) * a_scale * b_scale
    found = found if bias is None else found + bias
    return found.to(out_dtype or torch.float32)


@_part("linalg_solve_triangular")
def _solve_triangular(a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    if not left:
        return _solve_triangular(a.mT, b.mT, upper=not upper, unitriangular=unitriangular).mT
    count = a.shape[-1]
    rows: dict[int, Tensor] = {}
    for row in reversed(range(count)) if upper else range(count):
        known = range(row + 1, count) if upper else range(row)
        right = b[..., row : row + 1, :]
        if known:
            of = a[..., row : row + 1, known.start : known.stop]
            # One sum, since kernels add in any order.
            right = torch.cat([torch.ones_like(of[..., :1]), -of], -1) @ torch.cat([right, *(rows[one] for one in known)], -2)
        rows[row] = right if unitriangular else right / a[..., row : row + 1, row : row + 1]
    return torch.cat([rows[row] for row in range(count)], -2)


@_part("linalg_cholesky_ex")
def _cholesky(a: Tensor, *, upper: bool = False, check_errors: bool = False) -> Any:
    columns: list[Tensor] = []
    for column in range(a.shape[-1]):
        below = a[..., column:, column : column + 1]
        if columns:
            known = torch.cat([one[..., column:, :] for one in columns], -1)
            first = known[..., :1, :]
            below = torch.cat([below, known], -1) @ torch.cat([torch.ones_like(first[..., :1]), -first], -1).mT
        below = below / below[..., :1, :].sqrt()
        columns.append(torch.nn.functional.pad(below, (0, 0, column, 0)))
    found = torch.cat(columns, -1)
    return found.mT if upper else found, torch.zeros(a.shape[:-2], dtype=torch.int32, device=a.device)


def _eliminated(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """L - 1 + U of the rows of a matrix in the order of LU's pivots, the pivots, and the order.

    Another kernel may choose other pivots, with errors of the same size.
    """
    with modes_off():
        _, pivots, _ = torch.linalg.lu_factor_ex(a.double())
        order = torch.lu_unpack(a.double(), pivots, unpack_data=False)[0].argmax(-2)
    left = torch.take_along_dim(a, order.unsqueeze(-1), -2)
    count = a.shape[-1]
    done: list[tuple[Tensor, Tensor]] = []
    for column in range(count):
        own = left[..., :1, :]
        below = left[..., 1:, :1] / own[..., :1]
        done.append((own, below))
        left = left[..., 1:, 1:] - below * own[..., 1:]
    pad = torch.nn.functional.pad
    rows = sum(pad(own, (at, 0, at, count - at - 1)) for at, (own, _) in enumerate(done))
    columns = sum(pad(below, (at, count - at - 1, at + 1, 0)) for at, (_, below) in enumerate(done))
    return rows + columns, pivots, order


def _substituted(lu: Tensor, b: Tensor) -> Tensor:
    first = _solve_triangular(lu, b, upper=False, unitriangular=True)
    return _solve_triangular(lu, first, upper=True)


def _parity(order: Tensor) -> Tensor:
    """1 or -1: whether a permutation exchanges an even or an odd number of pairs."""
    above = order.unsqueeze(-1) > order.unsqueeze(-2)
    return 1.0 - 2.0 * (above.triu(1).sum((-1, -2)) % 2)


@_part("linalg_inv_ex")
def _inverse(a: Tensor, *, check_errors: bool = False) -> Any:
    lu, _, order = _eliminated(a)
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    found = _substituted(lu, eye[order])
    return found, torch.zeros(a.shape[:-2], dtype=torch.int32, device=a.device)


@_part("_linalg_solve_ex")
def _solve(a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False) -> Any:
    lu, pivots, _ = _eliminated(a)
    flat = b.ndim == a.ndim - 1
    found = _lu_solve(lu, pivots, b.unsqueeze(-1) if flat else b, left=left)
    return found.squeeze(-1) if flat else found, lu, pivots, torch.zeros(a.shape[:-2], dtype=torch.int32, device=a.device)


def _as_torch_has_it(a: Tensor) -> Tensor:
    """The matrix that torch eliminates for a determinant: the transposed one, if rows are contiguous."""
    return a.mT if a.is_contiguous() else a


@_part("_linalg_det")
def _determinant(a: Tensor) -> Any:
    a = _as_torch_has_it(a)
    lu, pivots, order = _eliminated(a)
    return lu.diagonal(dim1=-2, dim2=-1).prod(-1) * _parity(order), lu, pivots


@_part("_linalg_slogdet")
def _log_determinant(a: Tensor) -> Any:
    a = _as_torch_has_it(a)
    lu, pivots, order = _eliminated(a)
    own = lu.diagonal(dim1=-2, dim2=-1)
    return own.sign().prod(-1) * _parity(order), own.abs().log().sum(-1), lu, pivots


@_part("linalg_lu_solve")
def _lu_solve(lu: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    if not left:
        return _lu_solve(lu, pivots, b.mT, adjoint=not adjoint).mT
    with modes_off():
        order = torch.lu_unpack(torch.zeros(lu.shape, device=lu.device), pivots, unpack_data=False)[0].argmax(-2)
        back = order.argsort(-1)
    if not adjoint:
        return _substituted(lu, torch.take_along_dim(b, order.unsqueeze(-1), -2))
    first = _solve_triangular(lu.mT, b, upper=False)
    return torch.take_along_dim(_solve_triangular(lu.mT, first, upper=True, unitriangular=True), back.unsqueeze(-1), -2)


# Interpolation, backwards.


def _interpolated_back(name: str) -> Callable[..., Any]:
    def call(grad: Tensor, out: Any, size: Any, *args: Any) -> Tensor:
        forward = _decomposition(getattr(torch.ops.aten, name).default)
        assert forward is not None
        return pulled_back(lambda x: forward(x, out, *args), grad, grad.new_zeros(size))[0]

    return call


for _name in ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"):
    _part(f"{_name}_backward")(_interpolated_back(_name))


@_part("grid_sampler_2d")
def _grid_sampler(x: Tensor, grid: Tensor, mode: int, padding: int, align: bool) -> Any:
    sample = _decomposition(torch.ops.aten.grid_sampler_2d.default)
    assert sample is not None
    # Kernels find places from -1 or from the middle, with roundings of other sums.
    return sample(x, (grid + 1.0) - 1.0, mode, padding, align)


@_part("grid_sampler_2d_backward")
def _grid_sampler_back(grad: Tensor, x: Tensor, grid: Tensor, mode: int, padding: int, align: bool, mask: Any) -> Any:
    found = pulled_back(lambda x, grid: _grid_sampler(x, grid, mode, padding, align), grad, x, grid)
    return tuple(one if wanted else None for one, wanted in zip(found, mask))


# Cells and losses.


@_part("_thnn_fused_lstm_cell")
def _lstm_cell(x: Tensor, h: Tensor, c: Tensor, x_bias: Tensor | None = None, h_bias: Tensor | None = None) -> Any:
    gates = x + h
    if x_bias is not None:
        gates = gates + x_bias + h_bias
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    c = f * c + i * g
    return o * c.tanh(), c, torch.cat([i, f, g, o], 1)


@_part("_thnn_fused_gru_cell")
def _gru_cell(x: Tensor, h: Tensor, state: Tensor, x_bias: Tensor | None = None, h_bias: Tensor | None = None) -> Any:
    if x_bias is not None:
        x, h = x + x_bias, h + h_bias
    (xr, xz, xn), (hr, hz, hn) = x.chunk(3, 1), h.chunk(3, 1)
    r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
    n = (xn + r * hn).tanh()
    return n + z * (state - n), torch.cat([r, z, n, state, hn], 1)


@_part("_ctc_loss")
def _ctc_loss(scores: Tensor, targets: Tensor, scores_lengths: Any, lengths: Any, blank: int = 0, zero_infinity: bool = False) -> Any:
    """The forward recursion of Graves et al. (2006) over the labels with blanks between them. Scores are [T, N, C]."""
    losses, alphas = [], []
    start = 0
    # In the place of -∞, whose differences are undefined: e^least is 0 in f64, too.
    least = -3e4 if scores.dtype == torch.float16 else -1e5
    for row in range(scores.shape[1]):
        length, steps = int(lengths[row]), int(scores_lengths[row])
        labels = targets[row, :length] if targets.ndim == 2 else targets[start : start + length]
        start += length
        states = torch.full((2 * length + 1,), blank, device=scores.device)
        states[1::2] = labels
        may_skip = torch.zeros_like(states, dtype=torch.bool)
        may_skip[2:] = (states[2:] != blank) & (states[2:] != states[:-2])
        own = scores[:steps, row][:, states]
        never = torch.full_like(own[0], least)
        alpha = torch.where(torch.arange(len(states), device=scores.device) < 2, own[0], never)
        kept = [alpha]
        for step in range(1, steps):
            before = torch.nn.functional.pad(alpha[:-1], (1, 0), value=least)
            skipped = torch.nn.functional.pad(alpha[:-2], (2, 0), value=least)
            ways = torch.stack([alpha, before, torch.where(may_skip, skipped, never)])
            alpha = torch.logsumexp(ways, 0) + own[step]
            kept.append(alpha)
        loss = -torch.logsumexp(alpha[-2:] if length else alpha[-1:], 0)
        losses.append(torch.where(loss > -least / 2, 0.0 if zero_infinity else torch.inf, loss))
        alphas.append(torch.nn.functional.pad(torch.stack(kept), (0, 0, 0, scores.shape[0] - steps)))
    widest = max(one.shape[1] for one in alphas)
    alphas = [torch.nn.functional.pad(one, (0, widest - one.shape[1])) for one in alphas]
    return torch.stack(losses), torch.stack(alphas)


@_part("_weight_norm_interface_backward")
def _weight_norm_back(grad: Tensor, v: Tensor, g: Tensor, norm: Tensor, dim: int) -> Any:
    at = [one for one in range(v.ndim) if one != dim]
    along = (grad * v).sum(at, keepdim=True)
    return g / norm * (grad - v * along / norm.square()), along / norm


@_part("conv_tbc")
def _conv_tbc(x: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    return torch.conv1d(x.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad).permute(2, 0, 1)


@_part("_ctc_loss_backward")
def _ctc_back(
    grad: Tensor, scores: Tensor, targets: Tensor, scores_lengths: Any, lengths: Any, loss: Tensor, alpha: Tensor, blank: int, zero: bool = False
) -> Tensor:
    (found,) = pulled_back(lambda scores: _ctc_loss(scores, targets, scores_lengths, lengths, blank, zero)[0], grad, scores)
    # As torch has it: scores are logarithms of shares, whose sum does not change.
    at = torch.arange(len(scores), device=scores.device).unsqueeze(1)
    used = at < torch.as_tensor(scores_lengths, device=scores.device)
    return found + torch.where(used.unsqueeze(-1), scores.exp() * grad.unsqueeze(-1), 0.0)


# The last results of operations that only torch's own backward passes read.
PRIVATE = {"_ctc_loss": 1}
