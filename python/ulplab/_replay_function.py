"""Recorded calls that a function of torch judges, a plain reference of the caller's."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Any

from . import _inputs
from ._calls import LAUNCH, Unknown
from ._dumps import Recorded
from ._files import Stored
from ._functions import name_of
from ._judged import Asked, Verdict
from ._tensors import array
from ._torch import tensor, torch


@dataclass(frozen=True)
class Reference:
    """A function for calls of a class or of a function that was recorded, and what kernels round."""

    function: Any
    rounds: str

    @property
    def name(self) -> str:
        return name_of(self.function)

    def verdicts(self, call: Recorded, accumulate: str | None) -> list[Verdict]:
        """The verdicts on a call's outputs. Unknown if the function does not take what was recorded."""
        args, named = self._arguments(call)
        function = self.function
        if isinstance(function, torch.nn.Module):
            weights = self._weights(named)

            def called(*args: Any, **named: Any) -> Any:
                return torch.func.functional_call(self.function, weights, args, named)

            called.__name__ = self.name
            function, takes = called, inspect.signature(self.function.forward)
        else:
            takes = inspect.signature(function)
        free = any(one.kind is one.VAR_KEYWORD for one in takes.parameters.values())
        # What says nothing about the numbers is left out.
        named = {name: x for name, x in named.items() if free or name in takes.parameters or x is not None and name not in LAUNCH}
        open_names = list(takes.parameters)[len(args) :]
        named = {name: call.settings[name] for name in open_names if name in call.settings} | named
        try:
            takes.bind(*args, **named)
        except TypeError as error:
            raise Unknown(f"{self.name} does not take what was recorded: {error}") from error

        asked = Asked(*_inputs.by_position(function, args, named), accumulate, self.rounds)
        return asked.verdicts({name: array(Stored.of(x), name) for name, x in self._outputs(call).items()})

    def _arguments(self, call: Recorded) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a call by position and by name, with its parameters."""

        def value(x: Any, name: str) -> Any:
            if isinstance(x, list):
                return [value(one, name) for one in x]
            if isinstance(x, dict) and x.keys() == {"dict"}:
                return {key: value(one, name) for key, one in x["dict"].items()}
            if isinstance(x, dict):
                raise Unknown(f"its argument '{name}' is {x.get('type', 'an object')}, which was not recorded")
            return tensor(Stored.of(x)) if hasattr(x, "shape") else x

        given = {name: value(x, name) for name, x in call.given.items()}
        places = sorted((int(name[4:]), name) for name in given if re.fullmatch(r"arg_\d+", name))
        return [given.pop(name) for _, name in places], given

    def _weights(self, named: dict[str, Any]) -> dict[str, Any]:
        """The recorded parameters of a module that is the reference, taken out of the arguments."""
        own = [name for name, _ in self.function.named_parameters()]
        missing = [name for name in own if name not in named]
        if missing:
            raise Unknown(f"its parameter '{missing[0]}' was not recorded")
        return {name: named.pop(name) for name in own}

    def _outputs(self, call: Recorded) -> dict[str, Any]:
        """The recorded outputs by the names that those of a function have."""
        outputs = call.outputs[0] if len(call.outputs) == 1 else list(call.outputs)
        if isinstance(outputs, dict) and outputs.keys() == {"dict"}:
            outputs = outputs["dict"]
        found = {name: x for name, x in _inputs.outputs(outputs).items() if x is not None}
        for name, x in found.items():
            if not hasattr(x, "shape"):
                raise Unknown(f"its output '{name}' is {x.get('type', 'an object') if isinstance(x, dict) else type(x).__name__}")
        return found
