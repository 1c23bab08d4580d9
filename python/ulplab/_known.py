"""What recorded calls compute: which operation, and what it is given."""

from __future__ import annotations

from typing import Any, Callable

from ._files import Stored


class Unknown(Exception):
    """Why a call is not judged."""


# An output to judge: its place in the call's outputs, the operation, what it is given, and its shape there.
Judgement = tuple[int, str, dict[str, Any], tuple[int, ...] | None]


def take(given: dict[str, Any], needed: tuple[str, ...], optional: dict[str, Any], ignored: tuple[str, ...] = ()) -> list[Any]:
    """Arguments by name. What is neither known nor None makes the call one that is not judged."""
    extra = [
        name
        for name, value in given.items()
        if name not in needed and name not in optional and name not in ignored and value is not None
    ]
    if extra:
        raise Unknown(f"its argument '{extra[0]}' is not known")
    missing = [name for name in needed if given.get(name) is None]
    if missing:
        raise Unknown(f"its argument '{missing[0]}' was not recorded")
    values = [given[name] for name in needed]
    for name, default in optional.items():
        value = given.get(name)
        if isinstance(value, dict):
            raise Unknown(f"its argument '{name}' is {value.get('type', 'an object')}")
        values.append(default if value is None else value)
    return values


# Where outputs are written, and how a kernel is launched: neither changes what it computes.
LAUNCH = ("out", "enable_pdl", "backend")

# How a call is judged, from its arguments by name.
Judge = Callable[[dict[str, Any]], list[Judgement]]


def reshaped(x: Any, shape: tuple[int, ...]) -> Stored:
    """A tensor in another shape of as many elements."""
    stored = Stored.of(x)
    return Stored(stored.bits.reshape(shape), stored.dtype)
