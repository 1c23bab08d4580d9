"""Tensors in files: safetensors without any library, and tensors whose types numpy lacks."""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Collection, Iterable

import numpy

from . import _native
from ._tensors import _BITS, _HOST, _capsule, _to_host, plain

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
        x = plain(x, "tensor")
        if not isinstance(x, numpy.ndarray):
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
        """The tensor as the native module has it."""
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
    replace(path, [len(text).to_bytes(8, "little"), text, *parts])


def replace(path: str | os.PathLike[str], parts: Iterable[bytes]) -> None:
    """Writes a file as a whole: whoever reads it, or kills this process, finds all of it or what was there before."""
    folder, name = os.path.split(os.fspath(path))
    beside = os.path.join(folder, f".{name}.{os.getpid()}.tmp")
    try:
        with open(beside, "wb") as file:
            file.writelines(parts)
        os.replace(beside, path)
    except BaseException:
        if os.path.exists(beside):
            os.unlink(beside)
        raise


# Control characters, and those that turn the direction of a line: in names of files that others wrote, they would forge lines.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def clean(text: Any, most: int = 300) -> str:
    """A text from a file as it can be printed, in one line."""
    shown = _UNPRINTABLE.sub(lambda found: f"\\u{{{ord(found[0]):x}}}", str(text))
    return shown if len(shown) <= most else f"{shown[:most]}..."


def inside(folder: Path, name: Any) -> Path:
    """The file of that name in a folder. ValueError if it lies elsewhere: what others wrote does not say which files are read."""
    if not isinstance(name, str) or not name or "\0" in name:
        raise ValueError(f"{clean(folder)}: {clean(repr(name))} names no file")
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{clean(folder)}: {clean(repr(name))} is out of the folder")
    return path


def parsed(path: str | os.PathLike[str]) -> Any:
    """The content of a file of JSON. ValueError if it is none."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: no JSON: {clean(error)}") from error


def npy(file: BinaryIO, name: str) -> numpy.ndarray:
    """The array of an .npy file, whose size is compared with its header before memory is taken. ValueError if it is none."""
    try:
        version = numpy.lib.format.read_magic(file)
        reader = {(1, 0): numpy.lib.format.read_array_header_1_0, (2, 0): numpy.lib.format.read_array_header_2_0}[version]
        shape, _, dtype = reader(file)
        begin = file.tell()
        size = file.seek(0, os.SEEK_END) - begin
        if dtype.hasobject or math.prod(shape) * dtype.itemsize != size:
            raise ValueError(f"{size} bytes, expected those of {dtype}{list(shape)}")
        file.seek(0)
        found: numpy.ndarray = numpy.load(file, allow_pickle=False)
        return found
    except Exception as error:  # noqa: BLE001 -- numpy evaluates the header, and raises what that raises
        raise ValueError(f"{clean(name)}: no array of numpy: {type(error).__name__}: {clean(error)}") from error


def header(path: str | os.PathLike[str]) -> tuple[dict[str, Any], numpy.ndarray]:
    """The header of a safetensors file, and the bytes behind it, which are read when they are needed."""
    size = os.path.getsize(path)
    raw = numpy.memmap(path, numpy.uint8, "r") if size else numpy.empty(0, numpy.uint8)
    length = int.from_bytes(raw[:8].tobytes(), "little") if size >= 8 else -1
    if not 0 <= length <= size - 8:
        raise ValueError(f"{path}: {size} bytes are no safetensors file")
    try:
        found = json.loads(raw[8 : 8 + length].tobytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: the header of the safetensors file is not JSON: {clean(error)}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: the header of the safetensors file is no object")
    return found, raw[8 + length :]


def tensor(path: str | os.PathLike[str], name: str, entry: Any, data: numpy.ndarray) -> Stored:
    """A tensor of a safetensors file, from its entry in the header and the bytes behind that. ValueError if it is none."""
    shown = clean(repr(name))
    try:
        dtype, shape, (begin, end) = entry["dtype"], list(entry["shape"]), entry["data_offsets"]
        if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)):
            raise ValueError("expected integers of at least 0")
        known, bits = _TYPES.get(dtype, (None, numpy.uint8))
        whole = begin <= end <= data.size and end - begin == math.prod(shape) * numpy.dtype(bits).itemsize
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: {shown} has no dtype, shape and data_offsets: {clean(repr(error))}") from error
    if known is None or not whole:
        raise ValueError(f"{path}: {shown} is {clean(dtype)} {clean(shape)} in bytes {begin} to {end} of {data.size}")
    try:
        return Stored(numpy.frombuffer(data[begin:end].tobytes(), bits).reshape(shape), known)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{path}: {shown} is {clean(dtype)} {clean(shape)}: {clean(error)}") from error


def read(path: str | os.PathLike[str], names: Collection[str] | None = None) -> tuple[dict[str, Stored], dict[str, str]]:
    """The tensors of a safetensors file, or those of ``names``, and the strings in its header. ValueError if it is none."""
    entries, data = header(path)
    metadata = entries.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict):
        raise ValueError(f"{path}: __metadata__ is a {type(metadata).__name__}, expected strings by name")
    wanted = {name: entry for name, entry in entries.items() if names is None or name in names}
    return {name: tensor(path, name, entry, data) for name, entry in wanted.items()}, metadata
