"""The assertion that a kernel's gradients are right."""

from __future__ import annotations

from typing import Any, Callable

from . import _inputs
from ._close import assert_close
from ._tensors import imported_torch, warn

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
    """Raises AssertionError unless what a kernel gives, and its gradients through torch.autograd, are within the bounds of ``op``.

        ulplab.assert_grad(my_rms_norm, op=lambda x, w: F.rms_norm(x, x.shape[-1:], w), inputs=(x, w))
        ulplab.assert_grad(my_rms_norm, op="rmsnorm", inputs=dict(x=x, weight=w, eps=1e-6))

    ``kernel`` and ``op``, a plain reference in torch, are called with ``inputs``: a tuple, or a dictionary by name. ``op`` may be the name
    of an operation that has a plain definition in torch: rmsnorm, layernorm, softmax, silu_and_mul, matmul, rope or attention, with
    inputs by the operation's names. ``wrt`` names the inputs whose gradients are judged, by position or name; by default, all of
    floating-point types. ``grad_output`` is the gradient of the output, by default of random signs and sizes from a fixed seed;
    then the kernel is called again, with the same gradient in memory that is not contiguous.
    ``words`` are those of `assert_close`: ``rounds``, ``accumulate``, ``dtype``.
    """
    __tracebackhide__ = True
    torch = imported_torch("assert_grad")
    if isinstance(op, str):
        from ._definitions import definition

        op = definition(op, inputs)
    args, named = _inputs.split(inputs)
    every: dict[Any, Any] = dict(enumerate(args)) | named
    if wrt is None:
        wrt = [key for key, x in every.items() if isinstance(x, torch.Tensor) and x.is_floating_point()]
        if not wrt:
            raise ValueError("assert_grad: inputs have no tensor of torch of a floating-point type, which a gradient could be of")
    wrt = [wrt] if isinstance(wrt, (int, str)) else list(wrt)
    if not wrt or any(key not in every for key in wrt):
        raise ValueError(f"assert_grad: wrt = {wrt!r}, expected some of {', '.join(map(repr, every))}")

    def called(function: Callable[..., Any]) -> tuple[Any, dict[Any, Any]]:
        """What a function gives, and the copies of the inputs that it is given."""
        given = {key: x.detach().clone().requires_grad_() if key in wrt else x for key, x in every.items()}
        return function(**given) if named else function(*given.values()), given

    layouts: Any = []
    out, given = called(kernel)
    if not isinstance(out, torch.Tensor):
        raise TypeError(f"assert_grad: the kernel gives {type(out).__name__}, expected a tensor; give the gradients to assert_close")
    if not out.requires_grad:
        why = "it is detached, or the kernel does not go through torch.autograd"
        raise ValueError(f"not judged: what the kernel gives has no gradient: {why}")
    if not out.numel():
        raise ValueError(f"not judged: what the kernel gives is {list(out.shape)}, which has no elements to compare")
    if grad_output is None:
        # Not the seed that inputs are drawn with.
        generator = torch.Generator().manual_seed(_SEED)
        grad_output = torch.randn(out.shape, generator=generator).to(out.device, out.dtype)
        # Every second number, and columns in the place of rows.
        layouts = [torch.stack([grad_output, -grad_output], -1)[..., 0]]
        layouts += [grad_output.mT.contiguous().mT] if out.ndim > 1 else []
    elif not isinstance(grad_output, torch.Tensor) or grad_output.shape != out.shape:
        shape = list(grad_output.shape) if isinstance(grad_output, torch.Tensor) else f"a {type(grad_output).__name__}"
        raise ValueError(f"assert_grad: grad_output is {shape}, expected a tensor {list(out.shape)}, as what the kernel gives")
    found = dict(zip(wrt, torch.autograd.grad(out, [given[key] for key in wrt], grad_output, allow_unused=True)))
    missing = [key for key in wrt if found[key] is None]
    want, given = called(op) if missing else (None, {})
    if isinstance(want, torch.Tensor) and want.requires_grad and want.shape == out.shape:
        needed = torch.autograd.grad(want, [given[key] for key in missing], grad_output, allow_unused=True)
        lost = [f"d{key}" for key, one in zip(missing, needed) if one is not None]
        if lost:
            raise AssertionError(f"{', '.join(lost)}: the kernel gives no gradient of this input, and op gives one")
    names = {f"d{key}": key for key in wrt if key not in missing}
    got = {"out": out.detach(), **{name: found[key] for name, key in names.items()}}
    assert_close(got, op=op, inputs=inputs, grads=names, grad_output=grad_output, **words)
    if not names:
        return
    # Kernels that read the gradient's memory, or add to what the last call left, are right once.
    for strided in layouts:
        again, given = called(kernel)
        try:
            second = torch.autograd.grad(again, [given[key] for key in names.values()], strided)
        except Exception as error:  # noqa: BLE001
            warn(f"the kernel raises {type(error).__name__} for a gradient of the output that is not contiguous: {error}")
            return
        if all(map(torch.equal, second, (found[key] for key in names.values()))):
            continue
        try:
            got = {"out": again.detach(), **dict(zip(names, second))}
            assert_close(got, op=op, inputs=inputs, grads=names, grad_output=grad_output, **words)
        except AssertionError as error:
            raise AssertionError(f"called again, with a gradient of the output that is not contiguous:\n{error}") from None
