"""Plain definitions in torch of named operations, for their gradients."""

from __future__ import annotations

from typing import Any, Callable

from ._tensors import check_operation, check_words, operations
from ._torch import Tensor, torch

F = torch.nn.functional


def _rmsnorm(x: Tensor, weight: Tensor = None, gate: Tensor = None, eps: float = 1e-6, zero_centered: float = 0) -> Tensor:
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        y = y * (1 + weight if zero_centered else weight)
    if gate is not None:
        y = y * F.silu(gate)
    return y.to(x.dtype)


def _layernorm(x: Tensor, weight: Tensor = None, bias: Tensor = None, eps: float = 1e-5) -> Tensor:
    y = x - x.mean(-1, keepdim=True)
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    y = y if weight is None else y * weight
    return (y if bias is None else y + bias).to(x.dtype)


def _silu_and_mul(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def _softmax(x: Tensor, scale: float = 1) -> Tensor:
    return (x * scale).softmax(-1)


def _matmul(a: Tensor, b: Tensor, bias: Tensor = None, alpha: float = 1, b_rows: str = "k") -> Tensor:
    y = a @ (b.mT if b_rows == "n" else b)
    y = y * alpha if alpha != 1 else y
    return (y if bias is None else y + bias).to(a.dtype)


def _heads(x: Tensor, layout: str) -> Tensor:
    """[B, H, T, D] of either layout; the same call leads back."""
    return x if layout == "bhtd" else x.transpose(-3, -2)


def _rope(
    x: Tensor, cos: Tensor, sin: Tensor, pairing: str = "half", inverse: float = 0, layout: str = "bthd", width: str = "half"
) -> Tensor:
    heads = _heads(x, layout)
    if width == "full":
        columns = slice(None, cos.shape[-1] // 2) if pairing == "half" else slice(None, None, 2)
        cos, sin = cos[..., columns], sin[..., columns]
    # [T, R/2] for all heads, or [B, 1, T, R/2].
    cos, sin = (one if one.ndim == 2 else one.unsqueeze(-3) for one in (cos, -sin if inverse else sin))
    turned = 2 * cos.shape[-1]
    halves = (..., slice(0, turned // 2)), (..., slice(turned // 2, turned))
    first, second = halves if pairing == "half" else ((..., slice(0, turned, 2)), (..., slice(1, turned, 2)))
    a, b = heads[first], heads[second]
    parts = a * cos - b * sin, b * cos + a * sin
    y = torch.cat(parts, -1) if pairing == "half" else torch.stack(parts, -1).flatten(-2)
    return _heads(torch.cat([y, heads[..., turned:]], -1), layout).to(x.dtype)


def _attention(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, causal: float = 0, layout: str = "bthd") -> Tensor:
    q, k, v = (_heads(one, layout) for one in (q, k, v))
    group = q.shape[-3] // k.shape[-3]
    k, v = k.repeat_interleave(group, -3), v.repeat_interleave(group, -3)
    scores = (q @ k.mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        # The last query sees all keys.
        queries, keys = scores.shape[-2:]
        later = torch.ones(queries, keys, dtype=torch.bool, device=q.device).triu(keys - queries + 1)
        scores = scores.masked_fill(later, -torch.inf)
    return _heads(scores.softmax(-1) @ v, layout)


#: Definitions by the names of operations. Each takes what it takes by the operation's own words, with their defaults.
DEFINITIONS: dict[str, Callable[..., Tensor]] = {
    "rmsnorm": _rmsnorm,
    "layernorm": _layernorm,
    "silu_and_mul": _silu_and_mul,
    "softmax": _softmax,
    "matmul": _matmul,
    "rope": _rope,
    "attention": _attention,
}
for _op, _definition in DEFINITIONS.items():
    _definition.__name__ = _op


def definition(op: str, inputs: Any) -> Callable[..., Tensor]:
    """The plain definition of a named operation, for these inputs.

    ValueError if there is none, or if an input is given that the definition does not take: pass a function.
    """
    check_operation(op)
    known = [word for word, *_ in operations()[op]["takes"]]
    if op not in DEFINITIONS:
        names = ", ".join(DEFINITIONS)
        raise ValueError(f"op = '{op}' has no plain definition in torch, expected one of {names}; pass a function, op=reference")
    if not isinstance(inputs, dict):
        raise TypeError(f"inputs is a {type(inputs).__name__}, expected a dictionary of what '{op}' takes: {', '.join(known)}")
    check_words(f"op = '{op}'", inputs, known)
    function = DEFINITIONS[op]
    code = function.__code__
    extra = [word for word, x in inputs.items() if x is not None and word not in code.co_varnames[: code.co_argcount]]
    if extra:
        raise ValueError(f"the plain definition of '{op}' has no '{extra[0]}'; pass a function, op=reference")
    return function
