"""Operations of torch that are the primitives of jax which read and write at indices."""

from __future__ import annotations

from typing import Any, Callable

from ._torch import Tensor, torch
from ._values import names_in

PRIMITIVES: dict[str, Callable[..., Any]] = {}
_primitive = names_in(PRIMITIVES)
Params = dict[str, Any]


def _starts(x: Tensor, sizes: Any, given: Any) -> list[int]:
    """Where slices start, within the tensor."""
    return [min(max(int(at), 0), whole - size) for at, whole, size in zip(given, x.shape, sizes)]


@_primitive("dynamic_slice")
def _dynamic_slice(params: Params, x: Tensor, *starts: Tensor) -> Tensor:
    sizes = params["slice_sizes"]
    return x[tuple(slice(at, at + size) for at, size in zip(_starts(x, sizes, starts), sizes))]


@_primitive("dynamic_update_slice")
def _dynamic_update_slice(params: Params, x: Tensor, new: Tensor, *starts: Tensor) -> Tensor:
    found = x.clone()
    found[tuple(slice(at, at + size) for at, size in zip(_starts(x, new.shape, starts), new.shape))] = new
    return found


def _windows(
    x: Tensor, starts: Tensor, sizes: list[int], start_dims: Any, own: list[int], batches: Any, of_batches: Any
) -> tuple[list[Tensor], Tensor]:
    """The indices of the elements of windows of a tensor, with the dimensions of windows first, then those within a window; and where a
    window lies within the tensor.

    ``sizes`` are those of windows along all dimensions, ``start_dims`` the dimensions that starts are of, ``own`` the dimensions that windows
    keep, and ``batches`` those of the tensor that belong to the dimensions ``of_batches`` of starts.
    """
    starts = starts.to(torch.int64)
    outer, ones = list(starts.shape[:-1]), [1] * len(own)
    within = torch.ones(outer, dtype=torch.bool, device=x.device)
    indices = []
    for dim in range(x.ndim):
        at = torch.zeros(outer + ones, dtype=torch.int64, device=x.device)
        if dim in start_dims:
            start = starts[..., list(start_dims).index(dim)]
            last = x.shape[dim] - sizes[dim]
            within = within & (start >= 0) & (start <= last)
            at = at + start.clamp(0, last).reshape(outer + ones)
        if dim in batches:
            of = list(of_batches)[list(batches).index(dim)]
            shape = [size if axis == of else 1 for axis, size in enumerate(outer)]
            at = at + torch.arange(x.shape[dim], device=x.device).reshape(shape + ones)
        if dim in own:
            at = at + torch.arange(sizes[dim], device=x.device).reshape([sizes[dim] if one == dim else 1 for one in own])
        indices.append(at)
    return list(torch.broadcast_tensors(*indices)) if indices else [], within


def _clips(params: Params) -> bool:
    """True if windows are moved into the tensor, or are said to be in it."""
    return "FILL" not in str(params["mode"]).upper()


@_primitive("gather")
def _gather(params: Params, x: Tensor, starts: Tensor) -> Tensor:
    dims, sizes = params["dimension_numbers"], list(params["slice_sizes"])
    own = [dim for dim in range(x.ndim) if dim not in dims.collapsed_slice_dims and dim not in dims.operand_batching_dims]
    indices, within = _windows(x, starts, sizes, dims.start_index_map, own, dims.operand_batching_dims, dims.start_indices_batching_dims)
    found = x[tuple(indices)] if x.ndim else x.expand(within.shape)
    if not _clips(params):
        fill = params["fill_value"]
        if fill is None:
            fill = float("nan") if x.is_floating_point() else True if x.dtype == torch.bool else torch.iinfo(x.dtype).min
        found = torch.where(within.reshape([*within.shape, *[1] * len(own)]), found, fill)
    # Where the dimensions of windows lie in the result.
    inner = list(dims.offset_dims)
    outer = [dim for dim in range(found.ndim) if dim not in inner]
    return found.permute([(outer + inner).index(dim) for dim in range(found.ndim)])


def _scattered(params: Params, x: Tensor, starts: Tensor, updates: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
    """The places that updates are written to, and these updates. Those outside of the tensor are left out."""
    dims = params["dimension_numbers"]
    own = [dim for dim in range(x.ndim) if dim not in dims.inserted_window_dims and dim not in dims.operand_batching_dims]
    inner = list(dims.update_window_dims)
    outer = [dim for dim in range(updates.ndim) if dim not in inner]
    updates = updates.permute([*outer, *inner])
    sizes = [1] * x.ndim
    for dim, size in zip(own, updates.shape[len(outer) :]):
        sizes[dim] = size
    batches = dims.operand_batching_dims, dims.scatter_indices_batching_dims
    indices, within = _windows(x, starts, sizes, dims.scatter_dims_to_operand_dims, own, *batches)
    if not _clips(params) and not bool(within.all()):
        indices, updates = [at[within] for at in indices], updates[within]
    return tuple(indices), updates


@_primitive("scatter", "scatter_add")
def _scatter(params: Params, x: Tensor, starts: Tensor, updates: Tensor) -> Tensor:
    indices, updates = _scattered(params, x, starts, updates)
    adds = "= add" in str(params["update_jaxpr"])
    if not x.ndim:
        return x + updates if adds else updates.clone()
    return x.index_put(indices, updates, accumulate=adds)


@_primitive("scatter_mul", "scatter_min", "scatter_max")
def _scatter_by(params: Params, x: Tensor, starts: Tensor, updates: Tensor) -> Tensor:
    (indices, updates), said = _scattered(params, x, starts, updates), str(params["update_jaxpr"])
    flat = torch.zeros_like(updates, dtype=torch.int64)
    for at, size in zip(indices, x.shape):
        flat = flat * size + at
    by = next(by for by, name in {"prod": "mul", "amin": "min", "amax": "max"}.items() if f"= {name}" in said)
    return x.reshape(-1).scatter_reduce(0, flat.reshape(-1), updates.reshape(-1), by).reshape(x.shape)
