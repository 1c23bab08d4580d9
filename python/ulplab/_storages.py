"""Memory of tensors, and what an operation of torch reads and writes."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from typing import Any

import numpy

from ._torch import Tensor, torch
from ._values import Value, parts

# Operations that write running statistics, their fourth and fifth argument.
_STATISTICS = ("native_batch_norm", "cudnn_batch_norm")
_HERE = os.path.dirname(os.path.abspath(__file__))
# Modules whose frames are none of the user's.
_OTHERS = (*(os.path.dirname(os.path.abspath(str(one.__file__))) + os.sep for one in (torch, numpy)), contextlib.__file__)


class Store:
    """The f64 copies of one storage: one for each way in which it is viewed."""

    def __init__(self, keep: Tensor, key: Any, value: Value) -> None:
        #: Keeps the storage, so that no other gets its address.
        self.keep = keep
        self.base = key
        self.views: dict[Any, Value] = {key: value}


def key_of(x: Tensor) -> Any:
    return x.storage_offset(), tuple(x.shape), tuple(x.stride()), (x.is_complex(), x.is_conj(), x.is_neg())


def has_numbers(x: Any) -> bool:
    """True for a tensor of real or complex numbers, which have errors."""
    return isinstance(x, torch.Tensor) and bool(x.is_floating_point() or x.is_complex())


def similar(x: Any, y: Any, size: float) -> bool:
    """False if two results are not the same numbers, however rounded. Indices may be given in another form."""
    if not has_numbers(x) or not has_numbers(y):
        return has_numbers(x) == has_numbers(y)
    return x.dtype == y.dtype and x.shape == y.shape and size_of(x - y) <= 0.1 * size_of(x) + 1e-4 * size


def size_of(x: Tensor) -> float:
    """The root of the sum of squares of what is finite."""
    return float(x.nan_to_num(0.0, 0.0, 0.0).abs().double().square().sum().sqrt())


def real_type(dtype: Any) -> Any:
    return dtype.to_real() if dtype.is_complex else dtype


def covers(x: Tensor) -> bool:
    """True if a tensor has every element of its storage, once."""
    return x.untyped_storage().nbytes() == x.numel() * x.element_size() and (x.is_contiguous() or _dense(x))


def _dense(x: Tensor) -> bool:
    """True if the elements of a tensor lie side by side, in any order of dimensions."""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(x.stride(), x.shape) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def statistics(name: str, args: Any) -> Any:
    """The running statistics that an operation writes."""
    return args[3:5] if name in _STATISTICS and args[5] else ()


def written_by(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors that an operation writes to."""
    found = []
    for at, name in _writes(func):
        found += parts(kwargs.get(name) if at >= len(args) else args[at], torch.Tensor)
    return found


@functools.cache
def _writes(func: Any) -> list[tuple[int, str]]:
    """The places and names of the arguments that an operation writes to."""
    return [(at, one.name) for at, one in enumerate(func._schema.arguments) if one.alias_info is not None and one.alias_info.is_write]


def line() -> str:
    """The user's line that runs: the innermost frame that is neither torch's, numpy's nor this module's."""
    frame = sys._getframe(2)
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith((_HERE, *_OTHERS)) and not path.startswith("<"):
            return f"{os.path.basename(path)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""
