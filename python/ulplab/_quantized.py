"""Quantizers by the rule of a library, to the bit, and the rule that made stored bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy

from . import _native
from ._tensors import array, warn


def format_of(format: str, rule: str | None = None) -> str:
    """A format's name with another rule for its scales: ``nvfp4`` and ``te`` are ``e2m1/b16:e4m3(te)/t:f32``."""
    return format if rule is None else _native.with_rule(format, rule)


@dataclass(frozen=True)
class Quantized:
    """A tensor that is quantized."""

    #: The format, with the rule.
    format: str
    #: Shape of the tensor before it was quantized.
    shape: tuple[int, ...]
    #: Codes as bytes, those of 4 bits two in each, the first in the low half: ``[rows, bytes]``.
    codes: numpy.ndarray
    #: Scales as they are stored, ``[rows, blocks]``: bytes, or float32; None if the format has none.
    scales: numpy.ndarray | None
    #: The scale above the scales, float32 ``[1]`` or one for each row; None if the format has none.
    global_scale: numpy.ndarray | None
    _parts: tuple[numpy.ndarray, ...] = field(repr=False)

    def dequantize(self) -> numpy.ndarray:
        """The numbers in float32, in the shape of the tensor."""
        return dequantize(*self._parts, format=self.format, shape=self.shape)

    def layout(self, name: str) -> numpy.ndarray:
        """The scales as bytes in the order that a GEMM wants, e.g. ``"128x4"``; ``ulplab list layouts`` has all."""
        if self.scales is None:
            raise ValueError(f"{self.format} has no scales")
        return _native.place(array(self.scales, "scales"), name)


def quantize(x: Any, format: str, rule: str | None = None, amax: float | None = None) -> Quantized:
    """Quantizes ``x`` ``[..., C]`` along its last dimension, to the bit as the library does whose rule it is.

    ``format`` is a name (``nvfp4``, ``mxfp8``, ``fp8_b128``, ...) or a format string; ``ulplab list formats`` has all. ``amax`` is the
    largest magnitude that the global scale is made from, the tensor's own if it is not given.
    """
    format = format_of(format, rule)
    x = array(x, "x")
    parts = {
        name: _typed(data, dtype, shape) for name, data, dtype, shape in _native.encode(x, format, amax)
    }
    return Quantized(
        format=format,
        shape=tuple(x.shape),
        codes=parts["data"],
        scales=parts.get("scale"),
        global_scale=parts.get("global"),
        _parts=tuple(parts.values()),
    )


def unplaced(placed: Any, rows: int, cols: int, layout: str) -> numpy.ndarray:
    """Scales of one byte as ``[rows, cols]``, from bytes in the order of a layout. ValueError if there are more or fewer."""
    return _native.unplace(array(placed, "scales"), rows, cols, layout)[0].reshape(rows, cols)


def _typed(data: numpy.ndarray, dtype: str, shape: list[int]) -> numpy.ndarray:
    # numpy has no 8-bit floats: they stay bytes.
    known = {"float32": "float32", "float16": "float16", "bfloat16": "uint16"}
    return data.view(numpy.dtype(known.get(dtype, "uint8"))).reshape(shape)


def dequantize(*parts: Any, format: str, shape: tuple[int, ...]) -> numpy.ndarray:
    """The numbers, in float32, of parts as `quantize` gives them: codes, scales, global scale."""
    rows, cols = int(numpy.prod(shape[:-1])), shape[-1]
    arrays = [array(part, f"part {at}") for at, part in enumerate(parts)]
    return _native.decode(arrays, rows, cols, format).reshape(shape)


@dataclass(frozen=True)
class Parity:
    """The rule that made stored bytes."""

    #: True if a rule explains every byte.
    explained: bool
    #: All rules that do.
    rules: list[str]
    #: The result in a sentence.
    conclusion: str
    #: The differences from the nearest rule.
    findings: list[str]
    #: The cost of the rule, if no rule was named and another rule of the format has a far smaller error.
    warning: str | None = None

    def __str__(self) -> str:
        warning = [f"warning: {self.warning}"] if self.warning else []
        return "\n".join([self.conclusion, *(f"  {line}" for line in [*self.findings, *warning])])


def parity(
    x: Any,
    codes: Any,
    scales: Any = None,
    global_scale: Any = None,
    *,
    format: str,
    rule: str | None = None,
    layout: str | None = None,
) -> Parity:
    """Looks for the rule that made codes and scales from ``x``; with ``rule``, says whether it was that one.

    ValueError, "not judged", unless there are as many codes, scales and global scales as the format has for the shape of ``x``.
    """
    above = [] if global_scale is None else numpy.ravel(_native.widen(array(global_scale, "global_scale"))).tolist()
    # A format without scales has no bytes of them.
    scales = numpy.empty(0, numpy.uint8) if scales is None else scales
    found = _native.diagnose(
        array(x, "x"),
        (array(codes, "codes"), array(scales, "scales"), above),
        format_of(format, rule),
        layout,
        rule is not None,
    )
    (explained, rules), conclusion, findings, warning = found
    # A format string with a rule in it, such as e4m3/b128:e8m0(act_quant), names the rule, too.
    return Parity(explained, rules, conclusion, findings, None if "(" in format else warning)


def assert_quantized(
    codes: Any,
    scales: Any,
    x: Any,
    format: str,
    global_scale: Any = None,
    *,
    rule: str | None = None,
    layout: str | None = None,
    padding: str = "zero",
) -> None:
    """Raises AssertionError, with what went wrong, unless a rule of the format, or the one that is named, made these bytes from ``x``.

    ``scales`` are None if the format has none. With a ``layout``, bytes that belong to no scale must be 0, since products read them with
    the rest of a tile; ``padding="any"`` leaves them out.

    Without ``rule``, the rule that fits may be one that nobody wanted: if its relative L2 error is more than 1.5 times that of the best
    rule of the format, an UlplabWarning says so, with the share of blocks whose largest element is clipped. If all numbers are 0, what
    writes nothing passes, too, which is an UlplabWarning.

    ValueError, "not judged", unless there are as many codes, scales and global scales as the format has for the shape of ``x``.
    """
    __tracebackhide__ = True
    if padding not in ("zero", "any"):
        raise ValueError(f"padding = {padding!r}, expected 'zero' or 'any'")
    found = parity(x, codes, scales, global_scale, format=format, rule=rule, layout=layout)
    if not found.explained:
        raise AssertionError(str(found))
    if found.warning:
        warn(found.warning)
    if _native.constant(array(x, "x")) == 0:
        warn("all numbers are 0: a kernel that writes nothing passes, too")
    if layout is not None and padding == "zero":
        own = quantize(x, format).scales
        assert own is not None, f"{format} has scales, since a layout places them"
        stale = _native.unplace(array(scales, "scales"), own.shape[0], own.shape[1], layout)[1]
        if stale:
            bytes_are = "byte is" if stale == 1 else "bytes are"
            raise AssertionError(f"padding: {stale} {bytes_are} not 0 that the layout {layout} has beyond the scales; a product reads them")
