"""Sums are in f64 where all floating-point tensors are: a kernel that adds in f32 fails there, and passes anywhere else."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import functions as known  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import ulplab  # noqa: E402
from ulplab import _files, _records  # noqa: E402

RNG = torch.Generator().manual_seed(0)
X, W = torch.randn(8, 64, generator=RNG).double(), torch.randn(64, 16, generator=RNG).double()
WIDER = "sums in f64, in any order(.|\n)*with accumulate = f32, whose bound is wider, 0 elements are outside"
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def reference(x, w):
    return F.gelu(x @ w).softmax(-1)


def in_f32(*inputs):
    """A kernel that computes in f32, and gives f64."""
    return reference(*(x.float() for x in inputs)).double()


def in_order(x, w):
    """A kernel in f64, with sums in the order of another one."""
    return reference(x.flip(1), w.flip(0))


class InF32(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return in_f32(x, w)

    @staticmethod
    def backward(ctx, dy):
        with torch.enable_grad():
            given = [x.detach().float().requires_grad_() for x in ctx.saved_tensors]
            return tuple(one.double() for one in torch.autograd.grad(reference(*given), given, dy.float()))


def normed(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def test_a_kernel_with_sums_in_f32_is_outside():
    ulplab.assert_close(in_order(X, W), op=reference, inputs=(X, W))
    with pytest.raises(AssertionError, match=WIDER):
        ulplab.assert_close(in_f32(X, W), op=reference, inputs=(X, W))
    ulplab.assert_close(in_f32(X, W), op=reference, inputs=(X, W), accumulate="f32")
    # Also: gradients, functions of numpy, named operations, and operations of a model.
    ulplab.assert_grad(in_order, op=reference, inputs=(X, W))
    with pytest.raises(AssertionError, match=rf"out \(float64(.|\n)*{WIDER}(.|\n)*dx|d0 \(float64(.|\n)*{WIDER}"):
        ulplab.assert_grad(InF32.apply, op=reference, inputs=(X, W))
    x = X.numpy()
    ulplab.assert_close(normed(x[:, ::-1])[:, ::-1].copy(), op=normed, inputs=(x,))
    with pytest.raises(AssertionError, match=WIDER):
        ulplab.assert_close(normed(x.astype(np.float32)).astype(float), op=normed, inputs=(x,))
    ulplab.assert_close(X.softmax(-1), op="softmax", inputs={"x": X})
    with pytest.raises(AssertionError, match=WIDER):
        ulplab.assert_close(X.float().softmax(-1).double(), op="softmax", inputs={"x": X})
    narrow, wide = (ulplab.reference.softmax(x=X, dtype=dtype).error for dtype in ("float32", "float64"))
    assert np.all(narrow > 1e7 * wide)
    with ulplab.bounds() as found:
        reference(X, W)
    assert len(found.operations) == 3 and all(one.ratio <= 1 for one in found.operations)


@pytest.mark.parametrize("name", known.FUNCTIONS)
def test_torchs_own_kernels_in_f64_are_inside(name):
    function, *_ = known.FUNCTIONS[name]
    inputs = [known.changed(x, torch.float64) for x in known.drawn(name, 0, "normal")]
    ulplab.assert_close(function(*inputs), op=function, inputs=inputs)


TABLE = torch.randn(5, 3, generator=RNG)


@pytest.mark.parametrize(
    "function, inputs, sums",
    [
        (reference, (X, W), "f64"),
        (lambda x, w: reference(x, w).float(), (X, W), "f32"),
        (lambda x, w: x.float() @ w.float(), (X, W), "f32"),
        (lambda x, w: (x.float() @ w.float()).double(), (X, W), "f32"),
        (lambda x: x * (torch.arange(64) / 64), (X,), "f32"),
        (lambda x, w: x @ w.double(), (X, W.float()), "f32"),
        (lambda at: TABLE[at].exp().double(), (torch.arange(4),), "f32"),
        (lambda at: TABLE.double()[at].exp(), (torch.arange(4),), "f64"),
        (lambda given: given["x"] + given["w"].sum(), ({"x": X, "w": W},), "f64"),
        (lambda given: given["x"] + given["w"].sum(), ({"x": X, "w": W.float()},), "f32"),
        (lambda x: torch.fft.ifft(torch.fft.fft(x)).real, (X,), "f64"),
        (lambda x: np.exp(x).sum(-1), (X.float().numpy(),), "f32"),
        (lambda x: np.exp(-np.arange(8) / x), (np.array([3, 4, 5, 6, 7, 8, 9, 10]),), "f64"),
        (lambda x: np.exp(x).sum(-1), (X.numpy(),), "f64"),
    ],
)
def test_everything_must_be_f64(function, inputs, sums):
    assert ulplab.bound_of(function, inputs).accumulate == sums
    assert ulplab.bound_of(function, inputs, accumulate="tf32").accumulate == "tf32"


def test_what_the_kernel_gives_counts():
    """A kernel that gives f32 may compute in it."""
    ulplab.assert_close(in_f32(X, W).float(), op=reference, inputs=(X, W), dtype="float32")
    ulplab.assert_close(X.float().softmax(-1), op="softmax", inputs={"x": X}, dtype="any")
    ulplab.assert_close(X.float().argmax(-1), op=lambda x: x.argmax(-1), inputs=(X,))


def test_calibrations_replays_and_capsules(tmp_path):
    assert ulplab.calibrate(in_f32, op=reference, inputs=[(X, W)]).failed["bound"] == 1
    assert ulplab.calibrate(in_f32, op=reference, inputs=[(X, W)], accumulate="f32").failed["bound"] == 0
    drawn = {"inputs": lambda rng: {"x": rng.standard_normal((4, 32))}, "seeds": 2}
    assert ulplab.calibrate(lambda x: ulplab.reference.softmax(x=x).value, "softmax", **drawn).failed["bound"] == 0
    assert ulplab.calibrate(lambda x: torch.tensor(x).float().softmax(-1).double(), "softmax", **drawn).failed["bound"] == 2

    class Mine(torch.nn.Module):
        def forward(self, x, w):
            return in_f32(x, w)

    model = Mine()
    with ulplab.record(model, tmp_path / "calls"):
        model(X, W)
    for words, verdict in (({}, "failed"), ({"accumulate": "f32"}, "passed")):
        assert [one.verdict for one in ulplab.replay(tmp_path / "calls", modules={"Mine": reference}, **words)] == [verdict]

    recorder = _records.Recorder(str(tmp_path))
    _records.start(recorder)
    try:
        for wrong in ({"op": reference, "inputs": (X, W)}, {"op": "softmax", "inputs": {"x": X}}):
            with pytest.raises(AssertionError):
                ulplab.assert_close(in_f32(X, W) if callable(wrong["op"]) else 1.01 * X.softmax(-1), **wrong)
    finally:
        _records.start(None)
    for record in recorder.records:
        _, metadata = _files.read(tmp_path / record["capsule"])
        assert json.loads(metadata["ulplab"])["call"]["accumulate"] == "f64"
