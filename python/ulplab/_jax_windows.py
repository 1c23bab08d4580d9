"""Operations of torch that are the primitives of jax which move windows over tensors: padding, convolutions and pools."""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, Iterator

from ._arrays import torch_type
from ._torch import Tensor, torch
from ._values import names_in

PRIMITIVES: dict[str, Callable[..., Any]] = {}
_primitive = names_in(PRIMITIVES)
Params = dict[str, Any]


@_primitive("pad")
def _pad(params: Params, x: Tensor, value: Tensor) -> Tensor:
    for dim, (low, high, inner) in enumerate(params["padding_config"]):
        size = x.shape[dim]
        if inner and size:
            spread = value.expand([*x.shape[:dim], size, 1 + inner, *x.shape[dim + 1 :]]).clone()
            spread.select(dim + 1, 0).copy_(x)
            size = size + (size - 1) * inner
            x = spread.reshape([*x.shape[:dim], -1, *x.shape[dim + 1 :]]).narrow(dim, 0, size)
        # Negative padding cuts.
        x = x.narrow(dim, max(-low, 0), size - max(-low, 0) - max(-high, 0))
        sides = [value.expand([*x.shape[:dim], max(count, 0), *x.shape[dim + 1 :]]) for count in (low, high)]
        x = torch.cat([sides[0], x, sides[1]], dim)
    return x


def _padded(x: Tensor, padding: Any, value: float, inner: Any = None) -> Tensor:
    inner = [1] * len(padding) if inner is None else inner
    config = [(low, high, step - 1) for (low, high), step in zip(padding, inner)]
    if not any(any(one) for one in config):
        return x
    return _pad({"padding_config": config}, x, torch.full((), value, dtype=x.dtype, device=x.device))


# Convolutions.


def preferred(params: Params, *given: Tensor) -> Iterator[Tensor]:
    """The operands of a product in the type that its result has."""
    wide = params.get("preferred_element_type")
    return (x if wide is None or x.dtype == torch_type(wide) else x.to(torch_type(wide)) for x in given)


_CONVOLUTIONS = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}


@_primitive("conv_general_dilated")
def _convolution(params: Params, x: Tensor, weight: Tensor) -> Tensor:
    dims = params["dimension_numbers"]
    x, weight = preferred(params, x.permute(dims.lhs_spec), weight.permute(dims.rhs_spec))
    count = x.ndim - 2
    if count not in _CONVOLUTIONS:
        raise NotImplementedError(f"a convolution of {count} dimensions")
    x = _padded(x, [(0, 0), (0, 0), *params["padding"]], 0.0, [1, 1, *params["lhs_dilation"]])
    call = functools.partial(_CONVOLUTIONS[count], stride=tuple(params["window_strides"]), dilation=tuple(params["rhs_dilation"]))
    several = params["batch_group_count"]
    parts = zip(torch.chunk(x, several, 0), torch.chunk(weight, several, 0))
    found = torch.cat([call(one, of, groups=params["feature_group_count"]) for one, of in parts], 1)
    order = list(dims.out_spec)
    return found.permute([order.index(dim) for dim in range(found.ndim)])


# Pools.


def _windows(params: Params, x: Tensor, empty: float) -> tuple[Tensor, Tensor]:
    """All windows of a tensor, with the dimensions within windows last, and the padded tensor."""
    whole = x = _padded(x, params["padding"], empty, params.get("base_dilation"))
    spans = params.get("window_dilation") or [1] * x.ndim
    for dim, (size, step, span) in enumerate(zip(params["window_dimensions"], params["window_strides"], spans)):
        x = x.unfold(dim, (size - 1) * span + 1, step)[..., ::span]
    return x, whole


def _pooled(call: Callable[..., Tensor], empty: float, params: Params, x: Tensor) -> Tensor:
    if not x.is_floating_point():
        raise NotImplementedError("windows of whole numbers")
    found, _ = _windows(params, x, empty)
    return call(found.reshape([*found.shape[: x.ndim], -1]), -1)


PRIMITIVES["reduce_window_sum"] = functools.partial(_pooled, lambda x, dim: x.sum(dim, dtype=x.dtype), 0.0)
PRIMITIVES["reduce_window_max"] = functools.partial(_pooled, torch.amax, -math.inf)
PRIMITIVES["reduce_window_min"] = functools.partial(_pooled, torch.amin, math.inf)


@_primitive("select_and_scatter_add")
def _select_and_scatter_add(params: Params, source: Tensor, x: Tensor) -> Tensor:
    if "select_prim" in params and str(params["select_prim"]) not in ("ge", "le"):
        raise NotImplementedError(f"a selection by {params['select_prim']}")
    largest = str(params["select_prim"]) == "ge"
    windows, whole = _windows(params, x, -math.inf if largest else math.inf)
    places, _ = _windows({**params, "padding": [(0, 0)] * x.ndim}, torch.arange(whole.numel(), device=x.device).reshape(whole.shape), 0)
    flat = [one.reshape([*source.shape, -1]) for one in (windows, places)]
    chosen = (torch.argmax if largest else torch.argmin)(flat[0], -1, keepdim=True)
    at = torch.gather(flat[1], -1, chosen).reshape(-1)
    found = torch.zeros(whole.numel(), dtype=source.dtype, device=x.device).index_add(0, at, source.reshape(-1)).reshape(whole.shape)
    sizes = x.shape
    return found[tuple(slice(low, low + size) for (low, _), size in zip(params["padding"], sizes))]
