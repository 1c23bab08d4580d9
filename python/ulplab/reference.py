"""Outputs of operations in f64, and how far a right kernel may be from them.

    ref = ulplab.reference.rmsnorm(x=x, weight=w, eps=1e-6)
    ref.value                  # f64
    ref.bound("bfloat16")      # how far each element of a bf16 output may be from it

Each function takes what `ulplab.reference.operations()` lists. An operation with several outputs gives a dictionary of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable

import numpy

from . import _native, _tensors
from ._close import assumed, dtypes_of, unit
from ._tensors import arguments, check_operation, check_words, inputs


@dataclass(frozen=True)
class Expected:
    """An output of an operation."""

    #: The elements in f64.
    value: numpy.ndarray
    #: The largest error of each in a right kernel, before it is rounded to the stored type.
    error: numpy.ndarray
    #: True if a right kernel's elements are equal, in any type: nothing is computed, or it is a choice.
    exact: bool = False

    def bound(self, dtype: Any) -> numpy.ndarray:
        """The distance that each element stored in ``dtype`` may have from `value`.

        The error of the computation, and half a spacing of the type; 0 if it is `exact`. ``dtype`` is a name (``"bfloat16"``,
        ``"float16"``, ``"float32"``, ...), or anything whose text ends in one, such as ``torch.bfloat16``.
        """
        if self.exact:
            return numpy.zeros_like(self.value)
        name = getattr(dtype, "__name__", None) or str(dtype)
        return _native.bounds(self.value, self.error, name.rpartition(".")[2])


def operations() -> list[dict[str, Any]]:
    """All operations: ``name``, ``doc``, what each ``takes`` (name, kind, default, description), its ``faults`` (name, description),
    and ``modules``, the classes of modules that compute it."""
    return _native.operations()


def compute(
    op: str, *, accumulate: str | None = None, dtype: str = "float32", fault: str | None = None, **given: Any
) -> Expected | dict[str, Expected]:
    """The outputs of an operation, or of one of its faults.

    ``accumulate`` is the type that a kernel adds in: without it, f64 if all floating-point inputs and ``dtype`` are of that type, else f32.
    ``dtype``, the type of its output, also matters where numbers on the way are rounded to it (``cast="before_weight"``).
    """
    check_operation(op)
    check_words(op, given, [*(takes[0] for takes in _tensors.operations()[op]["takes"]), *arguments(compute)])
    arrays = inputs(given)
    outputs = _native.expected(op, arrays, dtype, unit(assumed(accumulate, [*dtypes_of(arrays.values()), dtype])), fault)
    all_outputs = {name: Expected(value, error, exact) for name, value, error, exact in outputs}
    return next(iter(all_outputs.values())) if len(all_outputs) == 1 else all_outputs


def _function(operation: dict[str, Any]) -> Callable[..., Any]:
    name = operation["name"]

    def call(**given: Any) -> Any:
        return compute(name, **given)

    lines = [f"{operation['doc'].capitalize()}.", ""]
    for takes, kind, default, doc in operation["takes"]:
        lines.append(f"{takes}: {kind}{f' = {default}' if default else ''}")
        lines.append(f"    {doc}")
    call.__name__ = call.__qualname__ = name
    call.__doc__ = "\n".join(lines)
    return call


if TYPE_CHECKING:
    # A stub alone: the operations are those that the native module has.
    from ._operations import *


for _operation in operations():
    globals()[_operation["name"]] = _function(_operation)
__all__ = ["Expected", "compute", "operations", *(_operation["name"] for _operation in operations())]
