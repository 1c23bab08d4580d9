"""Inputs that show faults, from an example of a call."""

from __future__ import annotations

import sys
from typing import Any, Iterable

import numpy

from . import _draws, _native
from ._close import _wanted_type, assumed, dtypes_of, unit
from ._tensors import check_operation, inputs as given_inputs

# Each so many inputs, the first dimension's slices of a tensor are apart in memory.
_APART = 4
# Numbers between two slices.
_GAP = 20


class Inputs(dict[str, Any]):
    """Inputs of an operation by name, ``kernel(**inputs)``."""

    #: The sizes and the values, in words.
    why: str = ""
    #: True if every order of sums gives the same result, without a rounding: the bound is 0 where the type of the output has it.
    exact: bool = False
    #: Faults of the operation that these inputs show, and that none before them in the list shows.
    faults: tuple[str, ...] = ()


def inputs(
    op: str,
    like: dict[str, Any] | None = None,
    budget: int = 16,
    *,
    seed: int = 0,
    dtype: str | None = None,
    accumulate: str | None = None,
    vary: Iterable[str] | None = None,
    strides: bool = True,
) -> list[Inputs]:
    """At most ``budget`` inputs of an operation that show faults, those that show most first.

    ``like`` is a call of your own: its tensors' types and library, its numbers and words are those of the inputs. Sizes and values vary:
    odd sizes and 1, one more than a tile, lengths that differ, scales of their own for every slice, ties, slices of zeros, garbage behind
    lengths, tiny, huge and dominant numbers, and small integers, whose sums are exact in any order. Without ``like``, inputs of the
    operation's own cases are the example.

    Numbers of ``like`` stay as they are, except flags and factors (scale, alpha, ...) that it gives with their default: these vary, too.
    ``vary`` names those that may instead. ``dtype`` is the type of the output, that of the first tensor if not given. In one of four inputs, the
    slices of a tensor are apart in memory, unless ``strides=False``.

    Raises ValueError if the operation refuses ``like``, or ``budget`` is less than 1.
    """
    check_operation(op)
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
        raise ValueError(f"budget = {budget!r}, expected an integer of at least 1")
    if like is None:
        like = _draws.of(op)(numpy.random.default_rng(seed))
    given = given_inputs(like)
    name = dtype or _wanted_type(op, "", given)[0] or "float32"
    u = unit(assumed(accumulate, [*dtypes_of(given.values()), name]))
    named = None if vary is None else list(vary)
    found = []
    for at, (made, why, exact, faults) in enumerate(_native.telling(op, given, name, u, named, budget, seed)):
        one = Inputs({word: _as(like[word], made[word], _GAP if strides and at % _APART == 1 else 0) for word in like if like[word] is not None})
        one.why, one.exact, one.faults = why, exact, tuple(faults)
        found.append(one)
    return found


def _as(like: Any, made: Any, gap: int = 0) -> Any:
    """What was made in f64, of the type and the library of the example."""
    if not isinstance(made, numpy.ndarray):
        return like if made == like else made
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(like, torch.Tensor):
        tensor = torch.from_numpy(made).to(like.dtype).to(like.device)
        if not gap or tensor.ndim < 2 or tensor.is_floating_point() is False:
            return tensor
        size = tensor[0].numel()
        memory = torch.zeros(len(tensor) * (size + gap), dtype=tensor.dtype, device=tensor.device)
        apart = memory.as_strided(tensor.shape, (size + gap, *tensor.stride()[1:]))
        apart.copy_(tensor)
        return apart
    if type(like).__module__.partition(".")[0] in ("jax", "jaxlib"):
        return sys.modules["jax"].numpy.asarray(made).astype(like.dtype)
    array = made.astype(getattr(like, "dtype", None) or numpy.asarray(like).dtype)
    if not gap or array.ndim < 2 or array.dtype.kind in "iub" or 0 in array.shape:
        return array
    size = array[0].size
    memory = numpy.zeros(len(array) * (size + gap), array.dtype)
    steps = ((size + gap) * array.itemsize, *array.strides[1:])
    view = numpy.lib.stride_tricks.as_strided(memory, array.shape, steps)
    view[...] = array
    return view
