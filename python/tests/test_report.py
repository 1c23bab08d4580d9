"""Reports: pages, capsules that reproduce what failed, and properties of JUnit."""

import json
import subprocess
import sys
import xml.etree.ElementTree as xml

import numpy as np
import pytest
from ml_dtypes import bfloat16

import ulplab
from ulplab import _files

pytest_plugins = ["pytester"]

SUITE = """
import ml_dtypes, numpy as np, pytest, ulplab

RNG = np.random.default_rng(0)
X = RNG.standard_normal((50, 64)).astype(ml_dtypes.bfloat16)
W = RNG.standard_normal(64).astype(np.float32)
Y = ulplab.reference.rmsnorm(x=X, weight=W).value.astype(np.float32)

def test_right():
    ulplab.assert_close(Y, op="rmsnorm", inputs=dict(x=X, weight=W))

def test_wrong():
    wrong = ulplab.reference.rmsnorm(x=X, weight=W, fault="neighbour_row").value
    ulplab.assert_close(wrong.astype(ml_dtypes.bfloat16), op="rmsnorm", inputs=dict(x=X, weight=W))

def test_by_numbers():
    ulplab.assert_close(Y * 1.01, Y, rtol=1e-3, atol=0)

def test_biased():
    x = np.repeat(X.astype(np.float32), 20, 0) + RNG.standard_normal((1000, 64)).astype(np.float32)
    y = ulplab.reference.rmsnorm(x=x).value * (1 + 1.5e-6)
    ulplab.assert_close(y.astype(np.float32), op="rmsnorm", inputs=dict(x=x))
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_what_failed_can_be_asked_again(pytester, workers):
    if workers:
        pytest.importorskip("xdist")
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_subprocess(
        "--ulplab-report", "out", "--junit-xml", "junit.xml", *(["-n", str(workers)] if workers else [])
    )
    result.assert_outcomes(passed=2, failed=2, warnings=1)
    result.stdout.fnmatch_lines(["4 assertions, 2 failed: *index.html", "python -c *ulplab.reproduce*"])
    records = [json.loads(line) for line in (pytester.path / "out/assertions.jsonl").read_text().splitlines()]
    found = {record["test"].rpartition("::")[2]: record for record in records}
    assert {name: record["verdict"] for name, record in found.items()} == {
        "test_right": "passed",
        "test_wrong": "failed",
        "test_by_numbers": "failed",
        "test_biased": "warning",
    }
    assert 0 < found["test_right"]["ratio"] < 1 < found["test_wrong"]["ratio"]
    assert found["test_right"]["where"].endswith("what_failed_can_be_asked_again.py:9")
    for name, said in [("test_wrong", "looks like neighbour_row"), ("test_by_numbers", "|got - want| <= 0 + 0.001 * |want|")]:
        path = pytester.path / "out" / found[name]["capsule"]
        tensors, _ = _files.read(path)
        assert tensors["got"].shape == (50, 64)
        assert name != "test_wrong" or tensors["x"].dtype == "bfloat16" and tensors["weight"].shape == (64,)
        with pytest.raises(AssertionError) as error:
            ulplab.reproduce(path)
        worst = found[name]["message"].partition("got ")[2].partition(" want")[0]
        assert said in str(error.value) and worst.partition(",")[0].rpartition(" ")[2] in str(error.value)
    again = subprocess.run(
        found["test_wrong"]["reproduce"].replace("python", sys.executable, 1), shell=True, capture_output=True, text=True
    )
    assert again.returncode != 0 and "looks like neighbour_row" in again.stderr
    page = (pytester.path / "out/index.html").read_text()
    assert "Assertions: 2 failed, 1 warning, 1 passed" in page and "errors point away from zero" in page
    assert page.index("test_wrong") < page.index("test_biased") < page.index("test_right")
    properties = {
        case.get("name"): {entry.get("name"): entry.get("value") for entry in case.iter("property")}
        for case in xml.parse(pytester.path / "junit.xml").getroot().iter("testcase")
    }
    assert properties["test_wrong"]["ulplab.got"] == "failed: op = rmsnorm"
    assert float(properties["test_wrong"]["ulplab.ratio"]) > 1 and properties["test_wrong"]["ulplab.capsule"].startswith("capsules/")
    assert properties["test_right"]["ulplab.got"] == "passed: op = rmsnorm"


@pytest.mark.parametrize("row", [0, 33, 49])
def test_of_large_tensors_the_rows_around_the_worst_element_are_kept(tmp_path, monkeypatch, row):
    monkeypatch.setattr(ulplab._records, "_WHOLE", 0)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 10, 64)).astype(bfloat16)
    got = ulplab.reference.softmax(x=x).value.astype(bfloat16)
    got.reshape(50, 64)[row, 7] *= 2
    recorder = ulplab._records.Recorder(str(tmp_path))
    ulplab._records.start(recorder)
    try:
        with pytest.raises(AssertionError) as error:
            ulplab.assert_close(got, op="softmax", inputs={"x": x})
    finally:
        ulplab._records.start(None)
    path = tmp_path / recorder.records[0]["capsule"]
    assert _files.read(path)[0]["x"].shape == (5, 64)
    with pytest.raises(AssertionError) as again:
        ulplab.reproduce(path)
    off = [str(said.value).partition("off by ")[2].partition("\n")[0] for said in (error, again)]
    assert off[0] and off[0] == off[1]


def test_without_a_report_nothing_is_written(pytester):
    pytester.makepyfile(SUITE)
    pytester.runpytest_subprocess().assert_outcomes(passed=2, failed=2, warnings=1)
    assert not list(pytester.path.rglob("*.jsonl")) and not list(pytester.path.rglob("*.safetensors"))


def test_the_environment_asks_for_it(pytester, monkeypatch):
    monkeypatch.setenv("ULPLAB_REPORT", "there")
    pytester.makepyfile("import ulplab\ndef test_it():\n    ulplab.assert_close([1.0, 2.0], [1.0, 2.0], rtol=0)\n")
    pytester.runpytest_subprocess().assert_outcomes(passed=1)
    assert "1 passed" in (pytester.path / "there/index.html").read_text()
    pytester.makefile(".txt", there="")
    pytester.runpytest_subprocess("--ulplab-report", "there.txt").stderr.fnmatch_lines(["*--ulplab-report there.txt: *"])


@pytest.mark.parametrize("dtype", [np.float64, np.float16, bfloat16, np.int8, np.bool_])
def test_tensors_go_to_files_and_back(tmp_path, dtype):
    x = np.arange(6).reshape(2, 3).astype(dtype)
    _files.write(tmp_path / "x", {"a": x, "b": x[:, ::2]}, {"k": "v"})
    tensors, metadata = _files.read(tmp_path / "x")
    assert metadata == {"k": "v"} and tensors["a"].dtype == np.dtype(dtype).name
    assert (tensors["a"].widened() == x.astype(np.float64)).all() and tensors["b"].shape == (2, 2)


def test_files_that_are_not_what_they_seem(tmp_path):
    path = tmp_path / "x"
    header = json.dumps({"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 4]}}).encode()
    for raw, said in [
        (b"", "0 bytes are no safetensors file"),
        (b"\xff" * 9, "no safetensors file"),
        ((3).to_bytes(8, "little") + b"{{{", "not JSON"),
        ((2).to_bytes(8, "little") + b"[]", "no object"),
        (len(header).to_bytes(8, "little") + header + b"1234", r"'a' is F32 \[9\] in bytes 0 to 4 of 4"),
    ]:
        path.write_bytes(raw)
        with pytest.raises(ValueError, match=said):
            _files.read(path)
    _files.write(path, {}, {})
    with pytest.raises(ValueError, match="none that a report of ulplab has written"):
        ulplab.reproduce(path)
