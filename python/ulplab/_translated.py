"""Functions of other libraries than torch, which run as functions of torch."""

from __future__ import annotations

import importlib
from typing import Any, Callable

import numpy

from ._shadows import Shadows
from ._tensors import is_jax
from ._torch import pytree, torch
from ._values import LAMBDA


class Translated:
    """A function of another library that takes and gives tensors: `args` and `named` in the place of its inputs."""

    #: The library, in messages.
    library = ""

    def __init__(self, function: Callable[..., Any], shadows: Shadows) -> None:
        self.function = function
        self.shadows = shadows
        self.args: tuple[Any, ...] = ()
        self.named: dict[str, Any] = {}
        #: The gradients that torch derives, and that of what the function gives.
        self.grads: dict[str, Any] = {}
        self.grad_output: Any = None
        #: What the library itself gives, as tensors.
        self.want: Any = None
        #: What the translation gives.
        self.given: Any = None

    @property
    def __name__(self) -> str:
        return str(getattr(self.function, "__name__", "") or type(self.function).__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def keep(self) -> None:
        """Keeps the results, which may be memory that is put back to what it was."""
        self.given = pytree.tree_map(lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x, self.given)

    def check(self, found: dict[str, Any], named: Callable[[Any], dict[str, Any]]) -> None:
        """Notes results that are not those of the library itself: then no result is judged.

        Both are in the types that the function has. They may differ by eight deviations of right kernels that compute in the coarsest of
        these types, and by a spacing.
        """
        given, wanted = named(self.given), named(self.want)
        for name, bound in found.items():
            if isinstance(wanted.get(name), torch.Tensor):
                why = self._differs(wanted[name], given[name].detach(), bound)
                bound.unknown += [f"{name}: {self.library}'s function gives {why}"] if why else []

    def _differs(self, want: Any, got: Any, bound: Any) -> str:
        kinds = [f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" for x in (want, got)]
        if kinds[0] != kinds[1]:
            return f"{kinds[0]}, and its translation {kinds[1]}"
        exact = not want.is_floating_point()
        scale = 0.0 if exact else max(self.shadows.coarsest / self.shadows.tape.u, 1.0)
        spacing = 0.0 if exact else 2 * torch.finfo(want.dtype).eps
        a, b = want.double().numpy(), got.double().numpy()
        with numpy.errstate(invalid="ignore", over="ignore"):
            near = numpy.abs(a - b) <= LAMBDA * scale * bound.sigma + spacing * numpy.abs(a)
        near |= (a == b) | (numpy.isnan(a) & numpy.isnan(b)) | bound.undetermined
        if near.all():
            return ""
        at = numpy.unravel_index(int(numpy.argmin(near)), near.shape)
        return f"{a[at]:.9g} at {[int(i) for i in at]}, and its translation {b[at]:.9g}"


def translated(
    function: Callable[..., Any], args: Any, named: Any, shadows: Shadows, grads: dict[str, Any], grad_output: Any
) -> Translated | None:
    """The function of tensors that a function of numpy or jax is; None for one of torch. Inputs say of which library a function is."""
    leaves = pytree.tree_leaves((args, named))
    of = {"jax": any(map(is_jax, leaves)), "numpy": any(isinstance(x, numpy.ndarray) for x in leaves)}
    found = next((library for library, is_in in of.items() if is_in), None)
    if found is None:
        return None
    if any(isinstance(x, torch.Tensor) for x in leaves):
        raise TypeError(f"inputs: some are arrays of {found}, and some are tensors of torch; expected one kind, which the function takes")
    module = importlib.import_module(f"{__package__}._{found}")
    made: Translated = module.Followed(function, args, named, shadows, grads, grad_output)
    return made
