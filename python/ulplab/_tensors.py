"""Tensors of any library as arrays of the native module. No library is imported for it."""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import os
import sys
import warnings
from typing import Any, Iterable

import numpy

from . import _native


class UlplabWarning(UserWarning):
    """A reason why an assertion says less than it seems to."""


def check_words(name: str, given: Iterable[str], known: Iterable[str]) -> None:
    """TypeError for an argument that there is not."""
    __tracebackhide__ = True
    known = list(known)
    for word in given:
        if word not in known:
            raise TypeError(f"{name} takes no '{word}'{_native.did_you_mean(word, known)}; it takes {', '.join(known)}")


@functools.cache
def operations() -> dict[str, dict[str, Any]]:
    """The operations of `ulplab.reference` by their names."""
    return {operation["name"]: operation for operation in _native.operations()}


def check_operation(op: str) -> None:
    """ValueError for a name that no operation has, with the nearest names, and those of functions of torch if it is imported."""
    __tracebackhide__ = True
    if op in operations():
        return
    near = [repr(name) for name in difflib.get_close_matches(op.lower(), operations(), 2)]
    functions = vars(sys.modules["torch.nn.functional"]) if "torch.nn.functional" in sys.modules else {}
    own = [name for name, one in functions.items() if callable(one) and name.islower() and not name.startswith("_")]
    near += [f"op=torch.nn.functional.{name}" for name in difflib.get_close_matches(op.lower(), own, 1, 0.75)]
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise ValueError(f"op = {op!r} is not an operation; expected one of {', '.join(operations())}, or a function of torch, numpy or jax{hint}")


def imported_torch(who: str) -> Any:
    """torch, which functions of torch and of numpy need. TypeError if it is not installed."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise TypeError(f"{who}: op is a function, which needs torch; install it, or name an operation of ulplab.reference") from error


def is_jax(x: Any) -> bool:
    """True for an array of jax."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(x, jax.Array)


def arguments(function: Any) -> tuple[str, ...]:
    """The names of a function's arguments."""
    code = function.__code__
    names: tuple[str, ...] = code.co_varnames
    return names[: code.co_argcount + code.co_kwonlyargcount]


def warn(message: str) -> None:
    """An UlplabWarning that points at the caller of this module, through frames of torch that keep a compiler away."""
    own, level, frame = os.path.dirname(os.path.abspath(__file__)), 1, sys._getframe()
    while frame.f_back is not None and (
        os.path.dirname(os.path.abspath(frame.f_code.co_filename)) == own or f"torch{os.sep}_dynamo" in frame.f_code.co_filename
    ):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, UlplabWarning, stacklevel=level)


# Types that numpy has from ml_dtypes, which it does not hand over by DLPack: their bits travel as integers of the same size.
_BITS = {
    "bfloat16": numpy.uint16,
    "float8_e4m3fn": numpy.uint8,
    "float8_e5m2": numpy.uint8,
    "float8_e8m0fnu": numpy.uint8,
}


# Floats of 8 bits and fewer that the native module does not know; float32 holds them exactly.
_WIDENED = (
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e4m3b11fnuz",
    "float8_e4m3",
    "float8_e3m4",
    "float6_e2m3fn",
    "float6_e3m2fn",
    "float4_e2m1fn",
)
# torch's pairs of 4-bit floats, the first in the low half of a byte.
_PAIRS = "float4_e2m1fn_x2"


# Devices of DLPack: the host, and the host's memory that a GPU sees, too; memory of CUDA, and what it moves to and fro.
_HOST = (1, 3)
_CUDA = (2, 13)
# The stream that the native module reads memory of CUDA on, as DLPack has it: the legacy default stream.
_STREAM = 1


def _capsule(x: Any, **on: int) -> Any:
    try:
        return x.__dlpack__(max_version=(1, 0), **on)
    except TypeError:
        return x.__dlpack__(**on)


def _shown(x: Any) -> str:
    """The type of an object, with its library."""
    kind = type(x)
    return f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}" if kind.__module__ != "builtins" else kind.__name__


def plain(x: Any, name: str) -> Any:
    """A tensor whose memory has its numbers: torch's lazy signs are applied, and tensors without memory of their own are refused.

    Every tensor comes in here, before its memory is read. TypeError if it has no numbers to read.
    """
    if isinstance(x, numpy.ma.MaskedArray):
        raise TypeError(f"'{name}' is a masked array, whose mask is not compared; give its numbers, x.filled(...) or x.compressed()")
    torch = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)
    if tensor is None or not isinstance(x, tensor):
        return x.detach() if hasattr(x, "detach") else x
    why = _foreign(torch, x)
    if why:
        raise TypeError(f"'{name}' is a {_shown(x)}, {why}")
    try:
        with _without_modes(torch):
            x = x.detach()
            if x._is_zerotensor():
                x = x.clone()
            if x.is_conj():
                x = x.resolve_conj()
            if x.is_neg():
                x = x.resolve_neg()
            missing = x.device.type == "cpu" and _ends(x) > x.untyped_storage().nbytes()
    except (RuntimeError, NotImplementedError) as error:
        raise TypeError(f"'{name}' is a {_shown(x)} that torch does not read: {str(error).splitlines()[0][:200]}") from error
    if missing:
        raise TypeError(f"'{name}' is {x.dtype}{list(x.shape)} and its storage has {x.untyped_storage().nbytes()} bytes: it was freed")
    return x


def _without_modes(torch: Any) -> Any:
    """Reading a tensor is no operation of a mode that is active, such as FakeTensorMode."""
    dispatch = sys.modules.get("torch.utils._python_dispatch")
    disable = getattr(dispatch, "_disable_current_modes", None)
    return contextlib.nullcontext() if disable is None else disable()


def _ends(x: Any) -> int:
    """The bytes of storage that a tensor of torch reaches."""
    if x.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride()))
    return int(x.storage_offset() + last + 1) * int(x.element_size())


def _foreign(torch: Any, x: Any) -> str:
    """Why a tensor of torch has no memory with its numbers, if it has none."""
    kind = type(x)
    functorch = getattr(torch._C, "_functorch", None)
    wrapped = getattr(functorch, "is_functorch_wrapped_tensor", None)
    if wrapped is not None and wrapped(x):
        return "inside vmap, grad or another transform, which has no numbers to read; compare what the transform returns"
    if torch._is_functional_tensor(x):
        return "inside functionalize, which has no numbers to read; compare what it returns"
    if x.is_nested:
        return "a nested tensor; compare its parts, x.unbind(), or x.to_padded_tensor(0)"
    own = kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl
    function = kind.__torch_function__
    known = (torch.Tensor.__torch_function__, torch._C._disabled_torch_function_impl)
    own = own or getattr(function, "__func__", function) not in [getattr(one, "__func__", one) for one in known]
    if own:
        return (
            "a subclass of torch.Tensor with operations of its own, so its memory need not have its numbers; "
            "give a plain tensor, for instance x.full_tensor(), x.dequantize() or x.as_subclass(torch.Tensor)"
        )
    if x.device.type == "meta":
        return "on the meta device, which has no numbers to read"
    if x.layout is not torch.strided:
        return f"of layout {x.layout}; compare x.to_dense(), or its values and indices"
    if x.is_quantized:
        return "quantized by torch; compare x.dequantize(), or x.int_repr() and its scales"
    return ""


def _on_device(x: Any) -> _native.Array | None:
    """A tensor in memory of CUDA, where it is; None if it cannot be read there: it is not contiguous, its type is not known, or there
    is no driver."""
    if not _native.reads_cuda():
        return None
    try:
        return _native.Array(_capsule(x, stream=_STREAM))
    except (TypeError, BufferError, RuntimeError, ValueError):
        return None


def _from_numpy(x: numpy.ndarray) -> _native.Array:
    name = x.dtype.name
    if name in _BITS:
        return _native.Array(_capsule(x.view(_BITS[name])), name)
    if name in _WIDENED:
        return _native.Array(_capsule(x.astype(numpy.float32)))
    if not x.dtype.isnative:
        x = x.astype(x.dtype.newbyteorder("="))
    return _native.Array(_capsule(x))


def array(x: Any, name: str) -> _native.Array:
    """``x`` as an array: without a copy if it is in memory of the host or of CUDA. ``name`` is what errors call it."""
    if isinstance(x, _native.Array):
        return x
    if type(x).__name__ == "Stored" and type(x).__module__ == f"{__package__}._files":
        stored: _native.Array = x.array()
        return stored
    x = plain(x, name)
    if isinstance(x, numpy.ndarray):
        try:
            return _from_numpy(x)
        except (TypeError, BufferError, ValueError) as error:
            raise TypeError(f"'{name}' is an array of {x.dtype}: {error}") from error
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        with _without_modes(sys.modules.get("torch")):
            return _exported(x, name)
    if isinstance(x, (list, tuple)):
        return _from_numpy(_of_list(x, name))
    if isinstance(x, (bool, int, float, numpy.generic)):
        return _from_numpy(numpy.asarray(x))
    raise TypeError(
        f"'{name}' is a {type(x).__name__}, expected a tensor: a numpy array, or anything with __dlpack__"
    )


def _of_list(x: Any, name: str) -> numpy.ndarray:
    """Numbers in lists as an array. What several kernels return is none."""
    kinds = {type(one).__name__ for one in x}
    if any(one is None or hasattr(one, "shape") and getattr(one, "ndim", 1) > 0 for one in x):
        raise TypeError(f"'{name}' is a {type(x).__name__} of {len(x)}: {', '.join(sorted(kinds))}; give one of them, {name}[0]")
    try:
        return numpy.asarray(x)
    except ValueError as error:
        raise TypeError(f"'{name}' is a {type(x).__name__} of {len(x)} that is no tensor: {error}") from error


def _exported(x: Any, name: str) -> _native.Array:
    """A tensor that a library exports by DLPack."""
    try:
        device = int(x.__dlpack_device__()[0])
    except Exception as error:  # noqa: BLE001 -- a library may raise what it likes
        where = getattr(x, "device", "a device")
        raise TypeError(f"'{name}' is a {type(x).__name__} on {where}, which has no numbers to read: {error}") from error
    try:
        if device not in _HOST:
            held = _on_device(x) if device in _CUDA else None
            if held is not None:
                return held
            x = _to_host(x, name)
            if isinstance(x, numpy.ndarray):
                return _from_numpy(x)
        return _native.Array(_capsule(x))
    except Exception as error:  # noqa: BLE001 -- as above
        return _as_bits(x, name, error)


def _to_host(x: Any, name: str) -> Any:
    for method in ("cpu", "get"):
        if hasattr(x, method):
            return getattr(x, method)()
    if "jax" in type(x).__module__:
        return numpy.asarray(x)
    raise TypeError(f"'{name}' is a {type(x).__name__} on a device, and has no way to be copied to the host")


def _as_bits(x: Any, name: str, error: Exception) -> _native.Array:
    """A torch tensor of small floats that this version of torch does not export, or the native module does not know: its bits, or its
    numbers in float32. Pairs of 4-bit floats become two elements of the last dimension."""
    dtype = str(getattr(x, "dtype", "")).removeprefix("torch.")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        if dtype in _BITS:
            bits = torch.uint8 if _BITS[dtype] is numpy.uint8 else torch.int16
            return _native.Array(_capsule(x.view(bits)), dtype)
        if dtype in _WIDENED:
            return _native.Array(_capsule(x.to(torch.float32)))
        if dtype == _PAIRS:
            return _native.Array(_capsule(_pairs(x.view(torch.uint8).numpy())))
    raise TypeError(f"'{name}' is of {dtype or type(x).__name__} and cannot be read: {error}") from error


def _pairs(codes: numpy.ndarray) -> numpy.ndarray:
    """The numbers of bytes of two 4-bit floats each: those of MXFP4 under scales of 1."""
    rows, cols = int(numpy.prod(codes.shape[:-1])), 2 * codes.shape[-1]
    ones = numpy.full((rows, -(-cols // 32)), 127, numpy.uint8)
    return _native.decode([_from_numpy(codes), _from_numpy(ones)], rows, cols, "mxfp4").reshape(*codes.shape[:-1], cols)


def inputs(given: dict[str, Any]) -> dict[str, Any]:
    """The inputs of an operation: tensors as arrays, numbers and words as they are, without those that are None."""
    if not isinstance(given, dict) or any(isinstance(name, int) for name in given):
        kind = "tuple" if isinstance(given, dict) else type(given).__name__
        raise TypeError(f"inputs is a {kind}, expected a dictionary of tensors, numbers and words")

    def one(value: Any, name: str) -> Any:
        if isinstance(value, numpy.generic) or isinstance(value, numpy.ndarray) and value.ndim == 0:
            value = value.item()
        return value if isinstance(value, (bool, int, float, str)) else array(value, name)

    return {name: one(value, name) for name, value in given.items() if value is not None}
