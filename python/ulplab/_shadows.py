"""Runs a function of torch as it is written, with f64 next to every tensor."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy

from . import _norms, _steps, _sums
from ._tape import Tape, Unknown, Value, kind, place
from ._torch import Tensor, TorchDispatchMode, TorchFunctionMode, pytree, torch

aten = torch.ops.aten
_HERE = os.path.dirname(os.path.abspath(__file__))
# Modules whose frames are none of the user's.
_OTHERS = tuple(os.path.dirname(os.path.abspath(str(one.__file__))) + os.sep for one in (torch, numpy))
_DROPPED = ("device", "layout", "pin_memory", "memory_format", "generator", "non_blocking", "copy")
# Operations that write running statistics, their fourth and fifth argument.
_STATISTICS = ("native_batch_norm", "cudnn_batch_norm")
# Methods of tensors that hand numbers to others.
_LEAVES = ("numpy", "__array__", "tolist", "data_ptr", "__dlpack__")
# Operations whose result is chosen by comparing numbers.
_DECISIONS = set(
    "eq ne lt le gt ge argmax argmin argsort sort topk kthvalue median any all nonzero max_pool2d_with_indices max_pool3d_with_indices sign "
    "round floor ceil trunc frac floor_divide remainder fmod searchsorted bucketize cummax cummin isnan isinf isfinite".split()
)


class _Store:
    """The f64 copies of one storage: one for each way in which it is viewed."""

    def __init__(self, keep: Tensor, key: Any, value: Value) -> None:
        #: Keeps the storage, so that no other gets its address.
        self.keep = keep
        self.base = key
        self.views: dict[Any, Value] = {key: value}


def _key(x: Tensor) -> Any:
    return x.storage_offset(), tuple(x.shape), tuple(x.stride())


def _covers(x: Tensor) -> bool:
    """True if a tensor has every element of its storage, once."""
    return x.untyped_storage().nbytes() == x.numel() * x.element_size() and _dense(x)


def _dense(x: Tensor) -> bool:
    """True if the elements of a tensor lie side by side, in any order of dimensions."""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(x.stride(), x.shape) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return True


class Leaks(TorchFunctionMode):  # type: ignore[misc]
    """Notices tensors that leave torch, where no error is followed."""

    def __init__(self, shadows: Shadows) -> None:
        super().__init__()
        self.shadows = shadows

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _LEAVES and args and isinstance(args[0], torch.Tensor) and self.shadows.known(args[0]):
            self.shadows.note(f"Tensor.{name}", "a tensor leaves torch, where neither values nor errors are followed")
        return func(*args, **(kwargs or {}))


class Shadows(TorchDispatchMode):  # type: ignore[misc]
    """Records the steps of a function on a tape while it runs. ``every`` names what is rounded besides: see `bound_of`."""

    def __init__(self, tape: Tape, rounds: str) -> None:
        super().__init__()
        self.tape = tape
        self.rounds = rounds
        self.stores: dict[int, _Store] = {}
        #: Storages whose numbers are not followed.
        self.lost: set[int] = set()
        #: Numbers that the function's own branches read: each with True if f64 has the same, and the line.
        self.branches: list[tuple[Value, bool, str]] = []
        #: Why there is no bound: operations, the lines that call them, and what is unknown.
        self.unknown: list[str] = []
        #: Unit roundoff of the coarsest type that an operation computes in, as the function is written.
        self.coarsest = 0.0

    # Tensors.

    def of(self, x: Tensor) -> Value:
        """The value of a tensor. A tensor that no step made is exact."""
        if x.untyped_storage()._cdata in self.lost:
            raise Unknown("memory that an operation has changed besides its results")
        store = self.stores.get(x.untyped_storage()._cdata)
        key = _key(x)
        if store is None:
            value = self.tape.leaf(x)
            if _covers(x):
                self.stores[x.untyped_storage()._cdata] = _Store(x, key, value)
            return value
        if key not in store.views:
            if x.dtype != store.keep.dtype:
                raise Unknown(f"memory of {store.keep.dtype} that is read as {x.dtype}")
            flat = self.flat(store)
            offset, shape, stride = key
            store.views[key] = self.tape.exact(lambda z: z.as_strided(shape, stride, offset), flat)
        return store.views[key]

    def flat(self, store: _Store) -> Value:
        """All elements of a storage, in the order of its memory."""
        size = store.keep.untyped_storage().nbytes() // store.keep.element_size()
        key = (0, (size,), (1,))
        if key not in store.views:
            _, shape, stride = store.base
            order = sorted(range(len(shape)), key=lambda dim: (-stride[dim], dim))
            store.views[key] = self.tape.exact(lambda z: z.permute(order).reshape(-1), store.views[store.base])
        return store.views[key]

    def keep(self, x: Tensor, value: Value) -> None:
        """The value of a tensor that a step has made."""
        if not _covers(x):
            # Elements between those of the tensor belong to nobody.
            size = x.untyped_storage().nbytes() // x.element_size()
            offset, shape, stride = _key(x)
            if 0 not in stride:
                zeros = torch.zeros(size, dtype=value.z.dtype, device=value.z.device)
                whole = self.tape.exact(lambda z: zeros.as_strided_scatter(z, shape, stride, offset), value)
            else:
                whole = self.tape.leaf(torch.zeros(size, dtype=value.z.dtype))
            store = _Store(x, (0, (size,), (1,)), whole)
            store.views[_key(x)] = value
        else:
            store = _Store(x, _key(x), value)
        self.stores[x.untyped_storage()._cdata] = store

    def write(self, x: Tensor, value: Value) -> None:
        """Replaces the elements of a tensor in its storage."""
        store = self.stores.get(x.untyped_storage()._cdata)
        if _covers(x):
            self.keep(x, value)
            return
        offset, shape, stride = _key(x)
        if store is None:
            whole = torch.as_strided(x, (x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
            flat = self.tape.leaf(whole)
        else:
            flat = self.flat(store)
        key = (0, tuple(flat.z.shape), (1,))
        found = self.tape.exact(lambda old, new: old.as_strided_scatter(new, shape, stride, offset), flat, value)
        self.stores[x.untyped_storage()._cdata] = new = _Store(x, key, found)
        new.views[_key(x)] = value

    def state(self, x: Tensor, wide: Tensor) -> None:
        """The numbers in f64 of a tensor that the function states. Kernels have them rounded."""
        self.tape.name, self.tape.line = "constant", line()
        self.keep(x, self.tape.state(wide))

    def known(self, x: Any) -> bool:
        """True if a tensor takes part: it has numbers, or is computed from some."""
        return isinstance(x, torch.Tensor) and (x.is_floating_point() or x.untyped_storage()._cdata in self.stores)

    # Operations.

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.partition("::")[2]
        name = name[:-1] if name.endswith("_") else name
        self.tape.name, self.tape.line = name, line()
        if kind(name) is None and func._schema.name.startswith("aten::"):
            # In inference mode, operations that consist of others arrive whole.
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        given: tuple[Any, Any] | None = None
        try:
            # Copies take part in derivatives later, in any mode that the function runs in.
            with torch.inference_mode(False):
                given = self.given(func, args, kwargs)
        except Unknown as why:
            self.note(f"aten.{name}", str(why))
        result = func(*args, **kwargs)
        if given is not None:
            try:
                with torch.inference_mode(False):
                    self.record(func, name, given, args, kwargs, result)
            except Unknown as why:
                self.note(f"aten.{name}", str(why))
            except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, NotImplementedError) as error:
                self.note(f"aten.{name}", f"its steps failed in f64: {type(error).__name__}: {error}".splitlines()[0])
        return result

    def note(self, name: str, why: str) -> None:
        text = f"{place(name, self.tape.line)}: {why}"
        if text not in self.unknown:
            self.unknown.append(text)

    def given(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """The arguments, with values in the place of tensors; None if the operation has nothing to do with numbers."""
        flat, _ = pytree.tree_flatten((args, kwargs))
        tensors = [x for x in flat if isinstance(x, torch.Tensor)]
        if not any(self.known(x) for x in tensors) and tensors:
            return None
        if any(x.is_complex() or x.is_sparse or x.is_quantized for x in tensors):
            raise Unknown("complex, sparse and quantized tensors are not followed")

        def value(x: Any) -> Any:
            return self.of(x) if isinstance(x, torch.Tensor) else x

        return pytree.tree_map(value, args), pytree.tree_map(value, kwargs)

    def record(self, func: Any, name: str, given: tuple[Any, Any], args: Any, kwargs: Any, result: Any) -> None:
        schema = func._schema
        results = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
        written = _written(schema, args, kwargs)
        if schema.name.partition("::")[0] != "aten":
            raise Unknown("not an operation of torch itself")
        if name == "_local_scalar_dense":
            (value,) = given[0]
            if not value.exact and value.floating:
                raise Unknown(".item() of a computed number, whose error is lost")
            if not value.exact:
                self.branches.append((value, bool(value.z.item() == args[0].item()), place(f"aten.{name}", self.tape.line)))
            return
        if not results and not written:
            return
        local = kind(name)
        if local == "random":
            raise Unknown("random numbers, which differ from kernel to kernel; pass them as an input")
        if not any(x.is_floating_point() for x in [*results, *written]) and not list(_taped(given)):
            return
        narrow = max((torch.finfo(x.dtype).eps / 2 for x in [*results, *written] if x.is_floating_point()), default=0.0)
        self.tape.scalar = max(self.tape.u, narrow) if self.rounds != "end" else self.tape.u
        self.coarsest = max(self.coarsest, 0.0 if local in ("exact", "cast") else narrow)
        types = [x.dtype for x in [*results, *written] if x.is_floating_point() and torch.finfo(x.dtype).eps / 2 == narrow]
        self.tape.narrow = types[0] if self.rounds == "every_step" and narrow > self.tape.u else None
        outs = self.mirror(func, name, local, given, written, results)
        owned = {y.untyped_storage()._cdata for y in pytree.tree_leaves(args) if isinstance(y, torch.Tensor)}
        # What is written in place is the result of the operation without it; running statistics are written besides.
        if name in _STATISTICS:
            # Written, though the operation does not declare it.
            self.lost |= {x.untyped_storage()._cdata for x in args[3:5] if isinstance(x, torch.Tensor)}
        places = {x.untyped_storage()._cdata for x in written}
        if any(x.untyped_storage()._cdata not in places for x in results):
            for storage in places:
                self.stores.pop(storage, None)
                self.lost.add(storage)
            written = []
        given_back = [value for value in outs if value is not None]
        if len(given_back) != len(written or results):
            raise Unknown(f"{len(written or results)} results were computed as {len(given_back)}")
        for x, value in zip(written or results, given_back):
            if value.floating and x.is_floating_point():
                value = self.stored(name, value, x.dtype)
                if name == "copy" and isinstance(args[1], torch.Tensor) and args[1].dtype != x.dtype:
                    value = self.tape.cast(value, x.dtype)
            if tuple(value.z.shape) != tuple(x.shape):
                raise Unknown(f"a result of shape {list(x.shape)} was computed with shape {list(value.z.shape)}")
            if written:
                self.write(x, value)
            elif func.is_view or x.untyped_storage()._cdata in owned:
                self.view(x, value)
            else:
                self.keep(x, value)

    def view(self, x: Tensor, value: Value) -> None:
        store = self.stores.get(x.untyped_storage()._cdata)
        if store is not None:
            store.views.setdefault(_key(x), value)

    def stored(self, name: str, value: Value, dtype: Any) -> Value:
        """A result in the type that the function gives it."""
        if dtype == torch.float64 or kind(name) == "exact":
            return value
        narrow = torch.finfo(dtype).eps / 2 > self.tape.u
        if kind(name) == "cast" or self.rounds != "end":
            return self.tape.cast(value, dtype) if narrow else value
        return value

    def mirror(self, func: Any, name: str, local: str | None, given: Any, written: Any, results: Any) -> list[Value | None]:
        """The results of an operation in f64."""
        args, kwargs = given
        kwargs = {key: value for key, value in kwargs.items() if key not in (*_DROPPED, "out")}
        if name == "as_strided":
            # The elements are those of the memory, however the copy is laid out.
            return [self.of(x) for x in results]
        if not list(_taped(given)):
            # A factory: zeros, arange, a number.
            return [self.tape.leaf(x) for x in (written or results)]
        if name == "_to_copy":
            (value,) = args
            dtype = kwargs.get("dtype")
            if dtype is not None and not dtype.is_floating_point and value.floating:
                return [self.tape.step(lambda z: z.to(dtype), value, decides=True)]
            if dtype is not None and not value.floating:
                wide = torch.float64 if dtype.is_floating_point else dtype
                return [self.tape.exact(lambda z: z.to(wide), value)]
            return [self.tape.exact(torch.clone, value)]
        if name == "copy":
            target, source = args[0], args[1]
            return [self.tape.exact(lambda new, old: new.to(old.dtype).expand_as(old).clone(), source, target)]
        own = _steps.find(name)
        if own is not None and any(value.floating for value in _taped(given)):
            if any(isinstance(one, list) and any(isinstance(x, Value) for x in one) for one in args) and local != "steps":
                raise Unknown("lists of tensors")
            found = own(self.tape, *args, **kwargs)
            return list(found) if isinstance(found, tuple) else [found]
        if local is None:
            raise Unknown("ulplab does not know its rounding error")
        if local != "exact" and any(value.floating for value in _taped(given)):
            raise Unknown("ulplab does not know its steps")
        return self.moved(func, name, args, kwargs)

    def moved(self, func: Any, name: str, args: Any, kwargs: Any) -> list[Value | None]:
        """An operation that moves, selects or compares, on the values themselves."""
        # A copy may have other strides than the tensor itself.
        plain = aten.reshape if name in ("view", "_unsafe_view", "_reshape_alias") else _out_of_place(func)
        if name == "_reshape_alias":
            args = args[:2]
        flat, spec = pytree.tree_flatten((args, kwargs))
        places = [at for at, one in enumerate(flat) if isinstance(one, Value)]
        words = [torch.float64 if isinstance(one, torch.dtype) and one.is_floating_point else self.tape.number(one) for one in flat]

        def call(*tensors: Tensor) -> Any:
            filled = list(words)
            for at, tensor in zip(places, tensors):
                filled[at] = tensor
            args, kwargs = pytree.tree_unflatten(filled, spec)
            found = plain(*args, **kwargs)
            return tuple(found) if isinstance(found, (list, tuple)) else found

        return list(self.tape.steps_of(call, *[flat[at] for at in places], decides=name in _DECISIONS))


def _taped(given: Any) -> Any:
    return (one for one in pytree.tree_leaves(given) if isinstance(one, Value))


def _written(schema: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors that an operation writes to."""
    found = []
    for at, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = kwargs.get(argument.name) if argument.kwarg_only or at >= len(args) else args[at]
            found += [x for x in pytree.tree_leaves(given) if isinstance(x, torch.Tensor)]
    return found


def _out_of_place(func: Any) -> Any:
    """The form of an operation that writes to none of its arguments."""
    name = func._schema.name.partition("::")[2]
    overload = func._schema.overload_name or "default"
    if name.endswith("_") and hasattr(torch.ops.aten, name[:-1]):
        packet = getattr(torch.ops.aten, name[:-1])
        return getattr(packet, overload) if hasattr(packet, overload) else packet
    if overload.endswith("out"):
        return getattr(torch.ops.aten, name)
    return func


def line() -> str:
    """The user's line that runs: the innermost frame that is neither torch's, numpy's nor this module's."""
    frame = sys._getframe(2)
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith((_HERE, *_OTHERS)) and not path.startswith("<"):
            return f"{os.path.basename(path)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""
