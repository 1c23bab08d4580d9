"""The check that a row has the same bits in every batch."""

from __future__ import annotations

import numbers
from typing import Any, Callable, Iterable

import numpy

from . import _errors, _inputs, _native
from ._files import Stored
from ._tensors import array


def _same(a: Stored, b: Stored) -> numpy.ndarray:
    """A mask of the elements of two tensors that have the same bits; any NaN is the same as any other."""
    same: numpy.ndarray = a.bits == b.bits
    if a.dtype in _native.floats():
        wide_a, wide_b = a.widened(), b.widened()
        unsigned = {1: numpy.uint8, 2: numpy.uint16, 4: numpy.uint32, 8: numpy.uint64}[a.bits.dtype.itemsize]
        # 0 and -0 are equal numbers of different bits.
        same = numpy.ascontiguousarray(a.bits).view(unsigned) == numpy.ascontiguousarray(b.bits).view(unsigned)
        same |= numpy.isnan(wide_a) & numpy.isnan(wide_b)
    return same


def _apart(found: Stored, alone: Stored, same: numpy.ndarray) -> str:
    """The distance of two tensors, in words."""
    if found.dtype not in _native.floats():
        return f"{int((~same).sum()):,} elements differ"
    a, b = found.widened()[~same], alone.widened()[~same]
    mixed = int((numpy.isnan(a) != numpy.isnan(b)).sum())
    whole = numpy.isfinite(a) & numpy.isfinite(b)
    got, want = (x[~same][whole].array() for x in (found, alone))
    most = _native.metrics(got, want, ["ulp"], False)[0]
    words = f"by {most or 0:,.0f} ulp at most" if whole.any() else "none of them by numbers"
    zeros = int((a == b).sum())
    signs = f", {zeros:,} of them in the sign of a zero" if zeros else ""
    return f"{a.size:,} of {same.size:,} elements differ, {words}{signs}" + (f", {mixed:,} are NaN on one side only" if mixed else "")


def _sizes(given: Any, what: str) -> list[int]:
    sizes = [given] if isinstance(given, numbers.Integral) and not isinstance(given, bool) else list(given)
    if not all(isinstance(size, numbers.Integral) and not isinstance(size, bool) and int(size) >= 1 for size in sizes):
        raise ValueError(f"{what} = {given!r}, expected integers of at least 1")
    return [int(size) for size in sizes]


def _take(x: Any, rows: Any, axis: int) -> Any:
    """Elements of a tensor of any library along one of its dimensions."""
    return x[(slice(None),) * axis + (rows,)]


def _check_asked(whole: Stored, asked: list[str], rows: bool) -> None:
    """ValueError if nothing was asked that a wrong kernel could have answered otherwise."""
    if not asked:
        raise ValueError("not judged: nothing is asked; give repeat, batch, place, neighbours or split")
    if rows and all(what.startswith("repeat") for what in asked):
        found = f"the output {list(whole.shape)} has no rows to compare with others"
        raise ValueError(f"not judged: {found}; repeat= alone asks for equal calls")
    if whole.dtype in _native.floats() and bool(numpy.isnan(whole.widened()).all()):
        raise ValueError("not judged: all of the output is NaN, which any NaN is the same as")
    if rows and bool((whole.bits == whole.bits[:1]).all()):
        raise ValueError(
            "not judged: all rows of the output are equal: a kernel that ignores its inputs, or mixes up rows, is not noticed; "
            "give inputs whose rows differ"
        )


def assert_invariant(
    kernel: Callable[..., Any],
    inputs: Any,
    *,
    rows: Iterable[str | int] | None = None,
    batch: int | Iterable[int] = (1, 2, 7),
    place: bool = True,
    neighbours: bool = True,
    split: int | Iterable[int] = (),
    split_axis: int = 1,
    split_rows: Iterable[str | int] | None = None,
    repeat: int = 2,
    output: str | int | None = None,
    writes: str | int | Iterable[str | int] = (),
) -> None:
    """Raises AssertionError unless each row of a kernel's output has the same bits in every batch.

    ``kernel(**inputs)``, or ``kernel(*inputs)`` of a tuple, gives a tensor, or several (``output`` says which, by name or position).
    ``rows`` names the inputs, by name or position, whose first dimension is that of the rows, [B, ...], as is that of the output; without
    it, all tensors whose first dimension is as long as the output's. All B rows at once are what others are compared with:

    ``repeat``     the same call again, so many times
    ``batch``      calls of so many rows each, one after another; the last has what is left
    ``place``      rows in the opposite order, and moved on by one
    ``neighbours`` every second row with copies of itself in the place of the others
    ``split``      chunks of so many positions along ``split_axis`` (1: [B, T, ...]) of ``split_rows`` (or ``rows``), one call each; for
                   kernels whose positions do not depend on each other, or that keep their state themselves

    The message names the dimension, which rows or positions differ, and by how many ulp. NaN is the same as NaN of other bits;
    0 and -0 are not the same. A kernel that overwrites an input which ``writes`` does not name fails; one that is named is given to each
    call as it was before the first.

    ValueError if inputs do not fit, or "not judged" if nothing is asked: rows are to be compared and there is one, there are no columns,
    all of the output is NaN, or all of its rows are equal.
    """
    __tracebackhide__ = True
    if not isinstance(inputs, (dict, tuple, list)) or not inputs:
        raise ValueError(f"inputs is {type(inputs).__name__}, expected a dictionary of tensors, numbers and words, or a tuple")
    sizes, chunks = _sizes(batch, "batch"), _sizes(split, "split")
    if isinstance(repeat, bool) or not isinstance(repeat, numbers.Integral) or repeat < 1:
        raise ValueError(f"repeat = {repeat!r}, expected an integer of at least 1")

    before = _inputs.Snapshot(inputs, writes)

    def call(given: dict[Any, Any]) -> Stored:
        found = _inputs.called(kernel, given, before.writes)
        before.check("the kernel")
        if output is not None:
            try:
                found = found[output]
            except (KeyError, IndexError, TypeError) as error:
                raise ValueError(f"output = {output!r}: the kernel gives {type(found).__name__} without it") from error
        elif isinstance(found, (tuple, dict)):
            raise ValueError(f"the kernel gives a {type(found).__name__} of {len(found)}, expected a tensor; say which by output=")
        stored = Stored.of(found)
        # A kernel may write every result to the same memory.
        return Stored(stored.bits.copy(), stored.dtype)

    whole = call(before.restore())
    if whole.bits.ndim == 0 or whole.shape[0] == 0:
        raise ValueError(f"the output is {list(whole.shape)}, expected [B, ...] with at least one row")
    if 0 in whole.shape:
        raise ValueError(f"not judged: the output is {list(whole.shape)}, which has no elements to compare")
    count = whole.shape[0]
    shaped = {name: tuple(x.shape) for name, x in before.live.items() if hasattr(x, "shape")}
    chosen = [name for name, shape in shaped.items() if shape[:1] == (count,)] if rows is None else list(rows)
    for name in chosen:
        if shaped.get(name, ())[:1] != (count,):
            raise ValueError(
                f"rows: '{name}' is {list(shaped.get(name, ()))}, expected [{count}, ...] as the output {list(whole.shape)}"
            )
    if not chosen:
        raise ValueError(
            f"no input has a first dimension of {count}, as the output {list(whole.shape)} has; say which have rows by rows="
        )

    def of_rows(index: Any) -> Stored:
        return call({name: _take(x, index, 0) if name in chosen else x for name, x in before.restore().items()})

    said: list[str] = []
    asked: list[str] = []

    def compare(what: str, found: Stored, expected: Stored, indices: Any, unit: str, axis: int = 0) -> None:
        asked.append(what)
        if found.shape != expected.shape or found.dtype != expected.dtype:
            said.append(f"  {what}: {found.dtype}{list(found.shape)}, and {expected.dtype}{list(expected.shape)} of all rows at once")
            return
        same = _same(found, expected)
        if same.all():
            return
        others = tuple(at for at in range(same.ndim) if at != axis)
        differing = numpy.asarray(indices)[~same.all(axis=others)]
        listed = ", ".join(str(at) for at in differing[:6]) + (", ..." if differing.size > 6 else "")
        place_of = _errors.place(_native.pattern(array(~same, "mask")))
        said.append(f"  {what}: {_apart(found, expected, same)}; {unit}s {listed} ({differing.size:,} of {len(indices):,}); {place_of}")

    everything = numpy.arange(count)
    for again in range(repeat - 1):
        compare(f"repeat (call {again + 2})", call(before.restore()), whole, everything, "row")
    for size in sizes:
        if size < count:
            parts = [of_rows(slice(at, min(at + size, count))) for at in range(0, count, size)]
            joined = Stored(numpy.concatenate([part.bits for part in parts]), parts[0].dtype)
            compare(f"batch = {size} for {count}", joined, whole, everything, "row")
    if place and count > 1:
        for what, order in (
            ("rows in the opposite order", everything[::-1].copy()),
            ("rows moved on by one", numpy.roll(everything, 1)),
        ):
            compare(f"place, {what}", of_rows(order), whole[order], order, "row")
    if neighbours and count > 1:
        for first in (0, 1):
            order = numpy.minimum(everything // 2 * 2 + first, count - 1)
            compare(
                f"neighbours, {'odd' if first else 'even'} rows next to copies of themselves", of_rows(order), whole[order], order, "row"
            )
    split_names = chosen if split_rows is None else list(split_rows)
    for size in chunks:
        lengths = {name: shaped.get(name, ())[split_axis : split_axis + 1] for name in split_names}
        length = whole.shape[split_axis] if whole.bits.ndim > split_axis else -1
        wrong = [name for name, found in lengths.items() if found != (length,)]
        if wrong:
            raise ValueError(
                f"split: '{wrong[0]}' is {list(shaped.get(wrong[0], ()))}, expected {length} in dimension {split_axis}, "
                f"as in the output {list(whole.shape)}; say which inputs have positions by split_rows="
            )
        if size >= length:
            if min(chunks) >= length:
                raise ValueError(f"not judged: split = {size} is one call for {length} positions; expected fewer in a call")
            continue
        parts = [
            call(
                {
                    name: _take(x, slice(at, min(at + size, length)), split_axis) if name in split_names else x
                    for name, x in before.restore().items()
                }
            )
            for at in range(0, length, size)
        ]
        joined = Stored(numpy.concatenate([part.bits for part in parts], axis=split_axis), parts[0].dtype)
        compare(f"split = {size} for {length}", joined, whole, numpy.arange(length), "position", split_axis)
    if not said:
        _check_asked(whole, asked, bool(sizes) or place or neighbours)
    if said:
        raise AssertionError("\n".join([f"{whole.dtype}{list(whole.shape)}: rows depend on what they are computed with", *said]))
