"""Capsules, reports and recorded calls that are judged by a function of torch."""

import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
import ulplab  # noqa: E402
from ulplab import _files, _records, _sources  # noqa: E402

RNG = torch.Generator().manual_seed(0)
X, W, B = (torch.randn(shape, generator=RNG) for shape in ((8, 32), (16, 32), (16,)))
pytest_plugins = ["pytester"]


def reference(x, w, b, scale=1.0):
    return F.gelu(F.linear(x, w, b) * scale / 16).softmax(-1)


def kept(folder, ask):
    """The record of an assertion that fails."""
    recorder = _records.Recorder(str(folder))
    _records.start(recorder)
    try:
        with pytest.raises(AssertionError) as why:
            ask()
    finally:
        _records.start(None)
    (record,) = (one for one in recorder.records if one["verdict"] == "failed")
    return record, folder / record["capsule"], str(why.value)


def test_a_capsule_has_what_was_asked_and_no_function(tmp_path):
    grad = torch.randn(8, 16, generator=RNG).bfloat16()
    inputs = dict(x=X.bfloat16(), w=W.bfloat16(), b=None, scale=0.5)
    x = inputs["x"].clone().requires_grad_()
    out = reference(**{**inputs, "x": x})
    (dx,) = torch.autograd.grad(out, x, grad)
    words = dict(inputs=inputs, grads={"dx": "x"}, grad_output=grad, rounds="every_step")
    right = {"out": out.detach(), "dx": dx}
    ulplab.assert_close(right, op=reference, **words)
    record, path, said = kept(tmp_path, lambda: ulplab.assert_close({**right, "dx": dx.roll(1, 0)}, op=reference, **words))
    tensors, metadata = _files.read(path)
    assert sorted(tensors) == ["got.dx", "got.out", "grad_output", "inputs.w", "inputs.x"] and tensors["inputs.x"].dtype == "bfloat16"
    about = json.loads(metadata["ulplab"])
    assert about["call"] == {"accumulate": "f32", "rounds": "every_step", "dtype": None}
    assert about["function"]["name"] == "reference" and len(about["function"]["sha256"]) == 64 and b"def reference" not in path.read_bytes()
    file = about["function"]["importable"]
    assert file.endswith("test_function_records.py:reference") or file == "test_function_records:reference"
    for op in (reference, file):
        with pytest.raises(AssertionError) as again:
            ulplab.reproduce(path, op=op)
        assert str(again.value).splitlines()[:3] == said.splitlines()[:3]
    assert f"op={file!r}" in record["reproduce"]


def test_a_capsule_of_another_function_is_not_judged(tmp_path, monkeypatch):
    _, path, _ = kept(tmp_path, lambda: ulplab.assert_close(2 * reference(X, W, B), op=reference, inputs=(X, W, B)))
    place = tmp_path / "mine.py"
    for op, why in (
        (None, r"not judged: the assertion was of the function 'reference' \(.*:\d+\), which the capsule does not hold; say op='"),
        (kept, r"not judged: the source of 'reference' \(.*\) is another one than when the assertion failed"),
        ("no_such_module:reference", "not judged: no_such_module:reference cannot be imported: ModuleNotFoundError"),
        (f"{place}:reference", "not judged: .*mine.py:reference cannot be imported: FileNotFoundError"),
        ("reference", "not judged: reference: expected MODULE:FUNCTION or FILE.py:FUNCTION"),
        ("torch:no_such", "not judged: torch:no_such: there is no such function"),
    ):
        with pytest.raises(ValueError, match=why):
            ulplab.reproduce(path, op=op)
    place.write_text("raise RuntimeError('planted')")
    with pytest.raises(ValueError, match="not judged: .* cannot be imported: RuntimeError: planted"):
        ulplab.reproduce(path, op=f"{place}:reference")
    # What a file of others says is called by nobody.
    tensors, metadata = _files.read(path)
    about = json.loads(metadata["ulplab"])
    about["function"] |= {"importable": "os:abort", "sha256": None, "name": "abort"}
    _files.write(tmp_path / "changed", tensors, {"ulplab": json.dumps(about)})
    with pytest.raises(ValueError, match="not judged: .* the capsule does not hold; say op='os:abort'"):
        ulplab.reproduce(tmp_path / "changed")
    changes = [{"inputs": None}, {"inputs": {"tensor": "none"}}, {"got": {"dict": []}}, {"grads": {"dict": [["dx", 0]]}}]
    changes += [{"call": {"atol": 1}}]
    for change in changes:
        about = json.loads(metadata["ulplab"])
        about |= change
        _files.write(tmp_path / "changed", tensors, {"ulplab": json.dumps(about)})
        with pytest.raises(ValueError, match="not judged|none that a report of ulplab has written"):
            ulplab.reproduce(tmp_path / "changed", op=reference)
    with pytest.raises(TypeError, match="op is for an assertion with a function"):
        _, plain, _ = kept(tmp_path, lambda: ulplab.assert_close(2 * X, X, rtol=1e-3))
        ulplab.reproduce(plain, op=reference)


def test_functions_without_a_name_are_given_again(tmp_path):
    scale = 2.0
    function = lambda x: x * scale  # noqa: E731
    record, path, said = kept(tmp_path, lambda: ulplab.assert_close(X + 0, op=function, inputs=(X,)))
    assert "op=FUNCTION)  # '" in record["reproduce"]
    with pytest.raises(AssertionError) as again:
        ulplab.reproduce(path, op=function)
    assert str(again.value) == said
    ulplab.reproduce(path, op=lambda x: x + 0)
    # Nothing is pickled.
    record = {}
    with pytest.raises(AssertionError):
        recorder = _records.Recorder(str(tmp_path))
        _records.start(recorder)
        try:
            ulplab.assert_close(X + 0, op=lambda x, dtype: x.to(dtype) * 2, inputs=(X, torch.float32))
        finally:
            _records.start(None)
            (record,) = recorder.records
    assert "capsule" not in record and "inputs.1 is a dtype, which is not kept in a file" in record["capsule_error"]


SUITE = """
import pytest, torch, ulplab
from helper import half

X = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))

def reference(x):
    return half(x).sin()

def test_right():
    ulplab.assert_close((X / 2).sin(), op=reference, inputs=(X,))

def test_wrong():
    ulplab.assert_close(X.sin(), op=reference, inputs=(X,))

def test_not_judged():
    with pytest.raises(ValueError, match="not judged: .*the derivative of sin"):
        ulplab.assert_close((X.sin() * 0).sqrt(), op=lambda x: (x.sin() * 0).sqrt(), inputs=(X,))
"""


def test_a_report_has_the_line_that_asks_again(pytester, monkeypatch):
    folder = pytester.mkdir("tests")
    (folder / "test_mine.py").write_text(SUITE)
    (folder / "helper.py").write_text("def half(x):\n    return x / 2\n")
    result = pytester.runpytest_inprocess("--ulplab-report", "out", "tests")
    assert {name: result.parseoutcomes()[name] for name in ("passed", "failed")} == {"passed": 2, "failed": 1}
    assert "<h1>Assertions: 1 failed, 0 warning, 1 not judged, 1 passed</h1>" in (pytester.path / "out/index.html").read_text()
    records = [json.loads(line) for line in (pytester.path / "out/assertions.jsonl").read_text().splitlines()]
    (failed,) = (record for record in records if record["verdict"] == "failed")
    (passed,) = (record for record in records if record["verdict"] == "passed")
    assert failed["asked"] == passed["asked"] == "op = reference" and 0 < passed["ratio"] < 1 < failed["ratio"]
    assert f"op='tests{os.sep}test_mine.py:reference'" in failed["reproduce"]

    line = failed["reproduce"].replace("python", sys.executable, 1)
    again = subprocess.run(line, shell=True, cwd=pytester.path, capture_output=True, text=True)
    assert again.returncode == 1 and f"AssertionError: {failed['message'].splitlines()[0]}" in again.stderr, again.stderr
    (folder / "test_mine.py").write_text(SUITE.replace(".sin()", ".cos()", 1))
    monkeypatch.chdir(pytester.path)
    with pytest.raises(ValueError, match="not judged: the source of 'reference' .tests/test_mine.py:7. is another one"):
        ulplab.reproduce(f"out/{failed['capsule']}", op="tests/test_mine.py:reference")


def test_functions_have_names():
    for function in (reference, F.rms_norm, _sources.about, _records.Recorder.keep):
        assert _sources.found(_sources.about(function)["importable"]) is function
    for nameless in (lambda x: x, torch.nn.Linear(2, 2), pytest.mark):
        assert _sources.about(nameless)["importable"] is None


class Norm(torch.nn.Module):
    def __init__(self, size, eps=1e-5):
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.randn(size, generator=RNG)), eps
        self.gain = 1.0

    def forward(self, x, residual=None, *, mask=None):
        x = x if residual is None else x + residual
        return self.gain * F.rms_norm(x, x.shape[-1:], self.weight, self.eps)


class Pair(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = Norm(32), Norm(32), torch.nn.Linear(32, 8)

    def forward(self, x):
        y = self.one(x)
        return self.head(self.two(y, x, mask=None)), {"y": y}


def plain_norm(x, residual=None, *, weight, eps):
    x = x if residual is None else x + residual
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def test_recorded_calls_are_judged_by_functions(tmp_path):
    model = Pair()
    with ulplab.record(model, tmp_path / "right"):
        model(X)
    references = {"Norm": plain_norm, "torch.Linear": lambda x, weight, bias: x @ weight.T + bias}
    found = ulplab.replay(tmp_path / "right", modules=references)
    assert sorted((call.verdict, call.op) for call in found) == [
        ("not judged", ""), ("passed", "<lambda>"), ("passed", "plain_norm"), ("passed", "plain_norm"),
    ]  # fmt: skip
    assert all(0 < call.ratio < 1 for call in found.of("passed"))
    # A module is called with the recorded parameters, not with its own.
    assert len(ulplab.replay(tmp_path / "right", modules={"Norm": Norm(32)}).of("passed")) == 3
    model.two.gain = 1.001
    with ulplab.record(model, tmp_path / "wrong"):
        model(X)
    (failed,) = ulplab.replay(tmp_path / "wrong", modules=references).of("failed")
    assert failed.op == "plain_norm" and "two, call 0" in failed.path and "looks like a gain of 1.001" in failed.message
    assert ".Norm as plain_norm, error / bound " in str(ulplab.replay(tmp_path / "wrong", modules=references))


def test_what_a_function_does_not_take_is_not_judged(tmp_path):
    model = torch.nn.Sequential(Norm(32), Pair())
    with ulplab.record(model, tmp_path / "calls"):
        model(X)

    def reasons(**modules):
        found = ulplab.replay(tmp_path / "calls", modules=modules)
        assert not found.of("failed")
        return "\n".join(call.message for call in found.of("not judged"))

    assert "does not take what was recorded: got an unexpected keyword argument 'weight'" in reasons(Norm=lambda x: x)
    assert "does not take what was recorded: missing a required argument: 'variance_epsilon'" in reasons(
        Norm=lambda x, residual=None, *, weight, variance_epsilon: x
    )
    assert "random numbers" in reasons(Norm=lambda x, residual=None, *, weight: x * torch.rand(32))
    assert "its parameter 'one.weight' was not recorded" in reasons(Pair=Pair())
    assert "gives a float, expected a tensor" in reasons(Norm=lambda x, residual=None, *, weight: 1.0)
    assert "gives 2 outputs, and got is one tensor" in reasons(Norm=lambda x, residual=None, *, weight: (x, x))
    with pytest.raises(TypeError, match="rounds is for modules={CLASS: function}"):
        ulplab.replay(tmp_path / "calls", rounds="as_written")


def test_recorded_functions_are_judged_by_functions(tmp_path):
    from test_replay import record

    (tmp_path / "calls").mkdir()
    for scale, got in ((2.0, (X @ W.T) * 2), (3.0, (X @ W.T) * 2)):
        record(tmp_path / "calls", "my_kernel", (X.numpy(), W.numpy(), scale), {"enable_pdl": True}, got.numpy())
    assert [call.message for call in ulplab.replay(tmp_path / "calls")] == ["the function is not known"] * 2
    found = ulplab.replay(tmp_path / "calls", modules={"my_kernel": lambda x, w, scale: (x @ w.T) * scale})
    assert [call.verdict for call in found] == ["failed", "passed"] and "looks like a gain of 0.66" in found[0].message


def test_eager_modules_in_bf16_round_as_written(tmp_path):
    model = Norm(32).bfloat16()
    with ulplab.record(model, tmp_path / "calls"):
        model(X.bfloat16())
    (end,) = ulplab.replay(tmp_path / "calls", modules={"Norm": plain_norm})
    (every,) = ulplab.replay(tmp_path / "calls", modules={"Norm": plain_norm}, rounds="every_step")
    assert every.verdict == "passed" and every.ratio < 1 and end.ratio > every.ratio
