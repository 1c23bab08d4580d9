"""Steps of complex numbers. The value of a complex tensor has their real and imaginary parts in a last dimension of two."""

from __future__ import annotations

import functools
import math
from typing import Any, Callable

from ._steps import count_of, dims_of
from ._sums import matrix_product
from ._tape import Tape
from ._torch import Tensor, pytree, torch
from ._values import Unknown, Value, names_in

aten = torch.ops.aten
_STEPS: dict[str, Callable[..., Any]] = {}


def find(name: str) -> Callable[..., Any] | None:
    """The function that adds the steps of an operation on complex numbers to a tape."""
    return _STEPS.get(name)


_step = names_in(_STEPS)


def pairs(x: Tensor) -> Tensor:
    """Complex numbers as pairs of real ones."""
    return torch.view_as_real(x.resolve_conj().resolve_neg()) if x.is_complex() else x


def marked(value: Value) -> Value:
    """The value, as that of a complex tensor."""
    value.complex = True
    return value


def _numbers(arg: Any, given: Any) -> Any:
    """Complex numbers in the place of pairs, where an argument has complex values."""
    if isinstance(arg, Value):
        return torch.view_as_complex(given.contiguous()) if arg.complex else given
    return type(arg)(_numbers(*one) for one in zip(arg, given)) if isinstance(arg, (list, tuple)) else given


def moved(t: Tape, call: Callable[..., Any], *args: Any, **more: Any) -> tuple[Value, ...]:
    """A step that moves or selects complex numbers, by an operation on them as they are."""
    kinds: list[bool] = []

    def on(*given: Any) -> Any:
        found = call(*(_numbers(arg, one) for arg, one in zip(args, given)))
        kinds[:] = [one.is_complex() for one in pytree.tree_leaves(found)]
        return pytree.tree_map(pairs, found)

    outs = t.steps_of(on, *args, **more)
    for out, kind in zip(outs, kinds):
        out.complex = kind
    return outs


def _parts(t: Tape, x: Any) -> tuple[Any, Any]:
    """The real and the imaginary part."""
    if not isinstance(x, Value):
        return (x.real, x.imag) if isinstance(x, complex) else (x, 0.0)
    if not x.complex:
        return x, 0.0
    return t.exact(lambda z: z[..., 0], x), t.exact(lambda z: z[..., 1], x)


@_step("complex")
def _join(t: Tape, real: Any, imaginary: Any) -> Value:
    def call(a: Any, b: Any) -> Tensor:
        tensor = a if isinstance(a, torch.Tensor) else b
        a, b = (one if isinstance(one, torch.Tensor) else torch.full_like(tensor, one) for one in (a, b))
        return torch.stack(torch.broadcast_tensors(a, b), -1)

    return marked(t.exact(call, real, imaginary))


def _wide(t: Tape, x: Any) -> Any:
    """Real numbers, for products with both parts of complex ones."""
    return t.exact(lambda z: z.unsqueeze(-1), x) if isinstance(x, Value) else x


def _real(x: Any) -> bool:
    return not (x.complex if isinstance(x, Value) else isinstance(x, complex))


@_step("add")
def _add(t: Tape, a: Any, b: Any, alpha: Any = 1) -> Value:
    b = b if alpha == 1 else _mul(t, b, alpha)
    if not _real(a) and not _real(b) and isinstance(a, Value) and isinstance(b, Value):
        return marked(t.add(a, b))
    (a, ai), (b, bi) = _parts(t, a), _parts(t, b)
    return _join(t, _plus(t, a, b), _plus(t, ai, bi))


def _plus(t: Tape, a: Any, b: Any) -> Any:
    if isinstance(a, Value) or isinstance(b, Value):
        return t.add(a, b)
    return a + b


@_step("neg")
def _neg(t: Tape, a: Value) -> Value:
    return marked(t.exact(torch.neg, a))


@_step("sub")
def _sub(t: Tape, a: Any, b: Any, alpha: Any = 1) -> Value:
    return _add(t, a, b, -alpha)


@_step("rsub")
def _rsub(t: Tape, a: Any, b: Any, alpha: Any = 1) -> Value:
    return _add(t, b, a, -alpha)


@_step("mul")
def _mul(t: Tape, a: Any, b: Any) -> Any:
    if _real(a) and _real(b):
        return t.mul(a, b) if isinstance(a, Value) or isinstance(b, Value) else a * b
    if _real(a) or _real(b):
        of, by = (b, a) if _real(a) else (a, b)
        if isinstance(of, Value):
            return marked(t.mul(of, _wide(t, by)))
    (a, ai), (b, bi) = _parts(t, a), _parts(t, b)
    real = t.sub(_times(t, a, b), _times(t, ai, bi))
    return _join(t, real, t.add(_times(t, a, bi), _times(t, ai, b)))


def _times(t: Tape, a: Any, b: Any) -> Any:
    tensors = [one for one in (a, b) if isinstance(one, Value)]
    if any(one == 0 for one in (a, b) if not isinstance(one, Value)) and tensors:
        return t.exact(torch.zeros_like, tensors[0])
    return t.mul(a, b) if tensors else a * b


@_step("div", "true_divide")
def _div(t: Tape, a: Any, b: Any) -> Value:
    if _real(b) and isinstance(a, Value):
        return marked(t.div(a, _wide(t, b)))
    (a, ai), (b, bi) = _parts(t, a), _parts(t, b)
    size = _plus(t, _times(t, b, b), _times(t, bi, bi))
    real = _plus(t, _times(t, a, b), _times(t, ai, bi))
    imaginary = t.sub(_times(t, ai, b), _times(t, a, bi))
    return _join(t, t.div(real, size), t.div(imaginary, size))


@_step("pow")
def _pow(t: Tape, a: Any, b: Any) -> Any:
    if not isinstance(a, Value) or isinstance(b, (Value, complex)) or not float(b).is_integer() or not 1 <= abs(b) <= 4:
        raise Unknown("a power of complex numbers; expected a whole exponent from 1 to 4")
    found = functools.reduce(functools.partial(_mul, t), [a] * int(abs(b)))
    return found if b > 0 else _div(t, 1.0, found)


@_step("reciprocal")
def _reciprocal(t: Tape, a: Value) -> Value:
    return _div(t, 1.0, a)


@_step("_conj", "conj_physical", "_conj_physical")
def conjugate(t: Tape, a: Value) -> Value:
    return marked(t.exact(lambda z: z * torch.tensor([1.0, -1.0], dtype=z.dtype, device=z.device), a))


@_step("view_as_real")
def _view_as_real(t: Tape, a: Value) -> Value:
    return t.exact(lambda z: z.view_as(z), a)


@_step("view_as_complex")
def _view_as_complex(t: Tape, a: Value) -> Value:
    return marked(t.exact(lambda z: z.view_as(z), a))


@_step("abs")
def _abs(t: Tape, a: Value) -> Value:
    real, imaginary = _parts(t, a)
    return t.fn("sqrt", t.add(t.square(real), t.square(imaginary)))


@_step("angle")
def _angle(t: Tape, a: Value) -> Value:
    real, imaginary = _parts(t, a)
    return t.units("atan2", torch.atan2, imaginary, real)


@_step("polar")
def _polar(t: Tape, size: Value, angle: Value) -> Value:
    return _join(t, t.mul(size, t.fn("cos", angle)), t.mul(size, t.fn("sin", angle)))


@_step("exp")
def _exp(t: Tape, a: Value) -> Value:
    real, imaginary = _parts(t, a)
    return _polar(t, t.fn("exp", real), imaginary)


@_step("sum")
def _sum(t: Tape, x: Value, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    return marked(t.sum(x, dims_of(dims, x), keepdim))


@_step("mean")
def _mean(t: Tape, x: Value, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    at = dims_of(dims, x)
    return marked(t.div(t.sum(x, at, keepdim), float(count_of(x, at))))


@_step("mm", "bmm", "matmul")
def _mm(t: Tape, a: Value, b: Value) -> Value:
    (a, ai), (b, bi) = _parts(t, a), _parts(t, b)

    def product(x: Any, y: Any) -> Any:
        return matrix_product(t, x, y) if isinstance(x, Value) and isinstance(y, Value) else 0.0

    return _join(t, _plus(t, product(a, b), t.neg(product(ai, bi))), _plus(t, product(a, bi), product(ai, b)))


@_step("_fft_r2c", "_fft_c2r", "_fft_c2c")
def _fft(t: Tape, x: Value, dims: Any, normalization: int, last: Any) -> Value:
    """A fast Fourier transform of N numbers: log₂ N stages, each of which rounds what has the size of the transform."""
    call = getattr(aten, t.name)
    at = dims_of(dims, x)
    count = math.prod(x.z.shape[dim] for dim in at)
    if t.name == "_fft_c2r":
        count = count // x.z.shape[at[-1]] * last
    stages = 1.0 + math.log2(max(count, 1))
    scale = {0: 1.0, 1: count**-0.5, 2: 1.0 / count}[normalization] * (2.0 if t.name == "_fft_c2r" else 1.0)
    out: list[Value] = []

    def transform(z: Tensor) -> Tensor:
        given = torch.view_as_complex(z.contiguous()) if x.complex else z
        return pairs(call(given, dims, normalization, last))

    def local() -> tuple[Tensor, Tensor]:
        squares = x.z.square().sum(-1) if x.complex else x.z.square()
        size = scale * squares.sum(at, keepdim=True).sqrt()
        terms = scale * squares.sqrt().sum(at, keepdim=True)
        if out[0].z.ndim > squares.ndim:
            size, terms = size.unsqueeze(-1), terms.unsqueeze(-1)
        worst = (4 * t.u * stages * terms).expand_as(out[0].z)
        return worst, torch.minimum((t.u * math.sqrt(stages) * size).expand_as(worst), worst)

    out.append(t.step(transform, x, local=local, costly=True))
    return out[0] if t.name == "_fft_c2r" else marked(out[0])


def to_complex(t: Tape, value: Value, dtype: Any) -> Value:
    """A conversion between real and complex numbers."""
    if value.complex and not dtype.is_complex:
        raise Unknown("a conversion that drops imaginary parts")
    return value if value.complex else _join(t, value, 0.0)
