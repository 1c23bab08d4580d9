"""Recordings, capsules and reports that must not pass: what was not recorded whole, or is not what was computed, is never "passed".

Each case names what is done to a recording and the reader that would have let it pass. Further cases of these kinds: recordings of other
programs, modules with more outputs, files that are cut at other places.
"""

import json
import shutil
import warnings

import ml_dtypes
import numpy as np
import pytest
from kernels import normal
from test_record import Linear, Module, RMSNorm, SiluAndMul

import ulplab
from ulplab import _files

pytest_plugins = ["pytester"]
RNG = np.random.default_rng(3)
BF16 = ml_dtypes.bfloat16


class Net(Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.act = RMSNorm(32), Linear(weight=normal(RNG, 48, 32)), SiluAndMul()

    def forward(self, x):
        return self.act(self.up(self.norm(x)))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    with ulplab.record(net := Net(), folder):
        net(normal(RNG, 6, 32))
    return folder


class Dump:
    """A copy of the recording that is changed."""

    def __init__(self, folder):
        self.folder = folder
        self.doc = json.loads((folder / "recording.json").read_text())

    def call(self, module):
        return next(call for call in self.doc["calls"] if call["module"] == module)

    def save(self):
        (self.folder / "recording.json").write_text(json.dumps(self.doc))

    def entry(self, module, name):
        call = self.call(module)
        kept = {"input": call["inputs"].get("arg_0"), "weight": call["parameters"].get("weight"), "output": call["outputs"]}
        return kept[name]

    def tensor(self, module, name, change):
        """Changes the elements of a tensor in its file."""
        entry = self.entry(module, name)
        path = self.folder / entry["file"]
        tensors, metadata = _files.read(path)
        held = {other: stored.bits.view(ml_dtypes.bfloat16) for other, stored in tensors.items()}
        held[entry["tensor"]] = change(held[entry["tensor"]].copy())
        _files.write(path, held, metadata)


def elements(change):
    return lambda dump, module: dump.tensor(module, "output", change)


def of_input(change):
    return lambda dump, module: dump.tensor(module, "input", change)


def of_weight(change):
    return lambda dump, module: dump.tensor(module, "weight", change)


def entry(name, change):
    def call(dump, module):
        change(dump.entry(module, name), dump, module)
        dump.save()

    return call


def of_call(change):
    def call(dump, module):
        change(dump.call(module))
        dump.save()

    return call


def put(x, at, value):
    x[at] = value
    return x


def shard(change):
    def call(dump, module):
        path = dump.folder / dump.entry(module, "output")["file"]
        path.write_bytes(change(path.read_bytes()))

    return call


ALL, WITH_WEIGHT = ("norm", "up", "act"), ("norm", "up")
# What is done, what would have let it pass, the modules, the change.
CHANGES = [
    ("the output is zeros", "nothing that is not finite", ALL, elements(lambda x: x * 0)),
    ("one element of the output is zero", "a share of elements", ALL, elements(lambda x: put(x, (2, 3), 0))),
    ("one element has the other sign", "a cosine", ALL, elements(lambda x: put(x, (2, 3), -x[2, 3]))),
    ("one element is NaN", "max() of the rest", ALL, elements(lambda x: put(x, (5, 1), np.nan))),
    ("one element is infinite", "a ratio that is NaN", ALL, elements(lambda x: put(x, (5, 1), np.inf))),
    ("all of the output is NaN", "NaN compares as False", ALL, elements(lambda x: np.full_like(x, np.nan))),
    ("rows are turned by one", "norms of rows", ALL, elements(lambda x: np.roll(x, 1, 0))),
    ("columns are turned by one", "sums of rows", ALL, elements(lambda x: np.roll(x, 1, 1))),
    ("the last row is that before it", "all but the tail", ALL, elements(lambda x: put(x, -1, x[-2]))),
    ("the output has a gain of 2 %", "a cosine", ALL, elements(lambda x: (x.astype(np.float32) * 1.02).astype(BF16))),
    ("the output has a row less", "the shorter of both", ALL, elements(lambda x: x[:-1])),
    ("the output has a row more", "the shorter of both", ALL, elements(lambda x: np.concatenate([x, x[-1:]]))),
    ("the output has one row for all", "broadcasting", ALL, elements(lambda x: x[:1])),
    ("the output has no rows", "all() of nothing", ALL, elements(lambda x: x[:0])),
    ("the output is turned over", "as many elements", ALL, elements(lambda x: np.ascontiguousarray(x.T))),
    ("the output is in f8, which is coarse", "the spacing of got", ALL, lambda dump, module: coarse(dump, module)),
    ("the input is zeros", "the output alone", ALL, of_input(lambda x: x * 0)),
    ("the input is NaN", "NaN meets anything", ALL, of_input(lambda x: np.full_like(x, np.nan))),
    ("the input has no rows", "all() of nothing", ALL, of_input(lambda x: x[:0])),
    ("the input has a column less", "a slice of the weight", WITH_WEIGHT, of_input(lambda x: x[:, :-1])),
    ("the weight is zeros", "the output alone", WITH_WEIGHT, of_weight(lambda x: x * 0)),
    ("the weight is NaN", "NaN meets anything", WITH_WEIGHT, of_weight(lambda x: np.full_like(x, np.nan))),
    ("the weight has a row less", "the shorter of both", ("up",), of_weight(lambda x: x[:-1])),
    ("the output is the input of another call", "any tensor of the file", ("norm",),
        entry("output", lambda e, d, m: e.update(d.entry(m, "input")))),
    ("the output names no tensor", "a tensor of that file", ALL, entry("output", lambda e, d, m: e.update(tensor="none"))),
    ("the output is in no file", "the calls that can be read", ALL, entry("output", lambda e, d, m: e.update(file="none.safetensors"))),
    ("the output is outside of the folder", "any path", ALL, entry("output", lambda e, d, m: e.update(file="../x.safetensors"))),
    ("the output is a number", "a tensor of one element", ALL, of_call(lambda call: call.update(outputs=1.0))),
    ("the call has no outputs", "all() of nothing", ALL, of_call(lambda call: call.update(outputs=None))),
    ("the call has no inputs", "inputs of the call before", ALL, of_call(lambda call: call.update(inputs={}))),
    ("the call has no parameters", "a weight of ones", WITH_WEIGHT, of_call(lambda call: call.update(parameters={}))),
    ("another class", "the name of the module", ALL, of_call(lambda call: call.update({"class": "own.Kernel"}))),
    ("another ε", "that of the class", ("norm",), of_call(lambda call: call.update(settings={"variance_epsilon": 0.5}))),
    ("no ε", "that of other classes", ("norm",), of_call(lambda call: call.update(settings={}))),
    ("an argument that is not known", "those that are", ALL, of_call(lambda call: call["inputs"].update(other=3.0))),
    ("the file of the output is empty", "the calls that can be read", ALL, shard(lambda raw: b"")),
    ("the file of the output is cut", "the elements that are there", ALL, shard(lambda raw: raw[:-8])),
    ("the file of the output is cut in its header", "a header of no tensors", ALL, shard(lambda raw: raw[:40])),
]


def coarse(dump, module):
    at = dump.entry(module, "output")
    path = dump.folder / at["file"]
    tensors, metadata = _files.read(path)
    held = {name: stored.bits.view(BF16) for name, stored in tensors.items()}
    held[at["tensor"]] = held[at["tensor"]].astype(ml_dtypes.float8_e5m2)
    _files.write(path, held, metadata)


@pytest.mark.parametrize(
    ("module", "change"),
    [pytest.param(module, change, id=f"{module}: {name} ({instead})") for name, instead, modules, change in CHANGES for module in modules],
)
def test_a_changed_recording_does_not_pass(recorded, tmp_path, module, change):
    shutil.copytree(recorded, tmp_path / "copy")
    change(Dump(tmp_path / "copy"), module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = ulplab.replay(tmp_path / "copy")
        except ValueError:
            return
    ours = [one for one in found if f": {module}, " in one.path]
    assert ours, str(found)
    assert not any(one.verdict == "passed" for one in ours), str(found)


def test_there_are_enough_and_the_right_one_passes(recorded):
    assert sum(len(modules) for _, _, modules, _ in CHANGES) >= 90
    found = ulplab.replay(recorded)
    assert [one.verdict for one in found] == ["passed"] * 3 + ["not judged"]


# Folders in which there is nothing to judge.
FOLDERS = {
    "nothing (a list without failures)": {},
    "an empty recording (all() of nothing)": {"recording.json": '{"ulplab_recording": 1, "left_out": 0, "calls": []}'},
    "a recording of another version (known keys)": {"recording.json": '{"ulplab_recording": 99, "left_out": 0, "calls": []}'},
    "no JSON (an empty list of calls)": {"recording.json": "{"},
    "a list (an empty list of calls)": {"recording.json": "[]"},
    "an empty log of FlashInfer (all() of nothing)": {"metadata.jsonl": ""},
    "an empty dump of msProbe (all() of nothing)": {"dump.json": '{"data": {}}'},
    "a text (names of files)": {"notes.txt": "PASS"},
}


@pytest.mark.parametrize("files", FOLDERS.values(), ids=FOLDERS)
def test_a_folder_without_calls_is_an_error(tmp_path, files):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    try:
        found = ulplab.replay(tmp_path)
    except ValueError:
        return
    assert found and not found.of("passed"), str(found)
