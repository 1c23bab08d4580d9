"""Tensors in files: safetensors without any library, and tensors whose types numpy lacks."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from typing import Any, Collection

import numpy

from . import _native
from ._tensors import _BITS, _HOST, _capsule, _to_host

# The types of safetensors, and those of numpy that have their bits.
_TYPES = {
    "F64": ("float64", numpy.float64),
    "F32": ("float32", numpy.float32),
    "F16": ("float16", numpy.float16),
    "BF16": ("bfloat16", numpy.uint16),
    "F8_E4M3": ("float8_e4m3fn", numpy.uint8),
    "F8_E5M2": ("float8_e5m2", numpy.uint8),
    "F8_E8M0": ("float8_e8m0fnu", numpy.uint8),
    "I64": ("int64", numpy.int64),
    "I32": ("int32", numpy.int32),
    "I16": ("int16", numpy.int16),
    "I8": ("int8", numpy.int8),
    "U64": ("uint64", numpy.uint64),
    "U32": ("uint32", numpy.uint32),
    "U16": ("uint16", numpy.uint16),
    "U8": ("uint8", numpy.uint8),
    "BOOL": ("bool", numpy.bool_),
}
_NAMES = {name: code for code, (name, _) in _TYPES.items()}


@dataclass(frozen=True)
class Stored:
    """A tensor whose type numpy may lack: its bits, in a type of the same size."""

    bits: numpy.ndarray
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.bits.shape

    @classmethod
    def of(cls, x: Any) -> Stored:
        """The bits of a tensor of any library. TypeError if it has none that can be read."""
        if isinstance(x, Stored):
            return x
        if not isinstance(x, numpy.ndarray):
            x = x.detach() if hasattr(x, "detach") else x
            if hasattr(x, "__dlpack_device__") and int(x.__dlpack_device__()[0]) not in _HOST:
                x = _to_host(x, "tensor")
            name = str(getattr(x, "dtype", "")).rpartition(".")[2]
            if name in _BITS and hasattr(x, "view") and hasattr(x, "numpy"):
                # torch: the same bits as integers that numpy has.
                library = __import__("sys").modules[type(x).__module__.partition(".")[0]]
                bits = x.contiguous().view(getattr(library, "int16" if _BITS[name] is numpy.uint16 else "uint8")).numpy()
                return cls(bits.view(_BITS[name]), name)
            x = numpy.asarray(x)
        name = x.dtype.name
        if name in _BITS:
            return cls(x.view(_BITS[name]), name)
        if name not in _NAMES:
            raise TypeError(f"elements are {name}, expected one of {', '.join(_NAMES)}")
        return cls(x.astype(x.dtype.newbyteorder("=")), name)

    def array(self) -> _native.Array:
        """As the native module has it."""
        contiguous = numpy.ascontiguousarray(self.bits)
        return _native.Array(_capsule(contiguous), self.dtype if self.dtype in _BITS else None)

    def widened(self) -> numpy.ndarray:
        """The numbers in f64."""
        return _native.widen(self.array())

    def __getitem__(self, index: Any) -> Stored:
        return Stored(self.bits[index], self.dtype)


def write(path: str | os.PathLike[str], tensors: dict[str, Any], metadata: dict[str, str]) -> None:
    """Writes a safetensors file; strings of ``metadata`` go into its header."""
    header: dict[str, Any] = {"__metadata__": metadata}
    parts, at = [], 0
    for name, tensor in tensors.items():
        stored = Stored.of(tensor)
        raw = numpy.ascontiguousarray(stored.bits).tobytes()
        header[name] = {"dtype": _NAMES[stored.dtype], "shape": list(stored.shape), "data_offsets": [at, at + len(raw)]}
        parts.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + b"".join(parts))


def header(path: str | os.PathLike[str]) -> tuple[dict[str, Any], numpy.ndarray]:
    """The header of a safetensors file, and the bytes behind it, which are read when they are asked for."""
    size = os.path.getsize(path)
    raw = numpy.memmap(path, numpy.uint8, "r") if size else numpy.empty(0, numpy.uint8)
    length = int.from_bytes(raw[:8].tobytes(), "little") if size >= 8 else -1
    if not 0 <= length <= size - 8:
        raise ValueError(f"{path}: {size} bytes are no safetensors file")
    try:
        found = json.loads(raw[8 : 8 + length].tobytes())
    except ValueError as error:
        raise ValueError(f"{path}: the header of the safetensors file is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: the header of the safetensors file is no object")
    return found, raw[8 + length :]


def tensor(path: str | os.PathLike[str], name: str, entry: Any, data: numpy.ndarray) -> Stored:
    """A tensor of a safetensors file, from its entry in the header and the bytes behind that. ValueError if it is none."""
    try:
        dtype, shape, (begin, end) = entry["dtype"], [int(size) for size in entry["shape"]], entry["data_offsets"]
        known, bits = _TYPES.get(dtype, (None, numpy.uint8))
        whole = 0 <= begin <= end <= data.size and end - begin == math.prod(shape) * numpy.dtype(bits).itemsize
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: '{name}' has no dtype, shape and data_offsets: {error!r}") from error
    if known is None or not whole:
        raise ValueError(f"{path}: '{name}' is {dtype} {shape} in bytes {begin} to {end} of {data.size}")
    return Stored(numpy.frombuffer(data[begin:end].tobytes(), bits).reshape(shape), known)


def read(path: str | os.PathLike[str], names: Collection[str] | None = None) -> tuple[dict[str, Stored], dict[str, str]]:
    """The tensors of a safetensors file, or those of ``names``, and the strings in its header. ValueError if it is none."""
    entries, data = header(path)
    metadata = entries.pop("__metadata__", None) or {}
    wanted = {name: entry for name, entry in entries.items() if names is None or name in names}
    return {name: tensor(path, name, entry, data) for name, entry in wanted.items()}, metadata
