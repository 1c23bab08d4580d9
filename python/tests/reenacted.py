"""Kernels with known faults, and plain references for them."""

import dataclasses
from typing import Any, Callable

import numpy as np
import pytest
import torch
import ulplab
from functions import changed
from ulplab import _functions, _judged

# Elements of an output whose bounds are compared with the effect of a fault.
_SOME = 8


@dataclasses.dataclass
class Case:
    """A reference, and a kernel that takes the name of a fault first; an empty name is a right kernel."""

    name: str
    op: Callable[..., Any]
    kernel: Callable[..., Any]
    #: What draws each input; the last one draws the gradient of the output, if gradients are judged.
    draws: tuple[Callable[..., Any], ...]
    #: Names of faults, and what a message says of each.
    faults: dict[str, str]
    #: Gradients that the kernel gives, by the input's number.
    grads: dict[str, int] | None = None
    types: tuple[Any, ...] = (torch.float32, torch.bfloat16)
    #: Faults whose effect in bf16 is less than four times the bound.
    little: tuple[str, ...] = ()


def table() -> tuple[dict[str, Case], Callable[..., Any]]:
    """An empty table of cases, and what adds one."""
    cases: dict[str, Case] = {}

    def case(
        name: str,
        *draws: Any,
        faults: str = "bug",
        cause: str = "outside the bound",
        grads: str = "",
        types: Any = Case.types,
        little: str = "",
    ) -> Any:
        """Adds what a function returns: a reference and a kernel.

        ``faults`` names the kernel's faults, ``cause`` is what a message says of them, ``grads`` names the gradients of the first inputs
        (`-` leaves one out), and ``little`` the faults whose effect in bf16 is small.
        """
        names = dict.fromkeys(faults.split(), cause)
        wanted = {one: at for at, one in enumerate(grads.split()) if one != "-"}

        def keep(make: Any) -> Any:
            assert name not in cases
            cases[name] = Case(name, *make(), draws, names, wanted or None, types, tuple(little.split()))
            return make

        return keep

    return cases, case


def drawn(case: Case, dtype: Any = torch.float32, seed: int = 0) -> list[Any]:
    rng = torch.Generator().manual_seed(seed)
    return [changed(draw(rng), dtype) for draw in case.draws]


def given(case: Case, fault: str, inputs: list[Any], inside: Any = torch.float32) -> dict[str, Any]:
    """Outputs of the kernel that computes in the type ``inside``, before they are stored."""
    found = case.kernel(fault, *[changed(x, inside) for x in inputs])
    return found if isinstance(found, dict) else {"out": found}


def split(case: Case, inputs: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs of the reference, and the words that ask for gradients."""
    if case.grads is None:
        return tuple(inputs), {}
    return tuple(inputs[:-1]), {"grads": case.grads, "grad_output": inputs[-1]}


def judge(case: Case, fault: str, inputs: list[Any]) -> None:
    """Asks ulplab about a kernel in f32."""
    asked, words = split(case, inputs)
    ulplab.assert_close(given(case, fault, inputs), op=case.op, inputs=asked, **words)


class Bounds:
    """Bounds of a case's outputs, and what they say about its kernel, which computes in f32 and stores in a type."""

    def __init__(self, case: Case, dtype: Any, seed: int = 0) -> None:
        self.case, self.dtype, self.inputs = case, dtype, drawn(case, dtype, seed)
        self.name = str(dtype).removeprefix("torch.")
        asked, words = split(case, self.inputs)
        self.bounds = _functions.bounds_of(case.op, asked, "f32", **words)
        assert not any(bound.unknown for bound in self.bounds.values()), self.bounds

    def refused(self, fault: str) -> bool:
        """True if an output is outside."""
        outside = False
        for name, x in given(self.case, fault, self.inputs).items():
            found = _judged.Found(changed(x, self.dtype).double().numpy(), self.bounds[name], self.name)
            found.settle()
            outside |= bool(found.compared()["outside"])
            assert outside or not (found.why or found.undetermined.any()), (name, found.why)
        return outside

    def effect(self, fault: str) -> float:
        """The largest effect of a fault in f64, in multiples of the bound of a right kernel."""
        largest = 0.0
        for name, got in given(self.case, fault, self.inputs, torch.float64).items():
            bound = self.bounds[name]
            off = np.abs(got.double().numpy() - bound.value).reshape(-1)
            # The elements where the fault moves most, by itself and by the deviations of right kernels.
            with np.errstate(all="ignore"):
                share = np.nan_to_num(off / bound.sigma.reshape(-1))
            for at in {*np.argsort(-off)[:_SOME].tolist(), *np.argsort(-share)[:_SOME].tolist()}:
                own = np.array([bound.of(at).bound])
                allowed = _functions.stored_bound(bound.value.reshape(-1)[at : at + 1], own, self.name)[0]
                largest = max(largest, float(off[at] / allowed))
        return largest


def gradients(function: Callable[..., Any], inputs: tuple[Any, ...], dy: Any, names: str) -> dict[str, Any]:
    """The gradients of a function by torch.autograd, by names for the first inputs; `-` leaves one out."""
    wanted = {one: at for at, one in enumerate(names.split()) if one != "-"}
    marked = [x.detach().clone().requires_grad_() if at in wanted.values() else x for at, x in enumerate(inputs)]
    found = torch.autograd.grad(function(*marked), [marked[at] for at in wanted.values()], dy, allow_unused=True)
    return {name: torch.zeros_like(marked[at]) if one is None else one for (name, at), one in zip(wanted.items(), found)}


def tell_apart(case: Case) -> None:
    """Asserts that the right kernel of a case passes in all its types, and that its bug is refused in all."""
    inputs = drawn(case)
    judge(case, "", inputs)
    with pytest.raises(AssertionError, match=case.faults["bug"]):
        judge(case, "bug", inputs)
    for dtype in case.types[1:]:
        bounds = Bounds(case, dtype)
        assert not bounds.refused("") and bounds.refused("bug")
