"""Tensors and calls that other programs have recorded, as they lie in files. No pickle is read but by the caller's own torch."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterator

import numpy

from ._files import Stored, clean, header, inside, npy, parsed, read, tensor
from ._recorder import INDEX, LOG, VERSION


@dataclass
class Recorded:
    """A call that was recorded."""

    #: The function's name, as the recording program has it.
    function: str
    #: Its file or folder.
    path: str
    #: Its arguments by name: tensors, numbers and words; ``arg_0`` where a name is not known.
    given: dict[str, Any] = field(default_factory=dict)
    #: Its outputs in their order; empty if there are none.
    outputs: list[Any] = field(default_factory=list)
    #: Why it cannot be judged, if something is missing.
    missing: str = ""
    #: A possible fault of the recording, for a call that fails.
    caution: str = ""
    #: The settings of its object: attributes of a module that are numbers, words or tuples of them; of a wrapper, the arguments of
    #: ``__init__`` and ``plan``.
    settings: dict[str, Any] = field(default_factory=dict)


@contextlib.contextmanager
def _reading(call: Recorded, what: str = "") -> Iterator[None]:
    """Reads a call. Anything wrong with its files makes this call one that is not judged, and no other."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 -- files of others may hold anything
        about = f"{what}: " if what else ""
        call.missing = f"{about}{type(error).__name__}: {clean(error)}"


def _of_torch(path: Path, instead: str) -> Any:
    """The content of a .pt file, read by the caller's torch. ``instead`` says how to record without it."""
    torch = sys.modules.get("torch")
    if torch is None:
        raise ValueError(f"{path} is read by torch only, and it is not imported; {instead}")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001 -- torch raises errors of many kinds for a file that is broken
        raise ValueError(f"{path}: torch cannot read it: {type(error).__name__}: {error}") from error


def _named_of_torch(path: Path, instead: str) -> dict[str, Any]:
    """The tensors by name that a file of torch holds. ValueError if it holds something else, too."""
    found = _of_torch(path, instead)
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds a {type(found).__name__}, expected tensors by name")
    return found


def tensors(path: Path) -> dict[str, Any]:
    """The tensors of PATH.safetensors, or of PATH.pt by the caller's torch."""
    if path.with_suffix(".safetensors").exists():
        return dict(read(path.with_suffix(".safetensors"))[0])
    if not path.with_suffix(".pt").exists():
        return {}
    return _named_of_torch(path.with_suffix(".pt"), "record with FLASHINFER_DUMP_SAFETENSORS=1")


def _lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines."""
    found = []
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: no text in UTF-8: {error}") from error
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                found.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}:{number}: no JSON: {clean(error)}") from error
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


def _rebuilt(value: Any, held: dict[str, Any]) -> Any:
    """An argument in FlashInfer's metadata, with its tensors; members of enumerations by their values."""
    if isinstance(value, dict) and value.get("tensor_key") in held:
        return held[value["tensor_key"]]
    if isinstance(value, dict) and value.get("type") in ("tuple", "list") and not value.get("truncated"):
        return [_rebuilt(one, held) for one in value.get("items", [])]
    if isinstance(value, dict) and value.get("type") == "enum":
        return value.get("value")
    return value


def _in_order(folder: Path) -> list[Path]:
    """The metadata of FlashInfer's calls in the order in which they were recorded: that of session.jsonl. Folders that it does not
    name come last, in the order of their names, which begin with the time in milliseconds."""
    places: dict[Path, int] = {}
    for session in sorted(folder.rglob("session.jsonl")):
        for line in session.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                parts = Path(json.loads(line)["dump_dir"]).parts
            except (ValueError, KeyError, TypeError, RecursionError):
                # A process that was killed leaves half a line. What is judged is in the folders of the calls.
                continue
            # The recording may have been moved: what is above the folder of a call is not looked at.
            of_call = parts[-3:] if parts[-2:-1] == ("graph_flushes",) else parts[-1:]
            places.setdefault(session.parent.joinpath(*of_call), len(places))
    return sorted(folder.rglob("metadata.jsonl"), key=lambda file: (places.get(file.parent, len(places)), file))


# What is called before a wrapper computes.
_READYING = ("__init__", "plan")
_OF_GRAPH = (
    "it was recorded after its CUDA graph had run: an input that a later call of the graph writes to is not what it was given"
)


def flashinfer(folder: Path) -> list[Recorded]:
    """The calls that FlashInfer's flight recorder wrote: a folder each, with metadata.jsonl. What readies a wrapper is no call of
    its own: it is in the settings of those that follow."""
    calls = []
    objects: dict[tuple[Any, Any], dict[str, Any]] = {}
    for file in _in_order(folder):
        here = file.parent
        if file.parent.parent.name != "graph_flushes" and (here / "graph_flushes").is_dir():
            # Its replays are read one by one.
            continue
        call = Recorded(here.name, str(here))
        calls.append(call)
        with _reading(call):
            if _flashinfer_call(file, here, call, objects):
                calls.pop()
    return calls


def _flashinfer_call(file: Path, here: Path, call: Recorded, objects: dict[tuple[Any, Any], dict[str, Any]]) -> bool:
    """Reads a call, and says whether it readies a wrapper, which is no call of its own."""
    about = _lines(file)[-1]
    call.function = str(about["function_name"])
    wrapper, _, method = call.function.rpartition(".")
    about_object = objects.setdefault((about.get("process_id"), about["self_id"]), {}) if wrapper else {}
    # If it cannot be read, what was there before must not be taken for it; a new object may have an old one's number.
    about_object.pop(method, None)
    if method == "__init__":
        about_object.clear()
    call.caution = _OF_GRAPH if about.get("graph_capture") else ""
    held = tensors(here / "inputs")
    # Tensors in a list are there under names of their own.
    given = {key: value for key, value in held.items() if re.fullmatch(r"arg_\d+|kwarg_(?!.*__\d+$).*", key)}
    given |= {key: _rebuilt(value, held) for key, value in about.get("input_metadata", {}).items()}
    outputs = tensors(here / "outputs")
    names = _names(str(about.get("function_signature", "")))
    for key, value in given.items():
        position = re.fullmatch(r"arg_(\d{1,9})", key)
        if position and int(position[1]) < len(names):
            key = names[int(position[1])]
        call.given[key.removeprefix("kwarg_")] = value
    if wrapper:
        call.given.pop("self", None)
        if method in _READYING:
            about_object[method] = call.given
            return True
        call.settings = dict(about_object)
    order = sorted(outputs, key=lambda key: [(len(part), part) if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", key)])
    call.outputs = [outputs[key] for key in order]
    if about.get("execution_status") == "graph_capture_pending_flush":
        call.missing = "it was captured in a CUDA graph, of which no run was recorded"
    elif about.get("execution_status") == "inputs_saved":
        call.missing = "it has inputs and no outputs: the call has crashed, or was cut off"
    elif not outputs:
        call.missing = "it has no outputs; what a call writes to its arguments is not recorded"
    return False


def msprobe(folder: Path) -> list[Recorded]:
    """The calls of msProbe's dump.json, with tensors in .npy files (``tensor.file_format: npy``)."""
    calls = []
    for file in sorted(folder.rglob("dump.json")):
        about = parsed(file)
        data = about.get("data") if isinstance(about, dict) else None
        if not isinstance(data, dict):
            raise ValueError(f"{file}: no dump of msProbe: there is no object 'data'")

        def value(entry: Any, root: Path = file.parent / "dump_tensor_data") -> Any:
            if not isinstance(entry, dict):
                return entry
            name = entry.get("data_name")
            if not name:
                return entry.get("value", entry)
            path = inside(root, name)
            if path.suffix == ".npy":
                if not path.is_file():
                    raise ValueError(f"{path}: no file")
                with open(path, "rb") as opened:
                    found = npy(opened, str(path))
                # bfloat16 is written as float32.
                dtype = str(entry.get("dtype", "")).removeprefix("torch.")
                exact = dtype == "bfloat16" and found.dtype == numpy.float32
                return Stored((found.view(numpy.uint32) >> 16).astype(numpy.uint16), dtype) if exact else found
            return _of_torch(path, "dump with file_format npy")

        for name, entry in data.items():
            if not name.endswith(".forward") and ".forward." not in name:
                continue
            call = Recorded(name, f"{file}: {name}")
            calls.append(call)
            with _reading(call):
                call.given = {f"arg_{at}": value(one) for at, one in enumerate(entry.get("input_args") or [])}
                call.given |= {key: value(one) for key, one in (entry.get("input_kwargs") or {}).items()}
                call.given |= {key: value(one) for key, one in (entry.get("parameters") or {}).items()}
                call.outputs = [value(one) for one in entry.get("output") or []]
            if not call.outputs and not call.missing:
                call.missing = "it has no outputs"
    return calls


def recordings(folder: Path) -> list[Recorded]:
    """The calls that `ulplab.record` kept; the function is the module's package and class."""
    calls = []
    whole = sorted(folder.rglob(INDEX))
    # A process that was killed leaves the calls that had ended, and no index.
    cut = [file for file in sorted(folder.rglob(LOG)) if file.parent / INDEX not in whole]
    for file in whole + cut:
        # The header of each file of tensors, and the bytes behind it.
        shards: dict[str, tuple[dict[str, Any], numpy.ndarray]] = {}
        for entry in _recorded(file) if file in whole else _ended(file):
            call = Recorded("a call", str(file.parent))
            calls.append(call)
            with _reading(call):
                _recorded_call(call, entry, file.parent, shards)
        if file in cut:
            why = "the recording was cut off: it has the calls that had ended, and no later ones"
            calls.append(Recorded("recording", str(file), missing=why))
    return calls


def _recorded(file: Path) -> list[Any]:
    """The calls of a recording that has ended."""
    about = parsed(file)
    version, entries = (about.get("ulplab_recording"), about.get("calls")) if isinstance(about, dict) else (None, None)
    if version != VERSION or not isinstance(entries, list):
        raise ValueError(f"{file}: ulplab_recording = {clean(repr(version))}, expected {VERSION} and a list of calls")
    return entries


def _ended(file: Path) -> list[Any]:
    """The calls of a recording that was cut off. The last line may be half a one."""
    found = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            found.append(json.loads(line))
    return found


def _recorded_call(call: Recorded, entry: dict[str, Any], root: Path, shards: dict[str, tuple[dict[str, Any], numpy.ndarray]]) -> None:
    """Reads a call of a recording."""

    def value(one: Any) -> Any:
        if isinstance(one, list):
            return [value(part) for part in one]
        if not isinstance(one, dict) or "tensor" not in one:
            return one
        file, name = inside(root, one["file"]), one["tensor"]
        if str(file) not in shards:
            shards[str(file)] = header(file)
        entries, data = shards[str(file)]
        if name not in entries:
            raise ValueError(f"{file} has no tensor {clean(repr(name))}")
        return tensor(file, name, entries[name], data)

    call.function, call.settings = str(entry["class"]), dict(entry["settings"])
    call.path = f"{root}: {entry['module']}, call {entry['call']}"
    call.given = {name: value(one) for name, one in {**entry["inputs"], **entry["parameters"]}.items()}
    outputs = value(entry.get("outputs", []))
    call.outputs = outputs if isinstance(outputs, list) else [outputs]
    if not call.outputs:
        call.missing = str(entry.get("missing", "it has inputs and no outputs: the module has raised an error"))


# What computes the first input of a module in a layer: the one before it. Where another came before, its input was not recorded.
_BEFORE = {
    "input_layernorm": ("embed_tokens", "down_proj"),
    "post_attention_layernorm": ("o_proj",),
    "norm": ("down_proj",),
    "qkv_proj": ("input_layernorm",),
    "o_proj": ("attn",),
    "gate_up_proj": ("post_attention_layernorm",),
    "act_fn": ("gate_up_proj",),
    "down_proj": ("act_fn",),
}


def passes(folder: Path) -> list[Recorded]:
    """The calls of SGLang's ``--debug-tensor-dump-output-folder``, and of vLLM's dumps of that form: PassN.pt has the outputs of all
    modules without children, by name, in the order in which they ran. Inputs are the outputs of the module before."""
    calls = []
    ranks = {file.parent for file in folder.rglob("Pass*.pt")}
    for file in sorted(folder.rglob("Pass*.pt")):
        try:
            found = _named_of_torch(file, "import torch")
        except ValueError as error:
            calls.append(Recorded(file.stem, str(file), missing=str(error)))
            continue
        before, hidden, residual = "", None, None
        for name, output in found.items():
            call = Recorded(str(name), f"{file}: {name}", settings={"ranks": len(ranks)})
            calls.append(call)
            part = call.function.rpartition(".")[2]
            call.outputs = list(output) if isinstance(output, (list, tuple)) else [output]
            if part in _BEFORE and before not in _BEFORE[part]:
                call.missing = f"its input was not recorded: {before or 'nothing'} came before it"
            elif part in _BEFORE and part.endswith("norm") and len(ranks) > 1:
                call.missing = f"its input may be one of {len(ranks)} terms, of which each rank has one"
            call.given = {"arg_0": hidden}
            if part in _BEFORE and part.endswith("norm"):
                call.given["residual"] = residual if len(call.outputs) == 2 else None
                residual = call.outputs[1] if len(call.outputs) == 2 else hidden
            before, hidden = part, call.outputs[0] if call.outputs else None
    return calls


def dumper(folder: Path) -> list[Recorded]:
    """The calls of SGLang's dumper with ``DUMPER_NON_INTRUSIVE_MODE=all``: a file for each input, output and parameter, which is
    named after its module."""
    # By rank and module.
    calls: list[tuple[tuple[str, str], Recorded]] = []
    parameters: dict[tuple[str, str], dict[str, Any]] = {}
    for here in sorted({file.parent for file in folder.rglob("*___name=*.pt")}):
        files = []
        for file in here.glob("*___name=*.pt"):
            tags = {name: value for name, _, value in (tag.partition("=") for tag in file.stem.split("___"))}
            index = tags.get("dump_index", "0")
            files.append((tags.get("rank", "0"), int(index) if re.fullmatch("[0-9]{1,18}", index) else 0, tags["name"], file))
        # Calls that have begun, by rank and module.
        begun: dict[tuple[str, str], Recorded] = {}
        for rank, _, name, file in sorted(files):
            kind, _, rest = name.partition("__")
            of_call = re.fullmatch(r"(?:(.*)\.)?(?:inputs\.(\w+)((?:\.\w+)?)|output(?:\.(\w+))?)", rest)
            if kind == "param":
                module, _, parameter = rest.rpartition(".")
                parameters.setdefault((rank, module), {})[parameter] = file
            if kind != "non_intrusive" or not of_call:
                continue
            module, argument, place = of_call[1] or "", of_call[2], of_call[3]
            call = begun.get((rank, module))
            if call is None or argument is not None and call.outputs:
                call = begun[rank, module] = Recorded(module, f"{here}: {module}, rank {rank}")
                calls.append(((rank, module), call))
            with _reading(call, str(file)):
                held = _of_torch(file, "import torch")
                value, about = held["value"], held["meta"]
                call.settings["ranks"] = (about.get("sglang_parallel_info") or {}).get("tp_size") or about.get("world_size", 1)
                if argument is None:
                    call.outputs.append(value)
                else:
                    call.given[(f"arg_{argument}" if argument.isdigit() else argument) + place] = value
    for of_module, call in calls:
        with _reading(call):
            for name, file in parameters.get(of_module, {}).items():
                call.given[name] = _of_torch(file, "import torch")["value"]
        if not call.outputs and not call.missing:
            call.missing = "it has inputs and no outputs"
    return [call for _, call in calls]


def read_workloads(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The workloads of a flashinfer-bench file of JSON lines: ``definition``, ``uuid``, ``axes`` and ``inputs``.

    Inputs that lie in a safetensors file are read (paths are looked for next to the file and in the folders above it), scalars are
    numbers, and random ones are None: nobody has recorded them. Hand the tensors to a kernel, and its output to `assert_close`.
    ValueError if a file is wrong.
    """
    path, found = Path(path), []
    for number, line in enumerate(_lines(path), 1):
        workload = line.get("workload")
        if not isinstance(workload, dict):
            raise ValueError(f"{path}:{number}: there is no 'workload'")
        inputs: dict[str, Any] = {}
        given = workload.get("inputs") or {}
        if not isinstance(given, dict):
            raise ValueError(f"{path}:{number}: 'inputs' is a {type(given).__name__}, expected an object")
        for name, entry in given.items():
            where = f"{path}:{number}: {clean(repr(name))}"
            kind = entry.get("type") if isinstance(entry, dict) else None
            if kind == "safetensors":
                inputs[name] = _of_workload(path, where, entry.get("path"), entry.get("tensor_key"))
            elif kind in ("scalar", "random"):
                inputs[name] = entry.get("value")
            else:
                raise ValueError(f"{where} is of type {clean(repr(kind))}, expected safetensors, scalar or random")
        found.append(
            {"definition": line.get("definition"), "uuid": workload.get("uuid"), "axes": workload.get("axes") or {}, "inputs": inputs}
        )
    return found


def _of_workload(path: Path, where: str, name: Any, key: Any) -> Stored:
    """A tensor of a file next to a workload, or in a folder above it."""
    try:
        file = next((file for root in (path.parent, *path.parents) if (file := inside(root, name)).is_file()), None)
        if file is None:
            raise ValueError(f"there is no file {clean(name)}")
        held = read(file)[0]
        if not isinstance(key, str) or key not in held:
            raise ValueError(f"{clean(name)} has no {clean(repr(key))}; it has {clean(', '.join(held))}")
        return held[key]
    except (ValueError, OSError) as error:
        raise ValueError(f"{where}: {error}") from error


def read_polygraphy(path: str | os.PathLike[str]) -> dict[str, list[dict[str, numpy.ndarray]]]:
    """The outputs in a file that ``polygraphy run --save-outputs`` wrote: by runner, a dictionary of arrays for each iteration."""

    def array(entry: Any) -> numpy.ndarray:
        while isinstance(entry, dict) and not isinstance(entry.get("array"), str):
            entry = entry["values"] if "values" in entry else entry["array"]
        return npy(io.BytesIO(base64.b64decode(entry["array"], validate=True)), "array")

    try:
        runs = parsed(path)["lst"]
        return {
            str(runner): [{str(name): array(one) for name, one in run["outputs"].items()} for run in iterations]
            for runner, iterations in runs
        }
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 -- files of others may hold anything
        raise ValueError(f"{path}: no outputs of Polygraphy: {type(error).__name__}: {clean(error)}") from error
