"""The operations of recorded calls: one for each output that is known, with its inputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable

import numpy

from ._dumps import Recorded
from ._files import Stored


class Unknown(Exception):
    """Why a call is not judged."""


@dataclass(frozen=True)
class Output:
    """A recorded output that an operation is given."""

    at: int
    #: The output whose numbers are places in its last dimension, if the operation is given the elements there.
    places: int | None = None

    def of(self, outputs: list[Any]) -> Any:
        """The input of the operation. Unknown if it was not recorded."""
        for at in (self.at, self.places):
            if at is not None and at >= len(outputs):
                raise Unknown(f"output {at} was not recorded")
        if self.places is None:
            return outputs[self.at]
        held, places = Stored.of(outputs[self.at]), Stored.of(outputs[self.places])
        if places.dtype not in ("int32", "int64") or places.shape[:-1] != held.shape[:-1]:
            found = f"output {self.places} is {places.dtype}{list(places.shape)}"
            raise Unknown(f"{found}, expected int32 or int64 of the rows of output {self.at}")
        if not ((places.bits >= 0) & (places.bits < held.shape[-1])).all():
            raise Unknown(f"output {self.places} has places that output {self.at} of {held.shape[-1]} columns does not have")
        return Stored(numpy.take_along_axis(held.bits, places.bits, -1), held.dtype)


@dataclass(frozen=True)
class Judgement:
    """An output to judge."""

    #: Its place in the call's outputs.
    at: int
    op: str
    #: The inputs of the operation.
    given: dict[str, Any]
    #: Its shape in the operation, if that is another.
    shape: tuple[int, ...] | None = None
    #: Its name in the operation, if that has several.
    output: str | None = None
    #: The output itself, if its order is not promised and is settled here.
    settled: Stored | None = None
    #: Further inputs where right kernels differ, by the words of a verdict on them: the first that holds counts.
    choices: dict[str, dict[str, Any]] = field(default_factory=lambda: {"": {}})
    #: The extremes of inputs that a kernel computes itself. The output lies between those of the extremes.
    corners: list[dict[str, Any]] = field(default_factory=list)


#: A function of what a call is given.
Function = Callable[[dict[str, Any]], list[Judgement]]
#: A function of what a method is given, and of what its object has.
Method = Callable[[dict[str, Any], dict[str, Any]], list[Judgement]]


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


def reshaped(x: Any, shape: tuple[int, ...]) -> Stored:
    stored = Stored.of(x)
    return Stored(stored.bits.reshape(shape), stored.dtype)


def with_settings(method: Method | None, call: Recorded) -> Function | None:
    """A method as a function: what its object has is that of the call."""
    return method and (lambda given: method(given, call.settings))


def with_outputs(words: dict[str, Any], outputs: list[Any]) -> dict[str, Any]:
    """The inputs of an operation, with recorded outputs among them."""
    return {name: value.of(outputs) if isinstance(value, Output) else value for name, value in words.items()}
