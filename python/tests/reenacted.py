"""Kernels with known faults, and plain references for them."""

import dataclasses
from typing import Any, Callable

import numpy as np
import torch
import ulplab
from functions import changed
from ulplab import _functions

_U = 2.0**-24
# Elements of an output whose bounds are compared with the effect of a fault.
_SOME = 24


@dataclasses.dataclass
class Case:
    """A reference, and a kernel that takes the name of a fault first; an empty name is a right kernel."""

    name: str
    op: Callable[..., Any]
    kernel: Callable[..., Any]
    #: What draws each input; the last one draws the gradient of the output, if gradients are judged.
    draws: tuple[Callable[..., Any], ...]
    #: Names of faults, and what a message says of their cause, if it does.
    faults: dict[str, str]
    #: Gradients that the kernel gives, by the input's number.
    grads: dict[str, int] | None = None
    types: tuple[Any, ...] = (torch.float32, torch.bfloat16)


def table() -> tuple[dict[str, Case], Callable[..., Any]]:
    """An empty table of cases, and what adds one."""
    cases: dict[str, Case] = {}

    def case(name: str, *draws: Any, faults: Any = "outside the bound", grads: str = "", types: Any = Case.types) -> Any:
        """Adds what a function returns: a reference and a kernel. ``grads`` names gradients of the first inputs; `-` leaves one out."""
        names = faults if isinstance(faults, dict) else {"bug": faults}
        wanted = {one: at for at, one in enumerate(grads.split()) if one != "-"}

        def keep(make: Any) -> Any:
            assert name not in cases
            cases[name] = Case(name, *make(), draws, names, wanted or None, types)
            return make

        return keep

    return cases, case


def drawn(case: Case, dtype: Any = torch.float32, seed: int = 0) -> list[Any]:
    rng = torch.Generator().manual_seed(seed)
    return [changed(draw(rng), dtype) for draw in case.draws]


def given(case: Case, fault: str, inputs: list[Any], inside: Any = torch.float32) -> dict[str, Any]:
    """What the kernel gives that computes in the type ``inside``, before the outputs are stored."""
    found = case.kernel(fault, *[changed(x, inside) for x in inputs])
    return found if isinstance(found, dict) else {"out": found}


def split(case: Case, inputs: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs of the reference, and the words that ask for gradients."""
    if case.grads is None:
        return tuple(inputs), {}
    return tuple(inputs[:-1]), {"grads": case.grads, "grad_output": inputs[-1]}


def judge(case: Case, fault: str, inputs: list[Any], dtype: Any = torch.float32) -> None:
    """Asks ulplab about a kernel that computes in f32 and stores its outputs in a type."""
    got = {name: changed(x, dtype) for name, x in given(case, fault, inputs).items()}
    asked, words = split(case, inputs)
    ulplab.assert_close(got, op=case.op, inputs=asked, dtype=None if dtype == torch.float32 else "any", **words)


def effect(case: Case, fault: str, inputs: list[Any], dtype: Any = torch.float32) -> float:
    """The largest effect of a fault in f64, in multiples of the bound of a right kernel."""
    asked, words = split(case, inputs)
    bounds = _functions.bounds_of(case.op, asked, _U, **words)
    largest = 0.0
    for name, got in given(case, fault, inputs, torch.float64).items():
        bound = bounds[name]
        off = np.abs(got.double().numpy() - bound.value).reshape(-1)
        # The elements where the fault moves most, by the deviations of right kernels and by itself.
        with np.errstate(all="ignore"):
            order = np.concatenate([np.argsort(-off)[:_SOME], np.argsort(-np.nan_to_num(off / bound.sigma.reshape(-1)))[:_SOME]])
        for at in map(int, np.unique(order)):
            if off[at] == 0:
                continue
            own = np.array([bound.of(at).bound])
            allowed = _functions.stored_bound(bound.value.reshape(-1)[at : at + 1], own, str(dtype).removeprefix("torch."))[0]
            largest = max(largest, float(off[at] / allowed) if allowed else float("inf"))
    return largest


def gradients(function: Callable[..., Any], inputs: tuple[Any, ...], dy: Any, names: str) -> dict[str, Any]:
    """The gradients of a function by torch.autograd, by names for the first inputs; `-` leaves one out."""
    wanted = {one: at for at, one in enumerate(names.split()) if one != "-"}
    marked = [x.detach().clone().requires_grad_() if at in wanted.values() else x for at, x in enumerate(inputs)]
    found = torch.autograd.grad(function(*marked), [marked[at] for at in wanted.values()], dy, allow_unused=True)
    return {name: torch.zeros_like(marked[at]) if one is None else one for (name, at), one in zip(wanted.items(), found)}
