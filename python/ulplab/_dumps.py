"""Tensors and calls that other programs have recorded, as they lie in files. No pickle is read but by the caller's own torch."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy

from ._files import Stored, read


@dataclass
class Recorded:
    """A call that was recorded."""

    #: The function's name, as the recording program has it.
    function: str
    #: Where it lies.
    path: str
    #: Its arguments by name: tensors, numbers and words; ``arg_0`` where a name is not known.
    given: dict[str, Any] = field(default_factory=dict)
    #: Its outputs in their order; empty if there are none.
    outputs: list[Any] = field(default_factory=list)
    #: Why it cannot be judged, if something is missing.
    missing: str = ""


def tensors(path: Path) -> dict[str, Any]:
    """The tensors of PATH.safetensors, or of PATH.pt by the caller's torch."""
    if path.with_suffix(".safetensors").exists():
        return dict(read(path.with_suffix(".safetensors"))[0])
    if not path.with_suffix(".pt").exists():
        return {}
    return _by_torch(path.with_suffix(".pt"), "record with FLASHINFER_DUMP_SAFETENSORS=1")


def _by_torch(path: Path, instead: str) -> Any:
    """What torch reads in a .pt file, if the caller has imported it."""
    torch = sys.modules.get("torch")
    if torch is None:
        raise ValueError(f"{path} is read by torch only, and it is not imported; {instead}")
    return torch.load(path, map_location="cpu", weights_only=True)


def _lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            try:
                found.append(json.loads(line))
            except ValueError as error:
                raise ValueError(f"{path}:{number}: no JSON: {error}") from error
            if not isinstance(found[-1], dict):
                raise ValueError(f"{path}:{number}: expected an object")
    return found


def _names(signature: str) -> list[str]:
    """The parameters of what `str(inspect.signature(f))` gives."""
    inner, depth, names, part = signature.partition("(")[2], 0, [], ""
    for letter in inner:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0 or depth < 0:
            name = re.match(r"\s*\**(\w+)", part)
            names += [name[1]] if name else []
            part = ""
            if depth < 0:
                break
        else:
            part += letter
    return names


def flashinfer(folder: Path) -> list[Recorded]:
    """The calls that FlashInfer's flight recorder wrote: a folder each, with metadata.jsonl.

    What a wrapper was given when it was made and planned is given to its later calls, as ``init.NAME`` and ``plan.NAME``.
    """
    calls: list[Recorded] = []
    wrappers: dict[tuple[Any, Any], dict[str, Any]] = {}
    for file in sorted(folder.rglob("metadata.jsonl")):
        here = file.parent
        if file.parent.parent.name != "graph_flushes" and (here / "graph_flushes").is_dir():
            # Its replays are read one by one.
            continue
        call = Recorded(here.name, str(here))
        calls.append(call)
        try:
            about = _lines(file)[-1]
            call.function = str(about["function_name"])
            given = {**tensors(here / "inputs"), **about.get("input_metadata", {})}
            outputs = tensors(here / "outputs")
        except (ValueError, KeyError, IndexError, OSError) as error:
            call.missing = f"{type(error).__name__}: {error}"
            continue
        names = _names(str(about.get("function_signature", "")))
        for key, value in given.items():
            # Tensors within a tuple have its name and their places.
            position = re.fullmatch(r"arg_(\d+)((?:__\d+)*)", key)
            if position and int(position[1]) < len(names):
                key = names[int(position[1])] + position[2]
            call.given[key.removeprefix("kwarg_")] = value
        part = {"__init__": "init", "plan": "plan", "begin_forward": "plan"}.get(call.function.rpartition(".")[2])
        if "self_id" in about:
            own = wrappers.setdefault((about.get("process_id"), about["self_id"]), {})
            if part:
                # A plan takes the place of the one before it.
                for name in [name for name in own if name.startswith(f"{part}.")]:
                    del own[name]
                own.update({f"{part}.{name}": value for name, value in call.given.items() if name != "self"})
                if part == "init":
                    own.setdefault("init.kv_layout", "NHD")
                calls.remove(call)
                continue
            call.given |= {name: value for name, value in own.items() if name.startswith("plan.") or name == "init.kv_layout"}
        order = sorted(outputs, key=lambda key: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", key)])
        call.outputs = [outputs[key] for key in order]
        if about.get("execution_status") == "inputs_saved":
            call.missing = "it has inputs and no outputs: the call has crashed, or was cut off"
        elif not outputs:
            call.missing = "it has no outputs"
    return calls


def msprobe(folder: Path) -> list[Recorded]:
    """The calls of msProbe's dump.json, with tensors in .npy files (``tensor.file_format: npy``)."""
    calls = []
    for file in sorted(folder.rglob("dump.json")):
        try:
            data = json.loads(file.read_text(encoding="utf-8"))["data"]
        except (ValueError, KeyError) as error:
            raise ValueError(f"{file}: no dump of msProbe: {error!r}") from error

        def value(entry: Any, root: Path = file.parent / "dump_tensor_data") -> Any:
            if not isinstance(entry, dict):
                return entry
            name = entry.get("data_name")
            if not name:
                return entry.get("value", entry)
            path = root / str(name)
            if path.suffix == ".npy":
                found = numpy.load(path, allow_pickle=False)
                # bfloat16 is written as float32.
                dtype = str(entry.get("dtype", "")).removeprefix("torch.")
                exact = dtype == "bfloat16" and found.dtype == numpy.float32
                return Stored((found.view(numpy.uint32) >> 16).astype(numpy.uint16), dtype) if exact else found
            return _by_torch(path, "dump with file_format npy")

        for name, entry in data.items():
            if not name.endswith(".forward") and ".forward." not in name:
                continue
            call = Recorded(name, f"{file}: {name}")
            calls.append(call)
            try:
                call.given = {f"arg_{at}": value(one) for at, one in enumerate(entry.get("input_args") or [])}
                call.given |= {key: value(one) for key, one in (entry.get("input_kwargs") or {}).items()}
                call.given |= {key: value(one) for key, one in (entry.get("parameters") or {}).items()}
                call.outputs = [value(one) for one in entry.get("output") or []]
            except (ValueError, OSError) as error:
                call.missing = f"{type(error).__name__}: {error}"
            if not call.outputs and not call.missing:
                call.missing = "it has no outputs"
    return calls


def recording(folder: Path) -> list[Recorded]:
    """The calls that `ulplab.record` kept in a folder: calls.jsonl, and shards of tensors."""
    if not (folder / "calls.jsonl").is_file():
        return []
    kept: dict[str, Stored] = {}
    for file in sorted(folder.glob("*.safetensors")):
        kept |= read(file)[0]

    def value(name: Any) -> Stored:
        if name not in kept:
            raise ValueError(f"no file has the tensor '{name}'")
        return kept[name]

    calls = []
    for number, line in enumerate(_lines(folder / "calls.jsonl"), 1):
        if "module" not in line:
            continue
        module = str(line["module"])
        call = Recorded(str(line.get("class", module)), f"{folder / 'calls.jsonl'}:{number}: {module}")
        calls.append(call)
        if "error" in line:
            call.missing = f"the module has raised {line['error']}"
            continue
        try:
            call.given = {key: value(name) for key, name in (line.get("inputs") or {}).items()} | (line.get("words") or {})
            call.given |= {f"self.{key}": value(name) for key, name in (line.get("parameters") or {}).items()}
            call.given |= {f"self.{key}": one for key, one in (line.get("attributes") or {}).items()}
            call.outputs = [value(name) for name in (line.get("outputs") or {}).values()]
        except (ValueError, AttributeError) as error:
            call.missing = f"{type(error).__name__}: {error}"
        if not call.outputs and not call.missing:
            call.missing = "it has no outputs"
    return calls


def read_workloads(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The workloads of a flashinfer-bench file of JSON lines: ``definition``, ``uuid``, ``axes`` and ``inputs``.

    Inputs that lie in a safetensors file are read (paths are looked for beside the file and in the folders above it), scalars are
    numbers, and random ones are None: nobody has recorded them. Hand the tensors to a kernel, and its output to `assert_close`.
    ValueError if a file is wrong.
    """
    path, found = Path(path), []
    for number, line in enumerate(_lines(path), 1):
        workload = line.get("workload")
        if not isinstance(workload, dict):
            raise ValueError(f"{path}:{number}: there is no 'workload'")
        inputs: dict[str, Any] = {}
        for name, entry in (workload.get("inputs") or {}).items():
            kind = entry.get("type") if isinstance(entry, dict) else None
            if kind == "safetensors":
                roots = [root for root in (path.parent, *path.parents) if (root / str(entry.get("path"))).exists()]
                if not roots:
                    raise ValueError(f"{path}:{number}: '{name}': there is no file {entry.get('path')}")
                held = read(roots[0] / entry["path"])[0]
                if entry.get("tensor_key") not in held:
                    raise ValueError(
                        f"{path}:{number}: '{name}': {entry['path']} has no '{entry.get('tensor_key')}'; it has {', '.join(held)}"
                    )
                inputs[name] = held[entry["tensor_key"]]
            elif kind in ("scalar", "random"):
                inputs[name] = entry.get("value")
            else:
                raise ValueError(f"{path}:{number}: '{name}' is of type {kind!r}, expected safetensors, scalar or random")
        found.append(
            {"definition": line.get("definition"), "uuid": workload.get("uuid"), "axes": workload.get("axes") or {}, "inputs": inputs}
        )
    return found


def read_polygraphy(path: str | os.PathLike[str]) -> dict[str, list[dict[str, numpy.ndarray]]]:
    """The outputs in a file that ``polygraphy run --save-outputs`` wrote: by runner, a dictionary of arrays for each iteration."""

    def array(entry: Any) -> numpy.ndarray:
        while isinstance(entry, dict) and not isinstance(entry.get("array"), str):
            entry = entry["values"] if "values" in entry else entry["array"]
        return numpy.load(io.BytesIO(base64.b64decode(entry["array"])), allow_pickle=False)

    try:
        runs = json.loads(Path(path).read_text(encoding="utf-8"))["lst"]
        return {
            runner: [{name: array(one) for name, one in run["outputs"].items()} for run in iterations] for runner, iterations in runs
        }
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: no outputs of Polygraphy: {error!r}") from error
