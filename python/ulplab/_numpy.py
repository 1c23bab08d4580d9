"""Runs functions of numpy on tensors, and compares what they give with what numpy gives."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import itertools
import math
import sys
import threading
from typing import Any, Callable, Iterator

import numpy

from . import _array_functions, _arrays
from ._arrays import Array, has_array, stated, tensor, tensor_of
from ._shadows import Shadows
from ._torch import pytree, torch
from ._translated import Translated

# Libraries that are given numpy's own functions.
_LIBRARIES = {"numpy", "torch", "scipy", "ml_dtypes", "ulplab"}
_CONVERT = ("array", "asarray", "asanyarray", "ascontiguousarray")
_MAKE = (*_CONVERT, *"zeros ones empty full arange linspace logspace geomspace eye identity tri indices".split())
# Functions that take a list of arrays for an array.
_LISTED = "sum mean max min amax amin prod var std median any all exp sqrt".split()
_TYPES = "float16 float32 float64 int8 int16 int32 int64 uint8 bool_".split()
# Functions of `math`, by the names that numpy or scipy.special has for them.
_MATH = {name: name for name in "exp expm1 log log1p log2 log10 sqrt sin cos tan sinh cosh tanh fabs isnan isinf hypot erf erfc".split()}
_MATH |= {"lgamma": "gammaln", "pow": "power", "atan2": "arctan2", "asin": "arcsin", "acos": "arccos", "atan": "arctan"}
# Elements that numpy.vectorize may call a function for, one by one.
_ELEMENTS = 4096


class Followed(Translated):
    """A function of numpy that takes and gives tensors."""

    library = "numpy"

    def __init__(self, function: Callable[..., Any], args: Any, named: Any, shadows: Shadows, grads: dict[str, Any], grad_output: Any) -> None:
        super().__init__(function, shadows)
        self.grads, self.grad_output = grads, tensors(grad_output)
        self.args, self.named = pytree.tree_map(lambda x: tensor_of(x) if isinstance(x, numpy.ndarray) else x, (args, named))
        args, named = pytree.tree_map(lambda x: x.copy() if isinstance(x, numpy.ndarray) else x, (args, named))
        # What numpy gives. Errors of the function are the user's own, and its caches are filled with arrays of numpy.
        want = function(*args, **named)
        try:
            self.want = tensors(want)
        except TypeError as error:
            raise ValueError(f"not judged: what the function gives has no numbers to follow: {error}") from error

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map(lambda x: Array(x) if isinstance(x, torch.Tensor) else x, (args, kwargs))
        _arrays.RUNS.append(self.shadows)
        try:
            with _replaced(self.function):
                self.given = tensors(self.function(*args, **kwargs))
        except Exception as error:
            why = f"{type(error).__name__}: {error}{_place(error)}"
            raise ValueError(f"not judged: numpy's function runs, and its translation to torch fails: {why}") from error
        finally:
            _arrays.RUNS.pop()
        return self.given


def tensors(x: Any) -> Any:
    """What a function gives, with tensors for arrays and numbers."""

    def one(x: Any) -> Any:
        if type(x) is Array:
            return x.tensor
        return tensor_of(x) if isinstance(x, (numpy.ndarray, numpy.generic, bool, int, float)) else x

    return pytree.tree_map(one, x)


def _place(error: BaseException) -> str:
    """The user's line that an error comes from."""
    trace, found = error.__traceback__, ""
    while trace is not None:
        if _is_users(trace.tb_frame.f_globals.get("__name__", "")):
            found = f" ({trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno})"
        trace = trace.tb_next
    return found


# Functions in the place of numpy's, while a function runs.


def _own_call(name: str) -> bool:
    """True if the function itself calls, and not a library. Compiled code has no frame, and no name in the one that it is called from."""
    frame = sys._getframe(2)
    return _is_users(str(frame.f_globals.get("__name__", ""))) and name in ("", *frame.f_code.co_names)


def _is_users(module: str) -> bool:
    root = module.partition(".")[0]
    return root not in _LIBRARIES and root not in sys.stdlib_module_names


def _maker(name: str, attribute: str, original: Callable[..., Any], thread: int) -> Callable[..., Any]:
    """A function of numpy that makes an array, to be put in the place of an attribute, or of a name if ``attribute`` is empty."""

    def make(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread or not _own_call(attribute):
            return original(*args, **kwargs)
        if name in _CONVERT and has_array(args[:1]):
            return _converted(name, *args, **kwargs)
        if name == "full" and has_array(args[1:2]):
            return numpy.full_like(args[1], args[1], shape=args[0], dtype=args[2] if len(args) > 2 else kwargs.get("dtype"))
        args, kwargs = pytree.tree_map(lambda x: x.item() if type(x) is Array else x, (args, kwargs))
        made = original(*args, **kwargs)
        if not isinstance(made, numpy.ndarray) or made.dtype.kind in "OUSMm":
            return made
        return Array(stated(made))

    return make


def _converted(name: str, x: Any, dtype: Any = None, *, copy: Any = None, ndmin: int = 0, **_: Any) -> Array:
    """What numpy.array and its like give for arrays, and for lists of them."""
    found = tensor(x, dtype)
    if name == "array" and copy is not False and type(x) is Array and found is x.tensor:
        found = found.clone()
    return Array(found.reshape((1,) * (ndmin - found.ndim) + tuple(found.shape)) if ndmin > found.ndim else found)


def _listed(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        return original(Array(tensor(x)) if type(x) in (list, tuple) and has_array(x) else x, *args, **kwargs)

    return call


def _special(original: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        return (own if type(x) is Array else original)(x, *args, **kwargs)

    return call


def _mathematical(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        if not has_array(args):
            return original(*args)
        return _arrays.by_name(name, *args)

    return call


class _Type(type):
    """A type of numpy that converts an `Array`, too."""

    original: Any

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return Array(tensor(args[0], cls.original)) if has_array(args) else cls.original(*args, **kwargs)

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, cls.original)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(cls.original if isinstance(kind, _Type) else kind, cls.original)

    def __eq__(cls, other: Any) -> Any:
        return cls.original == (other.original if isinstance(other, _Type) else other)

    def __hash__(cls) -> int:
        return hash(cls.original)


def _vectorized(original: Callable[..., Any], names: dict[int, str]) -> Callable[..., Any]:
    """Calls of numpy.vectorize. ``names`` are the operations that functions of `math` are, by their identities."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not has_array(args) or kwargs or self.signature is not None:
            return original(self, *args, **kwargs)
        if id(self.pyfunc) in names:
            return _arrays.by_name(names[id(self.pyfunc)], *args)
        parts = numpy.broadcast_arrays(*(Array(tensor(x)) for x in args))
        if parts[0].size > _ELEMENTS:
            raise TypeError(f"numpy.vectorize of {parts[0].size:,} elements, expected at most {_ELEMENTS:,}")
        found = [self.pyfunc(*one) for one in zip(*(part.reshape(-1) for part in parts))]
        return Array(tensor(found)).reshape(parts[0].shape)

    return call


@contextlib.contextmanager
def _replaced(function: Callable[..., Any]) -> Iterator[None]:
    """Replaces functions of numpy, math and scipy.special that are not handed over, by all names that the user's modules have for them."""
    thread = threading.get_ident()
    new: list[tuple[Any, str, Any]] = [(numpy, name, _maker(name, name, getattr(numpy, name), thread)) for name in _MAKE]
    new += [(numpy, name, _listed(getattr(numpy, name))) for name in _LISTED]
    for name in _TYPES:
        own = getattr(numpy, name)
        new.append((numpy, name, _Type(name, (), {"original": own, "dtype": numpy.dtype(own)})))
    names = {id(getattr(math, name)): of for name, of in _MATH.items()}
    new += [(math, name, _mathematical(getattr(math, name), of)) for name, of in _MATH.items()]
    names |= {id(one): _MATH[name] for place, name, one in new if place is math}
    special = sys.modules.get("scipy.special")
    if special is not None:
        new += [(special, name, _special(getattr(special, name), own)) for name, own in _array_functions.SPECIAL.items()]
    by_identity = {id(getattr(place, name)): one for place, name, one in new}
    by_identity |= {id(getattr(numpy, name)): _maker(name, "", getattr(numpy, name), thread) for name in _MAKE}
    held = ((given, name, value) for given in _names(function) for name, value in list(given.items()))
    cells = ((cell, "cell_contents", cell.cell_contents) for cell in _cells(function))
    changes = [(place, name, by_identity[id(value)]) for place, name, value in itertools.chain(held, cells) if id(value) in by_identity]
    changes += [*new, (numpy.vectorize, "__call__", _vectorized(numpy.vectorize.__call__, names))]
    before = [(place, name, _get(place, name)) for place, name, _ in changes]
    originals = {id(one): _get(place, name) for place, name, one in changes}
    # Torch imports this with the first operation that is recorded.
    importlib.import_module("torch._dynamo")
    loaded = set(sys.modules)
    try:
        for change in changes:
            _set(*change)
        yield
    finally:
        for change in reversed(before):
            _set(*change)
        # Modules that were imported meanwhile may have the new ones by name.
        for module in [sys.modules[name] for name in set(sys.modules) - loaded]:
            names_of = getattr(module, "__dict__", {})
            names_of.update({name: originals[id(one)] for name, one in list(names_of.items()) if id(one) in originals})


def _get(place: Any, name: str) -> Any:
    return place[name] if isinstance(place, dict) else getattr(place, name)


def _set(place: Any, name: str, value: Any) -> None:
    if isinstance(place, dict):
        place[name] = value
    else:
        setattr(place, name, value)


def _names(function: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """The global names of the user's modules, and of the function, which may be in none."""
    found = {}
    for name, module in list(sys.modules.items()):
        if _is_users(name) and isinstance(getattr(module, "__dict__", None), dict):
            found[id(module.__dict__)] = module.__dict__
    own = getattr(inspect.unwrap(function), "__globals__", None)
    if own is not None:
        found[id(own)] = own
    yield from found.values()


def _cells(function: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """The names of closures that a function and those in its closures have."""
    seen = set() if seen is None else seen
    if id(function) in seen:
        return
    seen.add(id(function))
    for part in ("func", "__func__", "__wrapped__"):
        if callable(getattr(function, part, None)):
            yield from _cells(getattr(function, part), seen)
    for cell in getattr(function, "__closure__", None) or ():
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        yield cell
        if inspect.isfunction(value) or inspect.ismethod(value):
            yield from _cells(value, seen)
