"""Arrays that hold tensors of torch, and that functions of numpy take: numpy hands their calls over (NEP 13 and 18)."""

from __future__ import annotations

import functools
import importlib
import operator
from typing import Any, Callable, Iterator

import numpy
from numpy.lib.mixins import NDArrayOperatorsMixin

from ._shadows import Shadows
from ._storages import line
from ._torch import Tensor, modes_off, pytree, torch
from ._values import place

# Torch's own functions by numpy's names. They are private, and take no number types but their own.
TNP: Any = importlib.import_module("torch._numpy")
# The recorders of the functions that run, the innermost last.
RUNS: list[Shadows] = []
NUMBERS = (bool, int, float)
# Methods that are functions of the same name.
_METHODS = set(
    "all any argmax argmin argsort clip cumprod cumsum diagonal dot max mean min nonzero prod ptp repeat round searchsorted squeeze std "
    "sum swapaxes take trace var".split()
)


def note(name: str, why: str) -> None:
    """Notes what the run does that is not followed: then no result is judged."""
    RUNS[-1].note(f"{place(name, line())}: {why}")


# Types and conversions.


def torch_type(dtype: Any) -> Any:
    """The type of torch that has the numbers of a type of numpy. TypeError if there is none."""
    name = numpy.dtype(dtype).name
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"torch has no type {name}")
    return found


def tensor_of(x: Any) -> Tensor:
    """A tensor with a copy of the elements of an array."""
    x = numpy.array(x)
    x = x.astype(x.dtype.newbyteorder("="), copy=False)
    wanted = torch_type(x.dtype)
    if x.dtype.kind in "fiubc":
        return torch.from_numpy(x)
    # Types of ml_dtypes, by their bits.
    return torch.from_numpy(x.reshape(-1).view(f"i{x.dtype.itemsize}").reshape(x.shape)).view(wanted)


def array_of(x: Tensor) -> Any:
    """An array with a copy of the elements of a tensor, as they are in the type that the function gives them."""
    with torch._C.DisableTorchFunction(), modes_off():
        x = x.detach().cpu()
        name = str(x.dtype).removeprefix("torch.")
        if name.startswith(("bfloat16", "float8")):
            bits = x.contiguous().view(torch.int16 if x.element_size() == 2 else torch.int8)
            return bits.clone().numpy().view(numpy.dtype(name))
        return x.clone().numpy()


def stated(x: Any, dtype: Any = None) -> Tensor:
    """A number or a table that the function states: kernels have it rounded to the type that they compute in."""
    x = numpy.asarray(x)
    with modes_off(), torch.inference_mode(False):
        found = tensor_of(x if dtype is None else x.astype(dtype))
        if found.is_floating_point():
            RUNS[-1].state(found, tensor_of(x.astype(numpy.float64)))
    return found


def has_array(x: Any) -> bool:
    """True if there is an `Array` in a list or a tuple."""
    return type(x) is Array or isinstance(x, (list, tuple)) and any(map(has_array, x))


def tensor(x: Any, dtype: Any = None) -> Tensor:
    """The tensor of an array, or of what numpy would make one of: numbers, and lists of arrays."""
    if type(x) is not Array and has_array(x):
        dtype = common(*pytree.tree_leaves(x)) if dtype is None else dtype
        return torch.stack([tensor(one, dtype) for one in x])
    if type(x) is not Array:
        return stated(x, dtype)
    wanted = x.tensor.dtype if dtype is None else torch_type(dtype)
    return x.tensor if wanted == x.tensor.dtype else x.tensor.to(wanted)


def common(*given: Any) -> numpy.dtype:
    """The type that numpy makes of several arrays, and of numbers as arrays."""
    return numpy.result_type(*(x.dtype if hasattr(x, "dtype") else numpy.asarray(x).dtype for x in given))


# Operations on every element.


@functools.lru_cache(maxsize=None)
def _types(ufunc: Any, kinds: tuple[Any, ...]) -> tuple[Any, Any]:
    """The type that operands are converted to, and that of the result, as numpy has them."""
    shape = (1, 1) if ufunc.signature else (1,)
    given = [one(1) if isinstance(one, type) else numpy.ones(shape, one) for one in kinds]
    with numpy.errstate(all="ignore"):
        found = ufunc(*given)
    result = (found[0] if isinstance(found, tuple) else found).dtype
    return (numpy.result_type(*given) if result == bool else result), result


def _kind(x: Any) -> Any:
    return type(x) if type(x) in NUMBERS else x.dtype


def _with_tensors(call: Callable[..., Any]) -> Callable[..., Any]:
    """A call that takes tensors in the place of numbers."""

    def of(*given: Any) -> Any:
        dtype = next(x.dtype for x in given if isinstance(x, torch.Tensor))
        named = str(dtype).removeprefix("torch.")
        return call(*[x if isinstance(x, torch.Tensor) else stated(x, named) for x in given])

    return of


def bounded(call: Callable[..., Any], side: str) -> Callable[..., Any]:
    """The larger or the smaller of two, either of which may be a number."""

    def of(a: Any, b: Any) -> Any:
        x, y = (a, b) if isinstance(a, torch.Tensor) else (b, a)
        return call(x, y) if isinstance(y, torch.Tensor) else torch.clamp(x, **{side: y})

    return of


def _named(found: Any, names: str) -> dict[str, Callable[..., Any]]:
    """Functions of a module by names of numpy; `name=other` where the module has another one."""
    pairs = (one.partition("=") for one in names.split())
    return {name: getattr(found, other or name) for name, _, other in pairs}


# Operations on every element by the names of numpy and scipy.special. Python's own keep numbers as they are stated.
_OPERATIONS: dict[str, Callable[..., Any]] = {
    **_named(operator, "add subtract=sub multiply=mul divide=truediv floor_divide=floordiv power=pow float_power=pow remainder=mod"),
    **_named(operator, "less=lt less_equal=le greater=gt greater_equal=ge equal=eq not_equal=ne left_shift=lshift right_shift=rshift"),
    **_named(operator, "bitwise_and=and_ bitwise_or=or_ bitwise_xor=xor"),
    **_named(torch, "exp exp2 expm1 log log2 log10 log1p sqrt square reciprocal sin cos tan sinh cosh tanh arcsin arccos arctan"),
    **_named(torch, "arcsinh arccosh arctanh sign floor ceil trunc rint=round negative positive=clone absolute=abs fabs=abs"),
    **_named(torch, "isnan isinf isfinite logical_not signbit invert=bitwise_not matmul deg2rad rad2deg radians=deg2rad degrees=rad2deg"),
    **_named(torch, "erf erfc erfinv logit expit=sigmoid gammaln=lgamma psi=digamma"),
    **{"ndtr": torch.special.ndtr, "log_expit": torch.nn.functional.logsigmoid},
    **{"maximum": bounded(torch.maximum, "min"), "minimum": bounded(torch.minimum, "max")},
}
_PAIRS = "fmax fmin fmod hypot arctan2 logaddexp logaddexp2 copysign heaviside logical_and logical_or logical_xor xlogy"
_OPERATIONS |= {name: _with_tensors(call) for name, call in _named(torch, _PAIRS).items()}

# The functions that reductions and runs by operations are.
_BY = {
    "reduce": {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min", "logical_and": "all", "logical_or": "any"},
    "accumulate": {"add": "cumsum", "multiply": "cumprod"},
}


def _elementwise(ufunc: Any, inputs: Any, dtype: Any = None) -> Any:
    if ufunc.__name__ == "divmod":
        return _elementwise(numpy.floor_divide, inputs), _elementwise(numpy.remainder, inputs)
    call = _OPERATIONS[ufunc.__name__]
    inputs = [x if type(x) in NUMBERS or hasattr(x, "dtype") else Array(tensor(x)) for x in inputs]
    wide, result = _types(ufunc, tuple(map(_kind, inputs)))
    wide, result = (wide, result) if dtype is None else (dtype, dtype)

    def operand(x: Any) -> Any:
        if type(x) is Array or numpy.ndim(x):
            return tensor(x, wide)
        return x if type(x) in NUMBERS else x.item()

    found = call(*map(operand, inputs))
    return Array(found if found.dtype == torch_type(result) else found.to(torch_type(result)))


def _followed(name: str, call: Callable[..., Any] | None, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The result of a translation. If there is none, that of numpy for the numbers as they are: then no result is judged."""
    why = "a function that is not followed"
    if call is not None:
        try:
            return call(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 -- torch may raise what it likes
            why = f"not followed as it is called: {type(error).__name__}: {error}".splitlines()[0]
    note(name, why)
    args, kwargs = pytree.tree_map(lambda x: array_of(x.tensor) if type(x) is Array else x, (args, kwargs))
    return original(*args, **kwargs)


# Arrays.

#: Translations of functions that torch has not by numpy's name, or has otherwise: see `_array_functions`.
FUNCTIONS: dict[str, Callable[..., Any]] = {}


class Array(NDArrayOperatorsMixin):
    """A tensor that behaves as an array of numpy. Of no dimensions, it behaves as a scalar: nothing writes to it."""

    __slots__ = ("tensor",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    # What `isinstance` asks for.
    __class__ = property(lambda self: numpy.ndarray)
    shape = property(lambda self: tuple(self.tensor.shape))
    ndim = property(lambda self: self.tensor.ndim)
    size = property(lambda self: self.tensor.numel())
    itemsize = property(lambda self: self.tensor.element_size())
    nbytes = property(lambda self: self.size * self.itemsize)
    dtype = property(lambda self: numpy.dtype(str(self.tensor.dtype).removeprefix("torch.")))
    T = property(lambda self: self.transpose())
    real = property(lambda self: self)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **words: Any) -> Any:
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        call = functools.partial(_called, ufunc, method) if ufunc.__name__ in (*_OPERATIONS, "divmod") else None
        return _followed(f"numpy.{name}", call, getattr(ufunc, method), inputs, words)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        module = (func.__module__ or "numpy").partition(".")[2]
        name = f"{module}.{func.__name__}".lstrip(".")
        call = FUNCTIONS.get(name)
        if call is None:
            theirs = getattr(getattr(TNP, module, None) if module else TNP, func.__name__, None)
            call = None if theirs is None else functools.partial(of_torch, theirs)
        return _followed(f"numpy.{name}", call, func, args, kwargs)

    def __array__(self, dtype: Any = None, copy: Any = None) -> numpy.ndarray:
        note("numpy", "an array leaves the functions of numpy that are followed")
        return numpy.asarray(array_of(self.tensor), dtype)

    def __getattr__(self, name: str) -> Any:
        if name in _METHODS:
            return functools.partial(getattr(numpy, name), self)
        raise AttributeError(f"ndarray.{name} is not followed")

    # Elements.

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of unsized object")
        return int(self.tensor.shape[0])

    def __iter__(self) -> Iterator[Any]:
        return (self[at] for at in range(len(self)))

    def __contains__(self, x: Any) -> bool:
        return bool((self == x).any())

    def __getitem__(self, index: Any) -> Any:
        x, index = _turned(self.tensor, index)
        found: Tensor = TNP.ndarray(x)[index].tensor
        # A single element is a copy.
        return Array(found.clone() if found.ndim == 0 and Ellipsis not in (index if isinstance(index, tuple) else (index,)) else found)

    def __setitem__(self, index: Any, value: Any) -> None:
        x, index = _turned(self.tensor, index)
        if x is not self.tensor:
            raise TypeError("a slice with a negative step is written to, which is not followed")
        value = tensor(value, self.dtype)
        while value.ndim > self.ndim and value.shape[0] == 1:
            value = value[0]
        TNP.ndarray(x)[index] = TNP.ndarray(value)

    def __bool__(self) -> bool:
        return bool(self.tensor)

    def __int__(self) -> int:
        return int(self.tensor)

    def __float__(self) -> float:
        return float(self.item())

    def __index__(self) -> int:
        return operator.index(self.tensor.item())

    def __repr__(self) -> str:
        return repr(array_of(self.tensor))

    # Methods that differ from numpy's functions.

    def item(self, *at: Any) -> Any:
        if self.tensor.is_floating_point():
            note("ndarray.item", "a number of Python, whose errors are not followed")
        return (self.reshape(-1)[at[0]] if len(at) == 1 and self.ndim != 1 else self[at] if at else self).tensor.item()

    def tolist(self) -> Any:
        note("ndarray.tolist", "an array leaves the functions of numpy that are followed")
        return array_of(self.tensor).tolist()

    def astype(self, dtype: Any, *_: Any, copy: bool = True, **__: Any) -> Any:
        return Array(self.tensor.to(torch_type(dtype), copy=copy))

    def copy(self, *_: Any, **__: Any) -> Any:
        return Array(self.tensor.clone(memory_format=torch.contiguous_format))

    def flatten(self, *_: Any) -> Any:
        return Array(self.tensor.reshape(-1).clone())

    def ravel(self, *_: Any) -> Any:
        return self.reshape(-1)

    def reshape(self, *shape: Any, order: str = "C") -> Any:
        return FUNCTIONS["reshape"](self, shape[0] if len(shape) == 1 else shape, order)

    def transpose(self, *axes: Any) -> Any:
        axes = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        return Array(self.tensor.permute(tuple(axes) if axes else tuple(reversed(range(self.ndim)))))

    def fill(self, value: Any) -> None:
        self[...] = value

    def sort(self, axis: int = -1, **_: Any) -> None:
        self[...] = numpy.sort(self, axis)


def _called(ufunc: Any, method: str, *inputs: Any, out: Any = None, where: Any = True, dtype: Any = None, **more: Any) -> Any:
    """What an operation on every element gives, or a reduction by one."""
    words = more if dtype is None else {"dtype": dtype, **more}
    if method in _BY and ufunc.__name__ in _BY[method]:
        found = getattr(numpy, _BY[method][ufunc.__name__])(*inputs, **{**({} if inputs[1:] else {"axis": 0}), **words})
        return found if out is None else into(out[0], found)
    if method == "outer":
        a, b = (Array(tensor(x)) for x in inputs)
        return ufunc(a.reshape(a.shape + (1,) * b.ndim), b, **words)
    if method == "at":
        to, at, x = inputs[0].tensor, inputs[1], tensor(inputs[2], inputs[0].dtype)
        at = tuple(tensor(one) for one in (at if isinstance(at, tuple) else (at,)))
        to.index_put_(at, {"add": x, "subtract": -x}[ufunc.__name__], accumulate=True)
        return None
    if method != "__call__" or set(more) - {"casting", "order", "subok"}:
        raise NotImplementedError(f"{ufunc.__name__}.{method} with {', '.join(map(str, words)) or 'no words'}")
    found = _elementwise(ufunc, inputs, dtype)
    if where is not True:
        found = numpy.where(where, found, out[0])
    if out is None or out[0] is inputs[0] and out[0].ndim == 0:
        return found
    return into(out[0], found)


def of_torch(call: Callable[..., Any], *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """What a function of torch's with numpy's name gives."""
    found = _back(call(*map(_forth, args), **{name: _forth(x) for name, x in kwargs.items()}))
    return found if out is None else into(out, found)


def into(out: Any, found: Any) -> Any:
    """Writes a result to an array of the function's."""
    if type(out) is not Array:
        raise TypeError("a result is written to an array that the function did not make")
    if not numpy.can_cast(found.dtype, out.dtype, "same_kind"):
        raise TypeError(f"cannot cast {found.dtype} to {out.dtype}")
    out.tensor.copy_(found.tensor)
    return out


def _turned(x: Tensor, index: Any) -> tuple[Tensor, Any]:
    """A tensor and an index that have the elements of an index with negative steps, which torch has not."""
    parts = list(index) if isinstance(index, tuple) else [index]
    dims = [_dims(one) for one in parts]
    at = 0
    for number, one in enumerate(parts):
        if one is Ellipsis:
            at = x.ndim - sum(dims[number + 1 :])
            continue
        if isinstance(one, slice) and one.step is not None and operator.index(one.step) < 0:
            start, stop, step = one.indices(x.shape[at])
            last = x.shape[at] - 1
            x, parts[number] = x.flip(at), slice(last - start, max(last - stop, last - start), -step)
        elif isinstance(one, slice):
            parts[number] = slice(*(None if part is None else operator.index(part) for part in (one.start, one.stop, one.step)))
        elif isinstance(one, numpy.integer):
            parts[number] = int(one)
        elif type(one) is Array or isinstance(one, (numpy.ndarray, list)):
            parts[number] = tensor(one if not isinstance(one, list) or one else numpy.zeros(0, int))
        at += dims[number]
    return x, tuple(parts) if isinstance(index, tuple) else parts[0]


def _dims(one: Any) -> int:
    """The number of dimensions that a part of an index takes."""
    if one is None or one is Ellipsis or isinstance(one, bool):
        return 0
    mask = getattr(one, "dtype", None) == bool
    return numpy.ndim(one) if mask else 1


# What torch's own functions of numpy's names take and give.


def _forth(x: Any) -> Any:
    """An argument as torch's functions of numpy's names take it."""
    if type(x) is Array or isinstance(x, (numpy.ndarray, numpy.generic)):
        return TNP.ndarray(tensor(x))
    if isinstance(x, (list, tuple)):
        return type(x)(map(_forth, x))
    if isinstance(x, numpy.dtype) or hasattr(x, "dtype") or isinstance(x, type) and issubclass(x, numpy.generic):
        return getattr(TNP, numpy.dtype(x).name)
    return x


def _back(x: Any) -> Any:
    if isinstance(x, TNP.ndarray):
        return Array(x.tensor)
    return type(x)(map(_back, x)) if isinstance(x, (list, tuple)) else x


def by_name(name: str, *args: Any) -> Any:
    """An operation on every element that is called as the functions of `math` are: on f64."""
    inputs = [tensor(x, float) if type(x) is Array else x for x in args]
    found = _OPERATIONS[name](*inputs)
    return Array(found)
