"""What the modules of a live model read and write, kept in safetensors files. No library is imported for it."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import warnings
from pathlib import Path
from typing import Any, Iterator

import numpy

from . import _files
from ._tensors import UlplabWarning

# A file is ended once it has so many bytes.
_SHARD = 512 << 20
# Numbers of a module that say what it computes, under the names that libraries give them.
_WORDS = ("eps", "variance_epsilon", "epsilon", "dim", "normalized_shape", "zero_centered_gamma", "approximate")
_PARAMETERS = ("weight", "bias")


def _patterns(at: str | list[str] | tuple[str, ...]) -> list[str]:
    """Patterns of names, with each alternative of ``{a,b}`` written out. ValueError for braces that do not close."""
    found = []
    for pattern in [at] if isinstance(at, str) else list(at):
        left = [pattern]
        while left:
            one = left.pop()
            braces = re.search(r"\{([^{}]*)\}", one)
            if braces:
                left += [one[: braces.start()] + part + one[braces.end() :] for part in braces[1].split(",")]
            elif "{" in one or "}" in one:
                raise ValueError(f"at = {pattern!r}: a brace has no partner")
            else:
                found.append(one)
    return found


def _is_tensor(x: Any) -> bool:
    return isinstance(x, (numpy.ndarray, numpy.generic)) or hasattr(x, "__dlpack__")


def _copied(x: Any) -> _files.Stored:
    """The bits of a tensor, in memory of its own: what is changed in place later does not change them."""
    stored = _files.Stored.of(numpy.asarray(x) if isinstance(x, numpy.generic) else x)
    return _files.Stored(numpy.array(stored.bits, copy=True, order="C"), stored.dtype)


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The tensors and plain values within arguments or outputs, with their names."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _leaves(one, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)) and not hasattr(value, "__dlpack__"):
        for at, one in enumerate(value):
            yield from _leaves(one, f"{name}.{at}" if name else str(at))
    else:
        yield name, value


class Recording:
    """A recording under way: a context manager. ``print`` says what was kept, and what was left out."""

    def __init__(self, model: Any, path: str | os.PathLike[str], at: Any, inputs: bool, calls: int, size: int) -> None:
        self.path = Path(path)
        self.model, self.inputs, self.most, self.size = model, inputs, calls, size
        #: Calls of modules that were kept.
        self.calls = 0
        #: Bytes of tensors that were kept.
        self.bytes = 0
        #: Why calls were left out, and how many.
        self.left_out: dict[str, int] = {}
        modules = [(name, module) for name, module in model.named_modules() if name]
        patterns = _patterns(at)
        self._chosen = [(name, module) for name, module in modules if any(fnmatch.fnmatchcase(name, one) for one in patterns)]
        unmatched = [one for one in patterns if not fnmatch.filter((name for name, _ in modules), one)]
        if unmatched:
            known = ", ".join(name for name, _ in modules[:8]) + (", ..." if len(modules) > 8 else "")
            raise ValueError(f"at: no module is called '{unmatched[0]}'; the model has {known or 'no modules'}")
        if self.path.exists() and not (self.path.is_dir() and not any(self.path.iterdir())):
            raise ValueError(f"{self.path} exists: a recording is written to a new folder")
        self._counts: dict[str, int] = {}
        self._pending: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
        self._shard: dict[str, _files.Stored] = {}
        self._shards = 0
        self._parameters: set[str] = set()
        self._handles: list[Any] = []
        self._log: Any = None

    def __enter__(self) -> Recording:
        self.path.mkdir(parents=True, exist_ok=True)
        self._log = open(self.path / "calls.jsonl", "w", encoding="utf-8")
        for name, module in self._chosen:
            self._handles.append(module.register_forward_pre_hook(self._before(name), with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._after(name, module), with_kwargs=True))
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        for handle in self._handles:
            handle.remove()
        # A call that has begun and not ended has raised.
        for name, given, words in self._pending:
            self._line({"module": name, "inputs": self._put(f"{name}.{self._count(name)}.in", given), "words": words, "error": repr(error)})
        self._flush()
        about = {"calls": self.calls, "bytes": self.bytes, "left_out": self.left_out}
        self._line({"recording": about})
        self._log.close()
        if self.left_out:
            why = "; ".join(f"{count:,} because {why}" for why, count in self.left_out.items())
            warnings.warn(f"{self.path}: calls were left out: {why}", UlplabWarning, stacklevel=2)

    def __str__(self) -> str:
        left = "".join(f"; {count:,} left out because {why}" for why, count in self.left_out.items())
        return f"{self.path}: {self.calls:,} calls of {len(self._counts):,} modules, {self.bytes:,} bytes{left}"

    def _before(self, name: str) -> Any:
        def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not self._room(name):
                return
            given, words = {}, {}
            # What a module changes in place must be kept as it was.
            for key, value in _leaves({**{f"arg_{at}": one for at, one in enumerate(args)}, **kwargs}, ""):
                if _is_tensor(value):
                    given[key] = _copied(value) if self.inputs else None
                elif isinstance(value, (bool, int, float, str)) or value is None:
                    words[key] = value
                else:
                    words[key] = f"<{type(value).__name__}>"
            self._pending.append((name, given, words))

        return hook

    def _after(self, name: str, of: Any) -> Any:
        def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any) -> None:
            at = next((at for at in reversed(range(len(self._pending))) if self._pending[at][0] == name), None)
            if at is None:
                return
            _, given, words = self._pending.pop(at)
            given = {key: value for key, value in given.items() if value is not None}
            got = {key: _copied(value) for key, value in _leaves(outputs, "") if _is_tensor(value)}
            size = sum(one.bits.nbytes for one in (*given.values(), *got.values()))
            if self.bytes + size > self.size:
                self._leave_out(f"max_bytes = {self.size:,} are kept")
                return
            call = self._count(name)
            self._counts[name] = call + 1
            self.calls += 1
            self._line(
                {
                    "module": name,
                    "class": type(of).__name__,
                    "inputs": self._put(f"{name}.{call}.in", given),
                    "words": words,
                    "outputs": self._put(f"{name}.{call}.out", got),
                    "parameters": self._of_module(name, of),
                    "attributes": {word: getattr(of, word) for word in _WORDS if isinstance(getattr(of, word, None), (bool, int, float, str))},
                }
            )
            if sum(one.bits.nbytes for one in self._shard.values()) >= _SHARD:
                self._flush()

        return hook

    def _room(self, name: str) -> bool:
        if self._count(name) < self.most:
            return True
        self._leave_out(f"max_calls = {self.most:,} of a module are kept")
        return False

    def _leave_out(self, why: str) -> None:
        self.left_out[why] = self.left_out.get(why, 0) + 1

    def _count(self, name: str) -> int:
        return self._counts.get(name, 0)

    def _of_module(self, name: str, module: Any) -> dict[str, str]:
        """The parameters of a module, kept once, as they are at its first call."""
        found = {}
        for parameter in _PARAMETERS:
            value = getattr(module, parameter, None)
            if value is None or not _is_tensor(value):
                continue
            key = f"{name}.{parameter}"
            if self.inputs and key not in self._parameters:
                self._parameters.add(key)
                self._put(key, {"": _copied(value)})
            if key in self._parameters:
                found[parameter] = key
        return found

    def _put(self, prefix: str, tensors: dict[str, Any]) -> dict[str, str]:
        names = {}
        for key, value in tensors.items():
            name = f"{prefix}.{key}" if key else prefix
            self._shard[name] = value
            self.bytes += value.bits.nbytes
            names[key] = name
        return names

    def _line(self, line: dict[str, Any]) -> None:
        self._log.write(json.dumps(line) + "\n")
        self._log.flush()

    def _flush(self) -> None:
        if self._shard:
            _files.write(self.path / f"{self._shards:05}.safetensors", self._shard, {"ulplab": "recording"})
            self._shards, self._shard = self._shards + 1, {}


def record(
    model: Any,
    path: str | os.PathLike[str],
    at: str | list[str] | tuple[str, ...] = "*",
    inputs: bool = True,
    max_calls: int = 64,
    max_bytes: int = 20 << 30,
) -> Recording:
    """Keeps what modules of a torch model read and write while it runs, in a new folder ``path``:

        with ulplab.record(model, "run", at="model.layers.*.{input_layernorm,mlp}"):
            model(ids)

    ``at`` are patterns of module names (``*`` also matches dots; ``{a,b}`` is either). Inputs are copied before a module runs, outputs
    after it, so that what is changed in place later stays as it was: also the residual that vLLM's norms add up in place. Tensors lie in
    ``00000.safetensors``, ... as ``MODULE.CALL.in.NAME`` and ``MODULE.CALL.out.NAME``, where calls of a module count from 0, positional
    arguments are ``arg_0``, ..., and what is in a tuple has its number behind a dot; weights and biases as ``MODULE.weight``. ``calls.jsonl``
    has a line for each call. ``inputs=False`` keeps outputs only.

    ``ulplab compare RUN OTHER`` compares two recordings tensor by tensor; :func:`ulplab.replay` computes known modules once more. At most
    ``max_calls`` calls of a module and ``max_bytes`` bytes are kept; what is left out is counted, in ``calls.jsonl`` and by a warning.
    ValueError if no module matches, or the folder is not empty. A model that is compiled or captured as a graph does not call hooks.
    """
    if not hasattr(model, "named_modules"):
        raise TypeError(f"model is a {type(model).__name__}, expected a module with named_modules, as torch's are")
    if max_calls < 1 or max_bytes < 1:
        raise ValueError(f"max_calls = {max_calls}, max_bytes = {max_bytes}, expected at least 1")
    return Recording(model, path, at, inputs, max_calls, max_bytes)
