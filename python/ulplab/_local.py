"""Judges each operation of torch that a model runs, by what the operation was given."""

from __future__ import annotations

from typing import Any, Callable

import numpy

from . import _errors, _native
from ._close import _sums, assumed
from ._functions import ROUNDS, bounds_of
from ._judged import Found
from ._parts import pulled_back
from ._shadows import leaving
from ._storages import line
from ._tensors import array
from ._torch import Tensor, TorchDispatchMode, TorchFunctionMode, autograd_on, modes_off, pytree, torch
from ._values import Unknown, kind, place

# Largest number of elements of a result that is judged.
_ELEMENTS = 1 << 22
_SHOWN = 5


def _attention(
    q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, causal: bool = False, *, attn_mask: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """Attention as fused kernels have it: weights are rounded before they multiply values."""
    if dropout:
        raise Unknown("dropout, which differs from kernel to kernel")
    size = q.shape[-1] ** -0.5 if scale is None else scale
    groups = q.shape[1] // k.shape[1]
    k, v = (one.repeat_interleave(groups, 1) if groups > 1 else one for one in (k, v))
    scores = (q.float() @ k.float().mT) * size
    if attn_mask is not None:
        scores = scores + attn_mask
    if causal:
        keep = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~keep, -torch.inf)
    return (scores.softmax(-1).to(v.dtype).float() @ v.float()).to(q.dtype)


def _flash(q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, causal: bool = False, debug: bool = False, *, scale: Any = None) -> Tensor:
    return _attention(q, k, v, dropout, causal, scale=scale)


def _efficient(
    q: Tensor, k: Tensor, v: Tensor, bias: Any, log: bool, dropout: float = 0.0, causal: bool = False, *, scale: Any = None
) -> Tensor:
    return _attention(q, k, v, dropout, causal, attn_mask=bias, scale=scale)


def _gradients(grad: Tensor, *inputs: Tensor, **words: Any) -> tuple[Tensor, ...]:
    return pulled_back(lambda q, k, v: _attention(q, k, v, **words), grad, *inputs)


def _flash_on_cpu_back(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Any, log: Any, dropout: float, causal: bool, *, attn_mask: Any = None, scale: Any = None
) -> tuple[Tensor, ...]:
    return _gradients(grad, q, k, v, dropout=dropout, causal=causal, attn_mask=attn_mask, scale=scale)


def _flash_back(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any, scale: Any = None) -> tuple[Tensor, ...]:
    dropout, causal = rest[6:8]
    return _gradients(grad, q, k, v, dropout=dropout, causal=causal, scale=scale)


# Definitions of fused operations that torch has no steps for; each gives the first of the operation's results.
_DEFINITIONS: dict[str, Callable[..., Any]] = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _flash_on_cpu_back,
    "aten::_scaled_dot_product_flash_attention": _flash,
    "aten::_scaled_dot_product_flash_attention_backward": _flash_back,
    "aten::_scaled_dot_product_efficient_attention": _efficient,
    "aten::_scaled_dot_product_cudnn_attention": _efficient,
}


class Operation:
    """One operation that was judged: its name, the user's line, and the largest error in multiples of the bound."""

    def __init__(self, name: str, line: str, ratio: float, message: str = "", why: str = "") -> None:
        self.name, self.line, self.ratio = name, line, ratio
        #: The elements outside the bound; empty if there are none.
        self.message = message
        #: Why the operation is not judged; empty if it is.
        self.why = why

    def __repr__(self) -> str:
        return f"{place(self.name, self.line)}: {self.why or f'error / bound {self.ratio:.3g}'}"


class bounds:
    """Judges each operation that runs within, of a model's forward and backward pass, by what the operation was given.

        with ulplab.bounds() as found:
            model(x).sum().backward()
        print(found)

    The end of the block raises AssertionError if results of an operation are outside their bounds, and ValueError, "not judged", if
    operations have no bound, or none was judged. ``rounds`` and ``accumulate`` are those of `assert_close`. ``references`` has plain
    definitions of custom operations by name, ``{"mylib::norm": function}``, which take and give what the operation does. ``operations`` lists all that were judged, in order.
    """

    def __init__(self, *, rounds: str = "end", accumulate: str | None = None, references: dict[str, Callable[..., Any]] | None = None) -> None:
        if rounds not in ROUNDS:
            raise ValueError(f"rounds = {rounds!r}, expected one of {', '.join(ROUNDS)}")
        assumed(accumulate, [])
        for name in references or {}:
            library, _, own = name.partition("::")
            if not own or not hasattr(getattr(torch.ops, library), own):
                raise ValueError(f"references: '{name}' is not an operation of torch.library; expected a name such as 'mylib::norm'")
        self.operations: list[Operation] = []
        self._leaving = _Leaving(self.operations)
        self._mode = _Each(self.operations, accumulate, rounds, references or {})

    def __enter__(self) -> bounds:
        self._leaving.__enter__()
        self._mode.__enter__()
        return self

    def __exit__(self, failure: Any, *rest: Any) -> None:
        __tracebackhide__ = True
        self._mode.__exit__(failure, *rest)
        self._leaving.__exit__(failure, *rest)
        if failure is not None:
            return
        wrong = [one.message for one in self.operations if one.message]
        if wrong:
            more = [f"and {len(wrong) - _SHOWN} more operations"] if len(wrong) > _SHOWN else []
            raise AssertionError("\n".join(wrong[:_SHOWN] + more))
        unjudged = [f"not judged: {one}" for one in self.operations if one.why]
        if unjudged:
            raise ValueError("\n".join([*dict.fromkeys(unjudged)][:_SHOWN]))
        if not self.operations:
            raise ValueError("not judged: no operation of torch computed anything; expected a model's pass within ulplab.bounds()")

    def __repr__(self) -> str:
        judged = [one for one in self.operations if not one.why]
        lines = [f"{len(judged):,} operations judged, {len(self.operations) - len(judged):,} not judged"]
        lines += [f"  {one}" for one in sorted(judged, key=lambda one: -one.ratio)[:_SHOWN]]
        return "\n".join(lines)


def _check_kinds(found: Any, results: list[Tensor]) -> None:
    """Unknown if a reference gives other shapes than the operation, or no floating-point numbers where the operation does."""

    def kind(x: Any) -> str:
        return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" if isinstance(x, torch.Tensor) else type(x).__name__

    def fits(x: Any, of: Tensor) -> bool:
        return isinstance(x, torch.Tensor) and x.shape == of.shape and (x.is_floating_point() == of.is_floating_point())

    given = pytree.tree_leaves(found)
    if len(given) != len(results) or not all(map(fits, given, results)):
        shown = [", ".join(map(kind, some)) or "nothing" for some in (given, results)]
        raise Unknown(f"its reference gives {shown[0]}; expected {shown[1]}, as the operation gives, or other floating-point types")


def _bytes(x: Tensor) -> int:
    """The sum of the bytes of a tensor's memory."""
    memory = torch.empty(0, dtype=torch.uint8, device=x.device).set_(x.untyped_storage())
    return int(memory.sum(dtype=torch.int64))


class _Leaving(TorchFunctionMode):  # type: ignore[misc]
    """Notices tensors whose numbers others may read or write."""

    def __init__(self, found: list[Operation]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = leaving(func, args)
        if name and args[0].is_floating_point():
            self.found.append(Operation(f"Tensor.{name}", line(), 0.0, why="a tensor leaves torch, which then does not see what is done to it"))
        return func(*args, **(kwargs or {}))


class _Each(TorchDispatchMode):  # type: ignore[misc]
    """Judges operations as they run."""

    def __init__(self, found: list[Operation], accumulate: str | None, rounds: str, references: dict[str, Callable[..., Any]]) -> None:
        super().__init__()
        self.found, self.accumulate, self.rounds, self.references = found, accumulate, rounds, references
        #: Memory that has been allocated and not been written, as far as torch knows: tensors that keep it.
        self.unwritten: dict[int, Tensor] = {}
        #: What operations have left in memory: a tensor that keeps it, and the sum of its bytes.
        self.left: dict[int, tuple[Tensor, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        flat, spec = pytree.tree_flatten((args, kwargs))
        tensors = [at for at, one in enumerate(flat) if isinstance(one, torch.Tensor)]
        given = [flat[at].detach().clone() if func._schema.is_mutable else flat[at].detach() for at in tensors]
        result = func(*args, **kwargs)
        results = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
        if name.startswith("empty") or name.startswith("new_empty"):
            self.unwritten.update((x.untyped_storage()._cdata, x) for x in results)
            return result
        outside = [at for at in tensors if flat[at].untyped_storage()._cdata in self.unwritten]
        if func._schema.is_mutable:
            for x in results:
                self.unwritten.pop(x.untyped_storage()._cdata, None)
        elif outside and not func.is_view:
            self.note(name, why="reads memory that no operation of torch has written: a kernel that torch does not see, which has no bound here")
            return result
        changed = [at for at in tensors if not func._schema.is_mutable and self.changed(flat[at])]
        for x in results:
            if not func.is_view and x.is_floating_point() and x.numel() <= _ELEMENTS:
                self.left[x.untyped_storage()._cdata] = x.detach(), _bytes(x)
        if changed and not func.is_view:
            self.note(name, why="reads memory that something has written which torch does not see, which has no bound here")
            return result
        reference = self.references.get(func._schema.name)
        plain = reference or _DEFINITIONS.get(func._schema.name)
        local = kind(name.removesuffix("_"))
        if plain is None and (func.is_view or local in ("exact", "cast")) or not any(x.is_floating_point() and x.numel() for x in results):
            return result
        if max(x.numel() for x in results) > _ELEMENTS:
            self.note(name, why=f"a result of more than {_ELEMENTS:,} elements")
            return result

        def function(*inputs: Tensor) -> Any:
            filled = list(flat)
            for at, one in zip(tensors, inputs):
                filled[at] = one
            again, words = pytree.tree_unflatten(filled, spec)
            if reference is None:
                return (plain or func)(*again, **words)
            try:
                found = reference(*again, **words)
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
                raise ValueError(f"references: '{func._schema.name}' raises {said}; expected a function of {func._schema}") from error
            _check_kinds(found, results)
            return found

        with modes_off(), autograd_on():
            self.judge(name, function, tuple(given), [x.detach() for x in results])
        return result

    def changed(self, x: Tensor) -> bool:
        """True if memory is not what the last operation left."""
        kept = self.left.get(x.untyped_storage()._cdata)
        return kept is not None and _bytes(x) != kept[1]

    def note(self, name: str, ratio: float = 0.0, message: str = "", why: str = "") -> None:
        self.found.append(Operation(name, line(), ratio, message, why))

    def judge(self, name: str, function: Callable[..., Any], given: tuple[Tensor, ...], results: list[Tensor]) -> None:
        try:
            found = list(bounds_of(function, given, self.accumulate, self.rounds).values())
        except Unknown as why:
            self.note(name, why=str(why))
            return
        worst = 0.0
        for bound, x in zip(found, results):
            if not x.is_floating_point() or not x.numel():
                continue
            if bound.unknown:
                self.note(name, why=bound.unknown[0])
                return
            got = array(x, name)
            one = Found(numpy.asarray(_native.widen(got), numpy.float64), bound, got.dtype)
            one.settle()
            compared = one.compared()
            if compared["outside"]:
                said = _errors.outside(place(name, line()), got, compared, f"the bound of the operation, {_sums(bound.accumulate)[1]}")
                self.note(name, compared["worst"][-1], "\n".join(said))
                return
            if one.why or one.undetermined.any():
                self.note(name, why=one.unsaid(name).removeprefix("not judged: "))
                return
            worst = max(worst, compared["ratio"])
        self.note(name, worst)
