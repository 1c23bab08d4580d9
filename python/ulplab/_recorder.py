"""Calls of a live model's modules, recorded: what went in, cloned before the module ran, and what came out."""

from __future__ import annotations

import json
import os
from fnmatch import fnmatchcase
from pathlib import Path
from types import TracebackType
from typing import Any, Iterable

import numpy

from ._files import Stored, replace, write
from ._tensors import warn

#: The file that says what was recorded, and the version of its layout.
INDEX = "recording.json"
VERSION = 1
#: Calls that have ended, a line each, as long as the recording runs: all that is left of one whose process was killed.
LOG = "recording.jsonl"
_SHARDS = "calls-{:05d}.safetensors"
# Tensors are written once so many bytes are held.
_SHARD = 256 << 20
# What is kept as it is.
_PLAIN = (bool, int, float, str, type(None))


class Recording:
    """The result of `record`: use it in a ``with`` block. ``calls``, ``bytes`` and ``left_out`` count what was recorded, and what
    was not."""

    def __init__(self, model: Any, folder: Path, modules: list[str], max_calls: int, max_bytes: int, parameters: bool) -> None:
        self.folder = folder
        self.calls = 0
        self.bytes = 0
        self.left_out = 0
        self._max_calls, self._max_bytes = max_calls, max_bytes
        self._parameters = parameters
        known = list(model.named_modules())
        self._chosen = [(name, module) for name, module in known if any(fnmatchcase(name, one) for one in modules)]
        if not self._chosen:
            names = ", ".join(repr(name) for name, _ in known[:8])
            raise ValueError(f"modules = {modules}: the model has none of these names; it has {names}, ...")
        self._handles: list[Any] = []
        # Calls that have begun and not ended, by module: a module may call itself.
        self._begun: dict[str, list[dict[str, Any] | None]] = {}
        self._counts: dict[str, int] = {}
        self._entries: list[dict[str, Any]] = []
        self._known: dict[str, dict[str, Any]] = {}
        self._held: dict[str, Stored] = {}
        self._waiting = 0
        self._shards = 0

    def __enter__(self) -> Recording:
        self.folder.mkdir(parents=True, exist_ok=True)
        if any(self.folder.iterdir()):
            raise ValueError(f"{self.folder} is not empty: a recording would be mixed with what is there")
        for name, module in self._chosen:
            before, after = self._hooks(name)
            self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            self._handles.append(module.register_forward_hook(after, with_kwargs=True))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._write()
        about = {"ulplab_recording": VERSION, "left_out": self.left_out, "calls": self._entries}
        replace(self.folder / INDEX, [json.dumps(about, indent=1).encode()])
        (self.folder / LOG).unlink(missing_ok=True)
        if self.left_out:
            warn(
                f"{self.left_out:,} calls were not recorded: {self.calls:,} calls with {self.bytes:,} bytes were, and at most "
                f"max_calls = {self._max_calls:,} and max_bytes = {self._max_bytes:,} are"
            )

    def _hooks(self, name: str) -> tuple[Any, Any]:
        def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            begun = self._begun.setdefault(name, [])
            at = self._counts[name] = self._counts.get(name, 0) + 1
            parts = {f"arg_{place}": value for place, value in enumerate(args)} | kwargs
            parameters = dict(module.named_parameters(recurse=False)) if self._parameters and name not in self._known else {}
            size = _bytes([*parts.values(), *parameters.values()])
            if self.calls >= self._max_calls or self.bytes + size > self._max_bytes:
                self.left_out += 1
                begun.append(None)
                return
            self.calls += 1
            # The letter ends the module's name: after a dot, a call of one module could have the key of another's child.
            prefix = f"{name}@{at - 1}"
            if name not in self._known:
                self._known[name] = {key: self._keep(f"{name}@parameters.{key}", value) for key, value in parameters.items()}
            entry = {
                "module": name,
                # The package and the class: packages have different modules of the same name.
                "class": f"{type(module).__module__.partition('.')[0]}.{type(module).__name__}",
                "call": at - 1,
                "inputs": {key: self._keep(f"{prefix}.inputs.{key}", value) for key, value in parts.items()},
                "parameters": self._known[name],
                "settings": {
                    key: value
                    for key, value in vars(module).items()
                    if _is_setting(value) and not key.startswith("_") and key != "training"
                },
            }
            self._entries.append(entry)
            begun.append(entry)

        def after(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            begun = self._begun.get(name)
            entry = begun.pop() if begun else None
            if entry is None:
                return
            size = _bytes([output])
            if self.bytes + size > self._max_bytes:
                # The call counts as one that was not recorded, and says so.
                entry["missing"] = f"its outputs have {size:,} bytes, and {self._max_bytes - self.bytes:,} of max_bytes were left"
                self.left_out += 1
            else:
                entry["outputs"] = self._keep(f"{name}@{entry['call']}.output", output)
            self._ended(entry)

        return before, after

    def _keep(self, key: str, value: Any) -> Any:
        """The entry of a value in the index; tensors are cloned."""
        if isinstance(value, _PLAIN):
            return value
        if isinstance(value, (list, tuple)):
            return [self._keep(f"{key}.{at}", one) for at, one in enumerate(value)]
        if isinstance(value, dict):
            return {"dict": {str(name): self._keep(f"{key}.{name}", one) for name, one in value.items()}}
        if not _is_tensor(value):
            return {"type": type(value).__name__}
        try:
            stored = Stored.of(value)
        except (TypeError, ValueError, RuntimeError) as error:
            return {"type": type(value).__name__, "error": str(error)}
        stored = Stored(numpy.array(stored.bits, copy=True, order="C"), stored.dtype)
        entry = {"tensor": key, "file": _SHARDS.format(self._shards + 1)}
        self._held[key] = stored
        self._waiting += stored.bits.nbytes
        self.bytes += stored.bits.nbytes
        if self._waiting >= _SHARD:
            self._write()
        return entry

    def _write(self) -> None:
        """Writes the tensors that are held."""
        if self._held:
            write(self.folder / _SHARDS.format(self._shards + 1), self._held, {})
            self._shards += 1
            self._held, self._waiting = {}, 0

    def _ended(self, entry: dict[str, Any]) -> None:
        """Writes a call that has ended, first its tensors: a process that is killed leaves all calls that had ended."""
        self._write()
        with open(self.folder / LOG, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def _is_setting(value: Any) -> bool:
    """True if an attribute is a number, a word, or a tuple of these."""
    return isinstance(value, _PLAIN) or isinstance(value, tuple) and all(isinstance(one, _PLAIN) for one in value)


def _is_tensor(x: Any) -> bool:
    return isinstance(x, numpy.ndarray) or hasattr(x, "__dlpack__") and hasattr(x, "shape")


def _bytes(values: Iterable[Any]) -> int:
    """The bytes of tensors in arguments or outputs."""
    size = 0
    for value in values:
        if isinstance(value, (list, tuple)):
            size += _bytes(value)
        elif isinstance(value, dict):
            size += _bytes(value.values())
        elif _is_tensor(value):
            size += int(value.nbytes)
    return size


def record(
    model: Any,
    folder: str | os.PathLike[str],
    modules: str | Iterable[str] = "*",
    *,
    max_calls: int = 1000,
    max_bytes: int = 4 << 30,
    parameters: bool = True,
) -> Recording:
    """Records calls of a model's modules into ``folder``, as long as a ``with`` block runs.

        with ulplab.record(model, "calls", "layers.*.norm"):
            model(tokens)
        print(ulplab.replay("calls"))          # each call of a known module, judged

    ``modules`` are patterns of names as ``model.named_modules()`` has them (``*`` and ``?``, as of files; several in a list).
    Each call keeps its inputs, which are cloned before the module runs, so that one that writes to them changes nothing; its
    outputs, cloned when it returns; the parameters of the module, once; and its attributes that are numbers, words or tuples of
    them. Calls beyond ``max_calls``, and those that ``max_bytes`` bytes of tensors have no room for, are left out, and an
    UlplabWarning says how many. ``parameters=False`` leaves weights out.

    The model is torch's, or anything with ``named_modules()`` whose modules have ``register_forward_pre_hook`` and
    ``register_forward_hook``. Graphs that were compiled or captured before call no hooks. The folder is made; it must be empty.
    What is in it docs/python.md says. Each call is written when it ends: if the process is killed, those that had ended can be replayed.
    ``ulplab compare WANT GOT`` compares two recordings of the same calls.

    ValueError if no module has such a name, or the folder is not empty.
    """
    chosen = [modules] if isinstance(modules, str) else list(modules)
    for name, value in (("max_calls", max_calls), ("max_bytes", max_bytes)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} = {value!r}, expected an integer of at least 1")
    return Recording(model, Path(folder), chosen, max_calls, max_bytes, parameters)
