"""Runs a function of torch as it is written, with f64 next to every tensor."""

from __future__ import annotations

import math
from typing import Any, Iterable

from . import _complex, _norms, _steps, _sums
from ._choices import CHOOSE, tied
from ._parts import PRIVATE, out_of_place, parts_of
from ._storages import Store, covers, has_numbers, key_of, line, real_type, similar, size_of, statistics, written_by
from ._tape import Tape
from ._torch import Tensor, TorchDispatchMode, TorchFunctionMode, modes_off, pytree, torch
from ._values import Unknown, Value, kind, parts, place, walk

aten = torch.ops.aten
_DROPPED = ("device", "layout", "pin_memory", "memory_format", "generator", "non_blocking", "copy")
# Operations that compute numbers from the sizes and steps that they are given; those of arange may be whole.
_COMPUTED = "arange range linspace logspace bartlett_window blackman_window hamming_window hann_window kaiser_window".split()
# Operations that give memory without numbers.
_EMPTY = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
# Methods of tensors that hand numbers to others.
_LEAVES = ("numpy", "__array__", "tolist", "data_ptr", "__dlpack__")
# Methods that convert, and types that round what f32 holds.
_CASTS = ("to", "bfloat16", "half", "type", "type_as")
_NARROW = (torch.bfloat16, torch.float16)
# Operations whose result is chosen by comparing numbers.
_DECISIONS = set(
    "eq ne lt le gt ge argmax argmin argsort sort topk kthvalue median any all nonzero max_pool2d_with_indices max_pool3d_with_indices sign "
    "round floor ceil trunc frac floor_divide remainder fmod searchsorted bucketize cummax cummin isnan isinf isfinite mode nanmedian "
    "masked_select _unique2 unique_dim unique_consecutive signbit frexp".split()
)
# Those of them that choose the side of a derivative.
_SIDES = ("lt", "le", "gt", "ge", "sign")


class Lost(Unknown):
    """A number that follows from one without a bound, and the whole reason."""


def _unknown(name: str) -> bool:
    """True for an operation that rounds and has no steps, or that the table of local errors does not have."""
    return kind(name) not in ("exact", "cast", "random") and _steps.find(name) is None and _complex.find(name) is None


def leaving(func: Any, args: Any) -> str:
    """The name of a method that hands a tensor's numbers to others; empty for any other function."""
    name = getattr(func, "__name__", "")
    return name if name in _LEAVES and args and isinstance(args[0], torch.Tensor) else ""


class Leaks(TorchFunctionMode):  # type: ignore[misc]
    """Notices tensors that leave torch, where no error is followed."""

    def __init__(self, shadows: Shadows) -> None:
        super().__init__()
        self.shadows = shadows

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if leaving(func, args) and self.shadows.known(args[0]):
            where = place(f"Tensor.{name}", self.shadows.tape.line)
            self.shadows.note(f"{where}: a tensor leaves torch, where neither values nor errors are followed")
        result = func(*args, **(kwargs or {}))
        if name in _CASTS and args and result is args[0] and result.dtype in _NARROW and self.shadows.known(result):
            # A cast to the type that the tensor has: none for torch, and a rounding that the function states.
            return self.shadows.rounded(result)
        return result


class Shadows(TorchDispatchMode):  # type: ignore[misc]
    """Records the steps of a function on a tape while it runs. ``every`` names what is rounded besides: see `bound_of`."""

    def __init__(self, tape: Tape, rounds: str) -> None:
        super().__init__()
        self.tape = tape
        self.rounds = rounds
        self.stores: dict[int, Store] = {}
        #: Storages whose numbers have no bound: a tensor that keeps each, and why.
        self.lost: dict[int, tuple[Tensor, str]] = {}
        #: Memory that the function did not make, and what was in it before the function wrote to it.
        self.outer: dict[int, tuple[Any, Any]] = {}
        self._made: set[int] = set()
        #: The operation that runs, with its library.
        self.full = ""
        #: The user's line that runs, where it is not on the stack.
        self.at = ""
        #: True while derivatives are computed.
        self.backwards = False
        #: Operations that are run as others now.
        self.within: list[Any] = []
        #: True if the function has memory that it may not have written.
        self.empty = False
        #: Numbers that the function's own branches read: each with True if f64 has the same, and the line.
        self.branches: list[tuple[Value, bool, str]] = []
        #: Why no output has a bound: operations, the lines that call them, and what is unknown.
        self.unknown: list[str] = []
        #: Unit roundoff of the coarsest type that an operation computes in, as the function is written.
        self.coarsest = 0.0

    # Tensors.

    def of(self, x: Tensor) -> Value:
        """The value of a tensor. A tensor that no step made is exact."""
        if x.untyped_storage()._cdata in self.lost:
            raise Lost(self.lost[x.untyped_storage()._cdata][1])
        store = self.stores.get(x.untyped_storage()._cdata)
        key = key_of(x)
        if store is None:
            value = self.leaf(x)
            if covers(x):
                self.stores[x.untyped_storage()._cdata] = Store(x, key, value)
            return value
        if key not in store.views:
            if x.dtype != store.keep.dtype:
                raise Unknown(f"memory of {store.keep.dtype} that is read as {x.dtype}")
            offset, shape, stride, _ = key
            found = self.moved_as_is(lambda z: z.as_strided(shape, stride, z.storage_offset() + offset), self.flat(store))
            found = _complex.conjugate(self.tape, found) if x.is_conj() != store.keep.is_conj() else found
            store.views[key] = self.moved_as_is(torch.neg, found) if x.is_neg() != store.keep.is_neg() else found
        return store.views[key]

    def leaf(self, x: Tensor) -> Value:
        value = self.tape.leaf(_complex.pairs(x))
        value.complex = x.is_complex()
        return value

    def moved_as_is(self, call: Any, *values: Any) -> Value:
        """A step that moves numbers, real or complex."""
        if any(value.complex for value in values):
            return _complex.moved(self.tape, call, *values)[0]
        return self.tape.exact(call, *values)

    def flat(self, store: Store) -> Value:
        """All elements of a storage, in the order of its memory."""
        size = store.keep.untyped_storage().nbytes() // store.keep.element_size()
        key = (0, (size,), (1,), store.base[3])
        if key not in store.views:
            _, shape, stride, _ = store.base
            order = sorted(range(len(shape)), key=lambda dim: (-stride[dim], dim))
            store.views[key] = self.moved_as_is(lambda z: z.permute(order).reshape(-1), store.views[store.base])
        return store.views[key]

    def keep(self, x: Tensor, value: Value) -> None:
        """The value of a tensor that a step has made."""
        if not covers(x):
            # Elements between those of the tensor belong to nobody.
            size = x.untyped_storage().nbytes() // x.element_size()
            offset, shape, stride, kind = key_of(x)
            zeros = torch.zeros(size, dtype=torch.complex128 if value.complex else value.z.dtype, device=value.z.device)
            if 0 not in stride:
                whole = self.moved_as_is(lambda z: zeros.as_strided_scatter(z, shape, stride, offset), value)
            else:
                whole = self.leaf(zeros)
            store = Store(x, (0, (size,), (1,), kind), whole)
            store.views[key_of(x)] = value
        else:
            store = Store(x, key_of(x), value)
        self.stores[x.untyped_storage()._cdata] = store

    def write(self, x: Tensor, value: Value) -> None:
        """Replaces the elements of a tensor in its storage."""
        store = self.stores.get(x.untyped_storage()._cdata)
        if covers(x):
            self.keep(x, value)
            return
        offset, shape, stride, kind = key_of(x)
        if store is None:
            whole = torch.as_strided(x, (x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
            flat = self.leaf(whole)
        else:
            flat = self.flat(store)
        if flat.complex != value.complex:
            raise Unknown("real parts of complex numbers that are written")
        key = (0, flat.shape, (1,), kind)
        found = self.moved_as_is(lambda old, new: old.clone().as_strided_scatter(new, shape, stride, offset), flat, value)
        self.stores[x.untyped_storage()._cdata] = new = Store(x, key, found)
        new.views[key_of(x)] = value

    def state(self, x: Tensor, wide: Tensor) -> None:
        """The numbers in f64 of a tensor that the function states. Kernels have them rounded."""
        self.tape.name, self.tape.line = "constant", self.at or line()
        self.keep(x, self.tape.state(wide))

    def rounded(self, x: Tensor) -> Tensor:
        """A copy of a tensor, rounded to its type."""
        fresh: Tensor = x.clone()
        if fresh.untyped_storage()._cdata not in self.lost:
            with modes_off(), torch.inference_mode(False):
                self.keep(fresh, self.cast(self.of(fresh), fresh.dtype))
        return fresh

    def known(self, x: Any) -> bool:
        """True if a tensor takes part: it has numbers, or is computed from some."""
        if not isinstance(x, torch.Tensor):
            return False
        storage = x.untyped_storage()._cdata
        return has_numbers(x) or storage in self.stores or storage in self.lost

    def lose(self, tensors: Iterable[Any], why: str) -> None:
        """Marks tensors whose numbers have no bound; so have all that are computed from them."""
        for x in tensors:
            if isinstance(x, torch.Tensor):
                storage = x.untyped_storage()._cdata
                self.stores.pop(storage, None)
                self.lost[storage] = x, why

    # Operations.

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.partition("::")[2]
        name = name[:-1] if name.endswith("_") else name
        self.tape.name, self.tape.line = name, "in the backward pass" if self.backwards else self.at or line()
        self.tape.turn += 1
        self.full = f"aten.{name}" if func.namespace in ("aten", "prims") else func._schema.name
        if func.namespace == "prims" or func.namespace == "aten" and (_unknown(name) or name == "to"):
            with self:
                # In inference mode, operations that consist of others arrive whole.
                found = func.decompose(*args, **kwargs)
                if found is not NotImplemented:
                    return found
                found = self.in_parts(func, name, args, kwargs)
                if found is not NotImplemented:
                    return found
        given: tuple[Any, Any] | None = None
        why = ""
        try:
            # Copies take part in derivatives later, in any mode that the function runs in.
            with torch.inference_mode(False):
                given = self.given(func, args, kwargs)
        except Unknown as unknown:
            why = self.reason(unknown)
        self.remember([*written_by(func, args, kwargs), *statistics(name, args)])
        result = func(*args, **kwargs)
        if not func.is_view and not func._schema.is_mutable:
            self._made |= {x.untyped_storage()._cdata for x in parts(result, torch.Tensor)}
        if given is not None:
            try:
                with torch.inference_mode(False):
                    self.record(func, name, given, args, kwargs, result)
            except Unknown as unknown:
                why = self.reason(unknown)
            except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, NotImplementedError) as error:
                failed = f"its steps failed in f64: {type(error).__name__}: {error}".splitlines()[0]
                why = self.reason(Unknown(failed))
        elif not why:
            # Numbers that are made of integers alone are those of torch, in the type that it gives them.
            self.roundoff(name, parts(result, torch.Tensor))
        if why and name == "_local_scalar_dense":
            # The number is the function's own from here on.
            self.note(why)
        elif why:
            self.lose([*pytree.tree_leaves(result), *written_by(func, args, kwargs)], why)
        return result

    def remember(self, written: Iterable[Any]) -> None:
        """Keeps what is in memory of others before the function writes to it."""
        for x in written:
            if isinstance(x, torch.Tensor):
                memory = x.untyped_storage()
                if memory._cdata not in self._made and memory._cdata not in self.outer:
                    self.outer[memory._cdata] = memory, memory.clone()

    def restore(self) -> None:
        """Undoes what the function wrote to memory that it did not make."""
        for memory, before in self.outer.values():
            memory.copy_(before)

    def in_parts(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """The results of an operation by others that it consists of; NotImplemented if it has none, or they give something else."""
        if func in self.within or not any(self.known(x) for x in pytree.tree_leaves((args, kwargs))):
            return NotImplemented
        others = parts_of(func, name)
        if others is None:
            return NotImplemented
        self.within.append(func)
        try:
            found = others(*args, **kwargs)
        except (RuntimeError, TypeError, ValueError, IndexError):
            # Of no elements, or as nobody has tried.
            return NotImplemented
        finally:
            self.within.pop()
        if not func._schema.is_mutable:
            with modes_off():
                own = pytree.tree_leaves(func(*args, **kwargs))
                given = pytree.tree_leaves(found)
                shown = len(own) - PRIVATE.get(name, 0)
                self.lose(given[shown:], f"aten.{name}: a result for torch's own use")
                own, given = own[:shown], given[:shown]
                size = max((size_of(x) for x in pytree.tree_leaves((args, kwargs)) if has_numbers(x)), default=0.0)
                if len(own) != len(given) or not all(similar(x, y, size) for x, y in zip(own, given)):
                    return NotImplemented
        return found

    def reason(self, unknown: Unknown) -> str:
        """Why an operation's results have no bound: for those of numbers without one, why these have none."""
        return str(unknown) if isinstance(unknown, Lost) else f"{place(self.full, self.tape.line)}: {unknown}"

    def note(self, why: str) -> None:
        """Keeps why no output has a bound."""
        if why not in self.unknown:
            self.unknown.append(why)

    def given(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """The arguments, with values in the place of tensors; None if the operation has nothing to do with numbers."""
        tensors = parts((args, kwargs), torch.Tensor)
        if not any(self.known(x) for x in tensors) and tensors:
            return None
        if any(x.is_sparse or x.is_quantized for x in tensors):
            raise Unknown("sparse and quantized tensors are not followed")
        return walk((args, kwargs), self.of, torch.Tensor)  # type: ignore[no-any-return]

    def record(self, func: Any, name: str, given: tuple[Any, Any], args: Any, kwargs: Any, result: Any) -> None:
        schema = func._schema
        results = parts(result, torch.Tensor)
        written = written_by(func, args, kwargs)
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
        numbers = [real_type(x.dtype) for x in [*results, *written] if has_numbers(x)]
        if not numbers and not parts(given):
            return
        narrow = self.roundoff(name, [*results, *written])
        self.tape.scalar = max(self.tape.u, narrow) if self.rounds != "end" else self.tape.u
        types = [dtype for dtype in numbers if torch.finfo(dtype).eps / 2 == narrow]
        self.tape.narrow = types[0] if self.rounds == "every_step" and narrow > self.tape.u else None
        outs = self.mirror(func, name, local, given, written, results)
        if name in CHOOSE:
            self.choose(func, given, outs)
        owned = {y.untyped_storage()._cdata for y in parts(args, torch.Tensor)}
        # What is written in place is the result of the operation without it; running statistics are written besides.
        besides = f"{place(f'aten.{name}', self.tape.line)}: memory that an operation has changed besides its results"
        # Written, though the operation does not declare it.
        self.lose(statistics(name, args), besides)
        places = {x.untyped_storage()._cdata for x in written}
        if any(x.untyped_storage()._cdata not in places for x in results):
            self.lose(written, besides)
            written = []
        given_back = [value for value in outs if value is not None]
        if len(given_back) != len(written or results):
            raise Unknown(f"{len(written or results)} results were computed as {len(given_back)}")
        for x, value in zip(written or results, given_back):
            if value.floating and has_numbers(x):
                value = self.stored(name, value, real_type(x.dtype))
                if name == "copy" and isinstance(args[1], torch.Tensor) and args[1].dtype != x.dtype:
                    value = self.cast(value, real_type(x.dtype))
            if value.shape != tuple(x.shape) or value.complex != x.is_complex():
                raise Unknown(f"a result of {x.dtype}{list(x.shape)} was computed with shape {list(value.shape)}")
            if written:
                self.write(x, value)
            elif func.is_view or x.untyped_storage()._cdata in owned:
                self.view(x, value)
            else:
                self.keep(x, value)

    def roundoff(self, name: str, results: list[Tensor]) -> float:
        """The unit roundoff of the coarsest type among an operation's results, which the function is then known to compute in."""
        found: float = max((torch.finfo(real_type(x.dtype)).eps / 2 for x in results if has_numbers(x)), default=0.0)
        self.coarsest = max(self.coarsest, 0.0 if kind(name) in ("exact", "cast") else found)
        return found

    def choose(self, func: Any, given: Any, outs: list[Value | None]) -> None:
        """Keeps by which scores indices are chosen."""
        args, kwargs = given
        dims = [one for one in enumerate(func._schema.arguments) if one[1].name == "dim"]
        scores = args[0]
        if not isinstance(scores, Value) or not scores.floating or scores.complex:
            return
        dim = None
        for at, argument in dims:
            dim = args[at] if at < len(args) else kwargs.get("dim", argument.default_value)
        for out in outs:
            if out is not None and not out.floating:
                scores.needs_spread = not scores.exact
                self.tape.choices[id(out)] = scores, dim
                step = self.tape.maker(out)
                if step is not None and step.args[0] is scores and tied(scores.z, dim):
                    self.tape.tie(out)

    def view(self, x: Tensor, value: Value) -> None:
        store = self.stores.get(x.untyped_storage()._cdata)
        if store is not None:
            store.views.setdefault(key_of(x), value)

    def stored(self, name: str, value: Value, dtype: Any) -> Value:
        """A result in the type that the function gives it."""
        if dtype == torch.float64 or kind(name) == "exact":
            return value
        narrow = torch.finfo(dtype).eps / 2 > self.tape.u
        return self.cast(value, dtype) if narrow and (kind(name) == "cast" or self.rounds != "end") else value

    def cast(self, value: Value, dtype: Any) -> Value:
        found = self.tape.cast(value, dtype)
        found.complex = value.complex
        return found

    def mirror(self, func: Any, name: str, local: str | None, given: Any, written: Any, results: Any) -> list[Value | None]:
        """The results of an operation in f64."""
        args, kwargs = given
        kwargs = {key: value for key, value in kwargs.items() if key not in (*_DROPPED, "out")}
        if name == "as_strided":
            # The elements are those of the memory, however the copy is laid out.
            return [self.of(x) for x in results]
        taped = parts(given)
        empty = name in _EMPTY
        if empty or not taped:
            # A factory: zeros, arange, a number, or memory with no numbers yet.
            self.empty |= empty
            if name in _COMPUTED and has_numbers(results[0]):
                return [self.computed(func, kwargs, given, results[0])]
            return [self.leaf(torch.full_like(x, math.nan) if empty and has_numbers(x) else x) for x in (written or results)]
        if name == "_to_copy":
            (value,) = args
            dtype = kwargs.get("dtype")
            if dtype is not None and dtype.is_complex != value.complex:
                return [_complex.to_complex(self.tape, value, dtype)]
            if dtype is not None and not value.complex and not dtype.is_floating_point and value.floating:
                return [self.tape.step(lambda z: z.to(dtype), value, decides=True)]
            if dtype is not None and not value.floating:
                wide = torch.float64 if dtype.is_floating_point else dtype
                return [self.tape.exact(lambda z: z.to(wide), value)]
            return [self.moved_as_is(torch.clone, value)]
        if name == "copy":
            target, source = args[0], args[1]
            if target.complex != source.complex:
                source = _complex.to_complex(self.tape, source, results[0].dtype)
            if target.complex:
                return [self.moved_as_is(lambda new, old: new.expand_as(old).clone(), source, target)]
            return [self.tape.exact(lambda new, old: new.to(old.dtype).expand_as(old).clone(), source, target)]
        if any(value.complex for value in taped) or any(x.is_complex() for x in [*results, *written]):
            own = _complex.find(name)
            if own is None and local != "exact":
                raise Unknown("ulplab does not know its steps for complex numbers")
        else:
            own = _steps.find(name)
        if own is not None and any(value.floating for value in taped):
            if any(isinstance(one, list) and any(isinstance(x, Value) for x in one) for one in args) and local != "steps":
                raise Unknown("lists of tensors")
            found = own(self.tape, *args, **kwargs)
            return list(found) if isinstance(found, tuple) else [found]
        if local is None:
            raise Unknown("ulplab does not know its rounding error")
        if local != "exact" and any(value.floating for value in taped):
            raise Unknown("ulplab does not know its steps")
        return self.moved(func, name, args, kwargs)

    def computed(self, func: Any, kwargs: Any, given: Any, x: Tensor) -> Value:
        """Numbers that a factory computes, each from its place: in f64, and off by some roundings of the largest."""
        value = self.tape.leaf(func(*given[0], **{**kwargs, "dtype": torch.float64}))
        if self.tape.short(value):
            return value
        worst = torch.full_like(value.z, 8 * self.tape.u * float(value.z.abs().amax()) if value.z.numel() else 0.0)
        return self.tape.step(torch.clone, value, local=lambda: (worst, worst * 3**-0.5))

    def wide(self, x: Any) -> Any:
        """A number, or a type, of a step in f64."""
        return self.tape.number(x) if isinstance(x, float) else torch.float64 if x.is_floating_point else x

    def moved(self, func: Any, name: str, args: Any, kwargs: Any) -> list[Value | None]:
        """An operation that moves, selects or compares, on the values themselves."""
        # A copy may have other strides than the tensor itself.
        plain = torch.reshape if name in ("view", "_unsafe_view", "_reshape_alias") else out_of_place(func)
        if name == "_reshape_alias":
            args = args[:2]
        args, kwargs = walk((args, kwargs), self.wide, (torch.dtype, float))
        names, count = tuple(kwargs), len(args)

        def call(*given: Any) -> Any:
            return plain(*given[:count], **dict(zip(names, given[count:])))

        values, move = [*args, *kwargs.values()], call if names else plain
        if any(value.complex for value in parts(values)):
            return list(_complex.moved(self.tape, move, *values, decides=name in _DECISIONS))
        found = self.tape.steps_of(move, *values, decides=name in _DECISIONS)
        if self.backwards and name in _SIDES and (not self.within or name == "sign"):
            # The derivative of a clamp or of a magnitude, where a number lies on an edge exactly.
            x, edge = values[0], values[1] if len(values) > 1 else 0.0
            if isinstance(x, Value) and x.floating and isinstance(edge, (int, float)) and bool((x.z == edge).any()):
                self.tape.tie(found[0])
        return list(found)
