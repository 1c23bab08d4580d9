"""The assertion that a kernel's gradients are right."""

from __future__ import annotations

import importlib
from typing import Any, Callable

from . import _derivatives, _inputs
from ._close import assert_close
from ._tensors import imported_torch, is_jax, warn

_SEED = 0x756C70


def assert_grad(
    kernel: Callable[..., Any],
    *,
    op: str | Callable[..., Any],
    inputs: Any,
    grad_output: Any = None,
    wrt: Any = None,
    **words: Any,
) -> None:
    """Raises AssertionError unless what a kernel gives, and its gradients, are within the bounds of ``op``.

        ulplab.assert_grad(my_rms_norm, op=lambda x, w: F.rms_norm(x, x.shape[-1:], w), inputs=(x, w))
        ulplab.assert_grad(my_rms_norm, op="rmsnorm", inputs=dict(x=x, weight=w, eps=1e-6))

    ``kernel`` and ``op``, a plain reference, are called with ``inputs``: a tuple, or a dictionary by name. Gradients are those of
    torch.autograd, or of jax.vjp if inputs are arrays of jax. ``op`` may be the name of an operation that has a plain definition in torch:
    rmsnorm, layernorm, softmax, silu_and_mul, matmul, rope or attention, with inputs by the operation's names. ``wrt`` names the inputs
    whose gradients are judged, by position or name; by default, all of floating-point types. ``grad_output`` is the gradient of the output,
    by default of random signs and sizes from a fixed seed; then a kernel of torch is called again, with the same gradient in memory that
    is not contiguous.
    ``words`` are those of `assert_close`: ``rounds``, ``accumulate``, ``dtype``.
    """
    __tracebackhide__ = True
    torch = imported_torch("assert_grad")
    args, named = _inputs.split(inputs)
    every: dict[Any, Any] = dict(enumerate(args)) | named
    library = "jax" if any(map(is_jax, every.values())) else "torch"
    differentiated = _derivatives.of_jax if library == "jax" else _derivatives.of_torch
    if isinstance(op, str):
        if library == "jax":
            raise TypeError(f"assert_grad: op = {op!r} has a definition in torch, and inputs are arrays of jax; give a function of jax")
        from ._definitions import definition

        op = definition(op, inputs)
    if wrt is None:
        wrt = [key for key, x in every.items() if _derivatives.floating(x)]
        if not wrt:
            raise ValueError("assert_grad: inputs have no tensor of torch or jax of a floating-point type, which a gradient could be of")
    wrt = [wrt] if isinstance(wrt, (int, str)) else list(wrt)
    if not wrt or any(key not in every for key in wrt):
        raise ValueError(f"assert_grad: wrt = {wrt!r}, expected some of {', '.join(map(repr, every))}")
    layouts: Any = []
    out, pull = differentiated(kernel, every, wrt)
    if not isinstance(out, torch.Tensor) and not is_jax(out):
        raise TypeError(f"assert_grad: the kernel gives {type(out).__name__}, expected a tensor; give the gradients to assert_close")
    if library == "torch" and not out.requires_grad:
        why = "it is detached, or the kernel does not go through torch.autograd"
        raise ValueError(f"not judged: what the kernel gives has no gradient: {why}")
    if 0 in out.shape:
        raise ValueError(f"not judged: what the kernel gives is {list(out.shape)}, which has no elements to compare")
    if grad_output is None:
        # Not the seed that inputs are drawn with.
        grad_output = torch.randn(out.shape, generator=torch.Generator().manual_seed(_SEED))
        if library == "jax":
            numbers: Any = importlib.import_module("jax.numpy")
            grad_output = numbers.asarray(grad_output.numpy(), out.dtype)
        else:
            grad_output = grad_output.to(out.device, out.dtype)
            # Every second number, and columns in the place of rows.
            layouts = [torch.stack([grad_output, -grad_output], -1)[..., 0]]
            layouts += [grad_output.mT.contiguous().mT] if out.ndim > 1 else []
    elif getattr(grad_output, "shape", None) != out.shape:
        shape = list(grad_output.shape) if hasattr(grad_output, "shape") else f"a {type(grad_output).__name__}"
        raise ValueError(f"assert_grad: grad_output is {shape}, expected a tensor {list(out.shape)}, as what the kernel gives")
    found = pull([grad_output])
    missing = [key for key in wrt if found[key] is None]
    want, wanted = differentiated(op, every, missing) if missing else (None, None)
    if wanted is not None and isinstance(want, torch.Tensor) and want.requires_grad and want.shape == out.shape:
        needed = wanted([grad_output])
        lost = [f"d{key}" for key in missing if needed[key] is not None]
        if lost:
            raise AssertionError(f"{', '.join(lost)}: the kernel gives no gradient of this input, and op gives one")
    names = {f"d{key}": key for key in wrt if key not in missing}

    def check(out: Any, gradients: dict[Any, Any]) -> None:
        __tracebackhide__ = True
        got = {"out": out, **{name: gradients[key] for name, key in names.items()}}
        assert_close(got, op=op, inputs=inputs, grads=names, grad_output=grad_output, **words)

    check(out, found)
    if not names:
        return
    # Kernels that read the gradient's memory, or add to what the last call left, are right once.
    for strided in layouts:
        again, pull = differentiated(kernel, every, list(names.values()))
        try:
            second = pull([strided])
        except Exception as error:  # noqa: BLE001
            warn(f"the kernel raises {type(error).__name__} for a gradient of the output that is not contiguous: {error}")
            return
        if all(torch.equal(second[key], found[key]) for key in names.values()):
            continue
        try:
            check(again, second)
        except AssertionError as error:
            raise AssertionError(f"called again, with a gradient of the output that is not contiguous:\n{error}") from None
