"""Gradients of functions through torch.autograd, and through jax.vjp."""

from __future__ import annotations

import importlib
import math
import sys
from typing import Any, Callable

from . import _inputs
from ._tensors import is_jax

#: Returns the gradients by input, from those of the function's outputs of floating-point types. None where there is none.
Pull = Callable[[list[Any]], dict[Any, Any]]


def floating(x: Any) -> bool:
    """True for a tensor of torch, or an array of jax, of a floating-point type."""
    if is_jax(x):
        numbers: Any = importlib.import_module("jax.numpy")
        return bool(numbers.issubdtype(x.dtype, numbers.floating))
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor) and bool(x.is_floating_point())


def of_torch(function: Callable[..., Any], inputs: dict[Any, Any], wrt: list[Any]) -> tuple[Any, Pull]:
    """What a function of torch gives, and its gradients."""
    torch: Any = importlib.import_module("torch")
    given = {key: x.detach().clone().requires_grad_() if key in wrt else x for key, x in inputs.items()}
    out = _inputs.called(function, given, [])

    def pull(grad_outputs: list[Any]) -> dict[Any, Any]:
        return dict(zip(wrt, torch.autograd.grad(out, [given[key] for key in wrt], grad_outputs, allow_unused=True)))

    return out, pull


def of_jax(function: Callable[..., Any], inputs: dict[Any, Any], wrt: list[Any]) -> tuple[Any, Pull]:
    """What a function of jax gives, and its gradients."""
    jax: Any = importlib.import_module("jax")

    def floats(*wanted: Any) -> tuple[list[Any], Any]:
        out = _inputs.called(function, inputs | dict(zip(wrt, wanted)), [])
        return [x for x in jax.tree.leaves(out) if floating(x)], out

    _, back, out = jax.vjp(floats, *(inputs[key] for key in wrt), has_aux=True)
    return out, lambda grad_outputs: dict(zip(wrt, back(list(grad_outputs))))


def wanted_inputs(grads: dict[str, Any], inputs: dict[Any, Any]) -> list[Any]:
    """The inputs whose gradients are wanted."""
    for name, at in grads.items():
        if at not in inputs:
            raise ValueError(f"grads: no input {at!r}; expected one of {', '.join(map(repr, inputs))}")
        if not floating(inputs[at]):
            raise ValueError(f"grads: '{name}' is the gradient of {at!r}, which is not a tensor of floating-point numbers")
    return list(dict.fromkeys(grads.values()))


def check_grad_output(given: list[Any] | None, outputs: list[Any]) -> None:
    """ValueError unless the gradients that are given have the shapes of the outputs. A single number needs none."""
    if given is None:
        if len(outputs) != 1 or math.prod(outputs[0].shape) != 1:
            raise ValueError("grads: give grad_output, the gradient of what the function gives, as it is no single number")
        return
    found, wanted = ([list(x.shape) for x in some] for some in (given, outputs))
    if found != wanted:
        of = ", ".join(map(str, wanted))
        hint = "" if len(wanted) == 1 else "; give a tuple with the gradient of each output"
        raise ValueError(f"grad_output is {', '.join(map(str, found)) or 'no tensor'}, expected {of}, as what the function gives{hint}")
