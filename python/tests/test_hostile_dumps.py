"""Dumps of others that hold anything: a call that cannot be read is not judged, a file that is none is named. Nothing else is raised.

ULPLAB_DUMPS sets how many are tried. Further ones of this kind: files of torch, links out of a folder, other encodings.
"""

import base64
import io
import json
import os
import random
import shutil
import warnings

import kernels
import numpy as np
import pytest
from test_operations import normal
from test_record import Model
from test_replay import record as flight

import ulplab
from ulplab import _records

DUMPS = int(os.environ.get("ULPLAB_DUMPS", "300"))
RNG = np.random.default_rng(0)
# What a value of a file is replaced by.
VALUES = [None, True, -1, 0, 3, 2**63, 10**30, 1e308, "", "x", "../x", "/etc/passwd", "\0", "a\n::error::b", "\u202e", [], [[]], {},
    {"tensor": 1}, [None]]
HEADERS = [
    "{'descr': '<f4', 'fortran_order': False, 'shape': (%d,), }" % 10**30,
    "{'descr': '<f4', 'fortran_order': False, 'shape': (%d,), }" % 2**40,
    "{'descr': '<f4', 'fortran_order': False, 'shape': (-3,), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (3,",
    "(" * 3000,
    "{}",
]


def numpy_file(header):
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + b"\0" * 12


def recording(folder):
    with ulplab.record(Model(), folder) as recording:
        recording._chosen[0][1](normal(RNG, 4, 32))


def cut_recording(folder):
    recording(folder)
    about = json.loads((folder / "recording.json").read_text())
    (folder / "recording.json").unlink()
    (folder / "recording.jsonl").write_text("".join(json.dumps(call) + "\n" for call in about["calls"]))


def flights(folder):
    folder.mkdir()
    x, w = normal(RNG, 4, 16), normal(RNG, 16)
    flight(folder, "rmsnorm", (x, w, 1e-5), {}, kernels.rmsnorm(RNG, x, w, 1e-5))
    flight(folder, "softmax", (x,), {"temperature": 0.5}, kernels.softmax(RNG, x, 2.0))
    (folder / "session.jsonl").write_text(json.dumps({"dump_dir": "x/y"}) + "\n")


def msprobe(folder):
    (folder / "dump_tensor_data").mkdir(parents=True)
    x = RNG.standard_normal((4, 8)).astype(np.float32)
    np.save(folder / "dump_tensor_data/x.npy", x)
    np.save(folder / "dump_tensor_data/y.npy", np.exp(x) / np.exp(x).sum(-1, keepdims=True))
    entry = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [4, 8]}
    calls = {"input_args": [{**entry, "data_name": "x.npy"}], "input_kwargs": {"dim": {"value": -1}},
        "output": [{**entry, "data_name": "y.npy"}]}
    data = {f"Functional.softmax.{at}.forward": calls for at in range(2)}
    (folder / "dump.json").write_text(json.dumps({"task": "tensor", "level": "L1", "data": data}))


def workloads(folder):
    recording(folder)
    entry = {"type": "safetensors", "path": "calls-00001.safetensors", "tensor_key": "norm@0.inputs.arg_0"}
    lines = [{"definition": "d", "workload": {"uuid": "u", "axes": {"n": 4}, "inputs": {"x": entry, "s": {"type": "scalar", "value": 3}}}}]
    (folder / "w.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def polygraphy(folder):
    folder.mkdir()
    buffer = io.BytesIO()
    np.save(buffer, np.arange(6.0))
    values = {"array": base64.b64encode(buffer.getvalue()).decode(), "polygraphy_class": "ndarray"}
    outputs = {"y": {"values": values, "polygraphy_class": "LazyArray"}}
    (folder / "p.json").write_text(json.dumps({"lst": [["trt", [{"outputs": outputs, "runtime": 0.1}]]]}))


def capsule(folder):
    folder.mkdir()
    x = RNG.standard_normal((4, 8)).astype(np.float32)
    call = {"op": "softmax", "output": None, "accumulate": "f32", "mean_error": "fail", "dtype": None}
    _records.capsule(folder / "c.safetensors", {"got": x, "x": x, "scale": 1.0}, call, None, {"test": "t", "message": "m"})


KINDS = {
    "recording": (recording, ulplab.replay),
    "cut recording": (cut_recording, ulplab.replay),
    "flights": (flights, ulplab.replay),
    "msprobe": (msprobe, ulplab.replay),
    "workloads": (workloads, lambda folder: ulplab.read_workloads(folder / "w.jsonl")),
    "polygraphy": (polygraphy, lambda folder: ulplab.read_polygraphy(folder / "p.json")),
    "capsule": (capsule, lambda folder: ulplab.reproduce(folder / "c.safetensors")),
}


def places(value, path=()):
    """Where the values of a JSON text are."""
    yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in parts:
        yield from places(one, (*path, key))


def replaced(value, path, by):
    if not path:
        return by
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], by)
    return copy


def mutated(raw, name, chance):
    """A file with something wrong."""
    way = chance.randrange(8)
    if way == 0:
        return raw[: chance.randrange(len(raw) + 1)]
    if way == 1:
        return b""
    if way == 2:
        at = chance.randrange(max(1, len(raw)))
        return raw[:at] + bytes([chance.randrange(256)]) + raw[at + 1 :]
    if name.endswith(".npy"):
        return numpy_file(chance.choice(HEADERS))
    if way == 3 and not name.endswith(".safetensors"):
        return b"[" * 100_000
    head = 8 if name.endswith(".safetensors") else 0
    size = int.from_bytes(raw[:8], "little") if head else len(raw)
    lines = raw[head : head + size].splitlines() if name.endswith(".jsonl") else [raw[head : head + size]]
    at = chance.randrange(len(lines))
    try:
        value = json.loads(lines[at])
    except ValueError:
        return raw[::-1]
    value = replaced(value, chance.choice(list(places(value))), chance.choice(VALUES))
    lines[at] = json.dumps(value).encode()
    text = b"\n".join(lines)
    return (len(text).to_bytes(8, "little") if head else b"") + text + raw[head + size :]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_but_what_is_said(kind, tmp_path):
    make, read = KINDS[kind]
    right = tmp_path / "right"
    make(right)
    files = sorted(file for file in right.rglob("*") if file.is_file())
    for seed in range(DUMPS // len(KINDS) + 1):
        chance = random.Random(seed)
        wrong = tmp_path / "wrong"
        shutil.copytree(right, wrong)
        for file in chance.sample(files, chance.choice([1, 1, 2]) if len(files) > 1 else 1):
            here = wrong / file.relative_to(right)
            here.write_bytes(mutated(file.read_bytes(), file.name, chance))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                print(read(wrong))
            except ValueError as error:
                assert str(wrong) in str(error), f"seed {seed}: {error}"
            except OSError as error:
                assert error.filename, f"seed {seed}: {error!r}"
            except AssertionError:
                assert kind == "capsule", f"seed {seed}"
            except BaseException as error:
                raise RuntimeError(f"seed {seed}: {type(error).__name__}") from error
        shutil.rmtree(wrong)
