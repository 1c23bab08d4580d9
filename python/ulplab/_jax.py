"""Runs functions of jax on tensors: their jaxpr, an operation of torch for each primitive, and what jax gives next to it."""

from __future__ import annotations

import importlib
import itertools
import os
from typing import Any, Callable

import numpy

from . import _inputs, _jax_primitives
from ._arrays import array_of, tensor_of
from ._derivatives import check_grad_output, floating, of_jax, wanted_inputs
from ._shadows import Shadows
from ._torch import torch
from ._translated import Translated
from ._values import Unknown, place

jax: Any = importlib.import_module("jax")
_lines: Any = importlib.import_module("jax._src.source_info_util")
Literal: Any = importlib.import_module("jax.extend.core").Literal

_HERE = os.path.dirname(os.path.abspath(__file__))
# Primitives that only call another jaxpr.
_CALLS = ("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint", "custom_jvp_call", "custom_vjp_call")


class Followed(Translated):
    """A function of jax that takes and gives tensors. With ``grads``, it gives these gradients of the function, too, by their names."""

    library = "jax"

    def __init__(self, function: Callable[..., Any], args: Any, named: Any, shadows: Shadows, grads: dict[str, Any], grad_output: Any) -> None:
        super().__init__(function, shadows)
        inputs: dict[Any, Any] = dict(enumerate(args)) | named

        def whole(every: dict[Any, Any]) -> Any:
            if not grads:
                return _inputs.called(function, every, [])
            out, pull = of_jax(function, every, wanted_inputs(grads, every))
            outputs = [x for x in jax.tree.leaves(out) if floating(x)]
            check_grad_output(None if grad_output is None else jax.tree.leaves(grad_output), outputs)
            found = pull([jax.numpy.ones_like(x) for x in outputs] if grad_output is None else jax.tree.leaves(grad_output))
            return _inputs.outputs(out) | {name: found[at] for name, at in grads.items()}

        leaves, tree = jax.tree.flatten(inputs)
        arrays = [at for at, x in enumerate(leaves) if isinstance(x, (jax.Array, numpy.ndarray))]

        def of_arrays(*given: Any) -> Any:
            every = dict(enumerate(leaves)) | dict(zip(arrays, given))
            return whole(jax.tree.unflatten(tree, every.values()))

        given = [leaves[at] for at in arrays]
        # By default, GPUs multiply in TF32; a CPU refuses a wider type for f16.
        with jax.default_matmul_precision(None if jax.default_backend() == "cpu" else "highest"):
            self._jaxpr, shapes = jax.make_jaxpr(of_arrays, return_shape=True)(*given)
            want = jax.core.eval_jaxpr(self._jaxpr.jaxpr, self._jaxpr.consts, *given)
        self._tree = jax.tree.structure(shapes)
        self.want = self._outputs(want)
        self._given = list(map(jax.numpy.asarray, given))
        self._floating = [at for at, x in enumerate(self._given) if _inexact(x)]
        self.args = tuple(tensor_of(self._given[at]) for at in self._floating)

    def _outputs(self, leaves: list[Any]) -> Any:
        """What the function gives, with tensors for arrays."""
        return jax.tree.unflatten(self._tree, [x if isinstance(x, torch.Tensor) else tensor_of(x) for x in leaves])

    def __call__(self, *args: Any, **_: Any) -> Any:
        every = dict(enumerate(self._given)) | dict(zip(self._floating, args))
        try:
            self.given = self._outputs(self._run(self._jaxpr, list(every.values())))
        finally:
            self.shadows.at = ""
        return self.given

    # Values are tensors. Keys and numbers without a sign, and what follows from whole numbers alone otherwise, are arrays of jax.

    def _run(self, closed: Any, given: list[Any]) -> list[Any]:
        """What a jaxpr gives."""
        jaxpr = getattr(closed, "jaxpr", closed)
        known: dict[Any, Any] = dict(zip(itertools.chain(jaxpr.constvars, jaxpr.invars), [*getattr(closed, "consts", ()), *given]))
        for equation in jaxpr.eqns:
            read = [_number(x) if isinstance(x, Literal) else known[x] for x in equation.invars]
            known.update(zip(equation.outvars, self._applied(equation, read)))
        return [_constant(x) if isinstance(x, Literal) else known[x] for x in jaxpr.outvars]

    def _applied(self, equation: Any, given: list[Any]) -> Any:
        """What a primitive gives."""
        name, params = equation.primitive.name, equation.params
        if name in _CALLS:
            return self._run(params["jaxpr"] if "jaxpr" in params else params["call_jaxpr"], _constants(equation, given))
        if name in ("while", "scan", "cond"):
            return getattr(self, f"_{name}")(params, _constants(equation, given))
        self.shadows.at = _line(equation)
        call = _jax_primitives.find(name)
        kinds = [x.aval for x in (*equation.invars, *equation.outvars)]
        if (call is None or not all(_is_torchs(kind.dtype) for kind in kinds)) and all(map(self._whole, given, equation.invars)):
            return _own(equation, given)
        why = "ulplab does not know this primitive"
        if call is not None:
            try:
                found = call(params, *_operands(equation, given))
                return found if isinstance(found, (tuple, list)) else [found]
            except Exception as error:  # noqa: BLE001 -- torch may raise what it likes
                why = f"not followed as it is called: {type(error).__name__}: {error}".splitlines()[0]
        self.shadows.note(f"{place(f'jax.{name}', self.shadows.at)}: {why}")
        return [tensor_of(x) for x in _own(equation, given)]

    def _whole(self, x: Any, of: Any) -> bool:
        """True for whole numbers, and keys, that do not hang on the errors of others."""
        if _inexact(of.aval) or not isinstance(x, torch.Tensor):
            return not _inexact(of.aval)
        try:
            return self.shadows.of(x).exact
        except Unknown:
            return False

    def _while(self, params: dict[str, Any], given: list[Any]) -> list[Any]:
        asked, moved = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        carry = given[moved:]
        while bool(self._run(params["cond_jaxpr"], [*given[:asked], *carry])[0]):
            carry = self._run(params["body_jaxpr"], [*given[asked:moved], *carry])
        return carry

    def _scan(self, params: dict[str, Any], given: list[Any]) -> list[Any]:
        first, after = params["num_consts"], params["num_consts"] + params["num_carry"]
        constants, carry, rows = given[:first], given[first:after], given[after:]
        places = range(params["length"])
        made = []
        for at in reversed(places) if params["reverse"] else places:
            found = self._run(params["jaxpr"], [*constants, *carry, *(x[at] for x in rows)])
            carry = found[: params["num_carry"]]
            made.append(found[params["num_carry"] :])
        if not made:
            empty = [x.aval for x in params["jaxpr"].jaxpr.outvars[params["num_carry"] :]]
            return [*carry, *(jax.numpy.zeros((0, *x.shape), x.dtype) for x in empty)]
        stacked = [_stacked(list(column)) for column in zip(*(made[::-1] if params["reverse"] else made))]
        return [*carry, *stacked]

    def _cond(self, params: dict[str, Any], given: list[Any]) -> list[Any]:
        return self._run(params["branches"][int(given[0])], given[1:])


def _inexact(x: Any) -> bool:
    """True for an array, or the kind of one, of real or complex numbers."""
    return bool(jax.numpy.issubdtype(x.dtype, jax.numpy.inexact))


def _is_torchs(dtype: Any) -> bool:
    """True for a type whose numbers torch computes with: not keys of random numbers, and no wide number without a sign."""
    return str(dtype) not in ("uint16", "uint32", "uint64") and hasattr(torch, str(dtype))


def _number(literal: Any) -> Any:
    """A number that the function states. Of a type that rounds it, the shortest one that is rounded to it."""
    x = numpy.asarray(literal.val)
    if x.ndim or x.dtype.kind in "biuc":
        return x.item() if x.ndim == 0 else x
    return float(str(x)) if numpy.isfinite(x.astype(float)) and x.dtype != float else float(x)


def _constant(literal: Any) -> Any:
    return jax.numpy.asarray(literal.val, literal.aval.dtype)


def _constants(equation: Any, given: list[Any]) -> list[Any]:
    """The operands, with arrays for numbers."""
    return [_constant(x) if isinstance(x, Literal) else one for x, one in zip(equation.invars, given)]


def _operands(equation: Any, given: list[Any]) -> list[Any]:
    """The operands as torch takes them: tensors, and numbers where another operand is a tensor that has their type."""
    tensors = [x if isinstance(x, (torch.Tensor, bool, int, float, complex)) else tensor_of(x) for x in given]
    if equation.primitive.name in _jax_primitives.NUMBERS and any(isinstance(x, torch.Tensor) for x in tensors):
        return tensors
    return [x if isinstance(x, torch.Tensor) else tensor_of(_constant(of)) for x, of in zip(tensors, equation.invars)]


def _own(equation: Any, given: list[Any]) -> list[Any]:
    """What jax itself gives."""
    arrays = [jax.numpy.asarray(array_of(x)) if isinstance(x, torch.Tensor) else x for x in _constants(equation, given)]
    params = equation.primitive.get_bind_params(equation.params)
    # Before jax 0.9, functions come apart.
    functions, params = params if isinstance(params, tuple) else ((), params)
    found = equation.primitive.bind(*functions, *arrays, **params)
    return found if equation.primitive.multiple_results else [found]


def _stacked(rows: list[Any]) -> Any:
    if any(isinstance(x, torch.Tensor) for x in rows):
        return torch.stack([x if isinstance(x, torch.Tensor) else tensor_of(x) for x in rows])
    return jax.numpy.stack(rows)


def _line(equation: Any) -> str:
    """The user's line that calls a primitive."""
    for frame in _lines.user_frames(equation.source_info.traceback):
        if not frame.file_name.startswith(_HERE):
            return f"{os.path.basename(frame.file_name)}:{frame.start_line}"
    return ""
