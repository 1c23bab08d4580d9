"""Calls of a live model are recorded as they were, and judged: with modules that do as torch's do, in numpy."""

import json
import os
import shutil
import subprocess
import sys

import kernels
import kernels_matmul
import ml_dtypes
import numpy as np
import pytest
from test_operations import normal

import ulplab
from ulplab import _files, _recorder

RNG = np.random.default_rng(0)
BF16 = ml_dtypes.bfloat16


class Handle:
    def __init__(self, hooks, hook):
        self.hooks, self.hook = hooks, hook
        hooks.append(hook)

    def remove(self):
        self.hooks.remove(self.hook)


class Module:
    """What a recording needs of torch.nn.Module."""

    def __init__(self, **parameters):
        self._parameters, self._before, self._after = parameters, [], []
        self.training = False

    def register_forward_pre_hook(self, hook, *, with_kwargs):
        return Handle(self._before, hook)

    def register_forward_hook(self, hook, *, with_kwargs):
        return Handle(self._after, hook)

    def named_parameters(self, recurse=True):
        return iter(self._parameters.items())

    def named_modules(self, prefix=""):
        yield prefix, self
        for name, one in vars(self).items():
            if isinstance(one, Module):
                yield from one.named_modules(f"{prefix}.{name}".lstrip("."))

    def __call__(self, *args, **kwargs):
        for hook in self._before:
            hook(self, args, kwargs)
        found = self.forward(*args, **kwargs)
        for hook in self._after:
            hook(self, args, kwargs, found)
        return found


class RMSNorm(Module):
    def __init__(self, size):
        super().__init__(weight=normal(RNG, size))
        self.variance_epsilon = 1e-5

    def forward(self, x, residual=None):
        """As vLLM's: both tensors are written to."""
        if residual is not None:
            residual[...] = (x.astype(np.float32) + residual.astype(np.float32)).astype(BF16)
            x[...] = kernels.rmsnorm(RNG, residual, self._parameters["weight"], 1e-5)
            return x, residual
        return kernels.rmsnorm(RNG, x, self._parameters["weight"], 1e-5)


class Linear(Module):
    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        return kernels_matmul.kernel(RNG, flat, self._parameters["weight"].T).reshape(*x.shape[:-1], -1)


class SiluAndMul(Module):
    def forward(self, x):
        return kernels.silu_and_mul(RNG, x)


class Attention(Module):
    def forward(self, x, mask=None, lengths=()):
        return {"o": x, "kept": None}


class Model(Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.act = RMSNorm(32), Linear(weight=normal(RNG, 48, 32)), SiluAndMul()
        self.attention = Attention()
        self.fault = False

    def forward(self, x):
        residual = normal(RNG, *x.shape)
        y, _ = self.norm(x, residual)
        self.attention(y, mask=None, lengths=[np.int64(3) + np.arange(2), 7])
        if self.fault:
            raise RuntimeError("planted")
        return self.act(self.up(self.norm(y)))


def test_calls_are_kept_as_they_were_and_judged(tmp_path):
    model, x = Model(), normal(RNG, 2, 5, 32)
    before = x.copy()
    with ulplab.record(model, tmp_path / "calls") as recording:
        model(x)
    assert not (x == before).all(), "the norm writes to its input"
    assert (recording.calls, recording.left_out) == (6, 0) and not model._before and not model.norm._after
    calls = json.loads((tmp_path / "calls/recording.json").read_text())["calls"]
    assert [(call["module"], call["call"]) for call in calls] == [
        ("", 0), ("norm", 0), ("attention", 0), ("norm", 1), ("up", 0), ("act", 0),
    ]
    shards = sorted((tmp_path / "calls").glob("calls-*.safetensors"))
    held = {name: stored for shard in shards for name, stored in _files.read(shard)[0].items()}
    assert sum(stored.bits.nbytes for stored in held.values()) == recording.bytes
    assert (held["norm@0.inputs.arg_0"].bits == before.view(np.uint16)).all()
    assert calls[2]["inputs"]["mask"] is None and calls[2]["inputs"]["lengths"][1] == 7
    assert calls[1]["settings"] == {"variance_epsilon": 1e-5}
    found = ulplab.replay(tmp_path / "calls")
    passed = sorted((one.function.rpartition(".")[2], one.op) for one in found.of("passed"))
    assert passed == [
        ("Linear", "matmul"), ("RMSNorm", "matmul"), *[("RMSNorm", "rmsnorm")] * 2, ("SiluAndMul", "silu_and_mul"),
    ]
    assert sorted(one.function.rpartition(".")[2] for one in found.of("not judged")) == ["Attention", "Model"] and len(found) == 7


def test_faults_are_found(tmp_path):
    model = Model()
    right = model.norm.forward
    model.norm.forward = lambda x, residual=None: (
        (np.roll(right(x.copy(), residual.copy())[0], 1, 0), (residual.astype(np.float32) * 1.1).astype(BF16))
        if residual is not None
        else right(x)
    )
    with ulplab.record(model, tmp_path, ["norm", "u?"], parameters=True):
        model(normal(RNG, 6, 32))
    found = ulplab.replay(tmp_path)
    assert [(one.verdict, one.op) for one in found[:2]] == [("failed", one) for one in (found[0].op, found[1].op)]
    assert {one.op for one in found.of("failed")} == {"rmsnorm", "matmul"} and "norm, call 0" in found[0].path
    assert len(found.of("passed")) == 2


def test_classes_of_ones_own(tmp_path):
    class Mine(RMSNorm):
        pass

    model = Mine(16)
    with ulplab.record(model, tmp_path):
        model(normal(RNG, 4, 16))
    assert [one.message for one in ulplab.replay(tmp_path)] == ["the function is not known"]
    assert [one.verdict for one in ulplab.replay(tmp_path, modules={"Mine": "rmsnorm"})] == ["passed"]
    with pytest.raises(ValueError, match="'norm' is no kind of module, expected one of rmsnorm,"):
        ulplab.replay(tmp_path, modules={"Mine": "norm"})


def test_limits_are_told(tmp_path):
    model = Model()
    with pytest.warns(ulplab.UlplabWarning, match="4 calls were not recorded: 2 calls with .* max_calls = 2"):
        with ulplab.record(model, tmp_path / "calls", max_calls=2) as recording:
            model(normal(RNG, 4, 32))
    assert recording.left_out == 4 and json.loads((tmp_path / "calls/recording.json").read_text())["left_out"] == 4
    size = 4 * 32 * 2
    # Room for inputs and the weight, and none for outputs.
    with pytest.warns(ulplab.UlplabWarning, match="max_bytes"):
        with ulplab.record(model, tmp_path / "bytes", "norm", max_bytes=2 * size + 64 + 1):
            model(normal(RNG, 4, 32))
    (call,) = ulplab.replay(tmp_path / "bytes")
    assert call.verdict == "not judged" and "its outputs have 512 bytes, and 1 of max_bytes were left" in call.message


def test_a_call_that_raises_has_no_outputs(tmp_path):
    model = Model()
    model.fault = True
    with pytest.raises(RuntimeError, match="planted"), ulplab.record(model, tmp_path, ["", "norm"]):
        model(normal(RNG, 4, 32))
    assert sorted((one.verdict, "raised" in one.message) for one in ulplab.replay(tmp_path)) == [
        ("not judged", True), ("passed", False), ("passed", False),
    ]


def test_mistakes_are_told(tmp_path):
    with pytest.raises(ValueError, match=r"modules = \['q'\]: the model has none of these names; it has '', 'norm'"):
        ulplab.record(Model(), tmp_path, "q")
    with pytest.raises(ValueError, match="max_calls = 0"):
        ulplab.record(Model(), tmp_path, max_calls=0)
    (tmp_path / "x").write_text("")
    with pytest.raises(ValueError, match="is not empty"):
        ulplab.record(Model(), tmp_path).__enter__()
    (tmp_path / "recording.json").write_text('{"ulplab_recording": 9, "calls": []}')
    with pytest.raises(ValueError, match="ulplab_recording = 9, expected 1"):
        ulplab.replay(tmp_path)


def test_two_recordings_are_compared_by_the_program(tmp_path):
    folders = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    program = os.environ.get("ULPLAB") or shutil.which("ulplab", path=folders)
    if not program:
        pytest.skip("the program is not here")
    model, x = Model(), normal(RNG, 4, 32)
    for name, gain in (("want", 1.0), ("got", 1.0), ("off", 1.5)):
        with ulplab.record(model, tmp_path / name, "act"):
            model.act((x.astype(np.float32) * gain).astype(BF16))

    def compare(other):
        command = [program, "compare", tmp_path / "want", tmp_path / other, "--gate", "relative_l2<=1e-2"]
        return subprocess.run(command, capture_output=True, text=True)

    assert compare("got").returncode == 0
    off = compare("off")
    assert off.returncode != 0 and "act@0.output" in off.stdout + off.stderr


def test_tensors_lie_in_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(_recorder, "_SHARD", 1000)
    model = Model()
    with ulplab.record(model, tmp_path):
        for _ in range(3):
            model(normal(RNG, 4, 32))
    assert len(list(tmp_path.glob("calls-*.safetensors"))) > 3
    found = ulplab.replay(tmp_path)
    assert len(found.of("passed")) == 15 and not found.of("failed")


def test_a_model_and_its_child_called_model_are_apart(tmp_path):
    class Causal(Module):
        def __init__(self):
            super().__init__()
            self.model = Linear(weight=normal(RNG, 32, 32))

        def forward(self, x):
            return -self.model(x)

    model = Causal()
    with ulplab.record(model, tmp_path) as recording:
        model(normal(RNG, 4, 32))
    held = {name: stored for shard in tmp_path.glob("calls-*") for name, stored in _files.read(shard)[0].items()}
    assert {"@0.output", "model@0.output"} <= set(held) and sum(one.bits.nbytes for one in held.values()) == recording.bytes
    assert [one.verdict for one in ulplab.replay(tmp_path)] == ["passed", "not judged"]


def test_what_is_normed_is_the_sum_or_what_is_stored_of_it(tmp_path):
    """vLLM's kernels norm what they have stored; FlashInfer's the sum before it is rounded. No kernel norms the input alone."""
    model = RMSNorm(256)

    def forward(x, residual):
        total = x.astype(np.float32) + residual.astype(np.float32)
        normed = {"sum": total, "stored": total.astype(BF16), "input": x}[model.norms]
        return kernels.rmsnorm(RNG, normed, model._parameters["weight"], 1e-5, dtype=BF16), total.astype(BF16)

    model.forward = forward
    for model.norms in ("sum", "stored", "input"):
        with ulplab.record(model, tmp_path / model.norms):
            model(normal(RNG, 20, 256), normal(RNG, 20, 256))
        verdicts = {one.op: one.verdict for one in ulplab.replay(tmp_path / model.norms)}
        assert verdicts == {"matmul": "passed", "rmsnorm": "failed" if model.norms == "input" else "passed"}, model.norms


CASTS = ("after_weight", "before_weight")


@pytest.mark.parametrize(("kind", "first", "casts"), [
    ("torch.nn.RMSNorm", None, CASTS[:1]),
    ("sglang.RMSNorm", None, CASTS[:1]),
    ("sglang.RMSNorm", False, CASTS[:1]),
    ("transformers.GptOssRMSNorm", None, CASTS[:1]),
    ("sglang.RMSNorm", True, CASTS),
    ("transformers.LlamaRMSNorm", None, CASTS),
    ("vllm.RMSNorm", None, CASTS),
    ("mine.RMSNorm", None, CASTS),
])
@pytest.mark.parametrize("residual", [False, True])
def test_a_norm_rounds_where_its_class_may(tmp_path, kind, first, casts, residual):
    """Where a class may do either, the verdict says which it does; a fault is one with either."""
    package, _, name = kind.rpartition(".")
    model = type(name, (RMSNorm,), {"__module__": package})(256)
    if first is not None:
        model.cast_x_before_out_mul = first

    def forward(x, residual=None):
        total = x if residual is None else (x.astype(np.float32) + residual.astype(np.float32)).astype(BF16)
        y = kernels.rmsnorm(RNG, total, model._parameters["weight"], 1e-5, cast=model.cast)
        y = np.roll(y, 1, 0) if model.fault else y
        return y if residual is None else (y, total)

    model.forward = forward
    for model.fault in (False, True):
        for model.cast in CASTS:
            folder = tmp_path / f"{model.cast}-{model.fault}"
            with ulplab.record(model, folder):
                model(*(normal(RNG, 40, 256) for _ in range(1 + residual)))
            (found,) = (one for one in ulplab.replay(folder) if one.op == "rmsnorm")
            right = model.cast in casts and not model.fault
            assert found.verdict == ("passed" if right else "failed"), found.message
            if right:
                assert (f'with cast = "{model.cast}"' in found.message) == (len(casts) == 2 or residual)
            elif not model.fault and not residual:
                assert " cast = " in found.message


def test_norms_over_several_dimensions_are_not_judged(tmp_path):
    class LayerNorm(Module):
        def __init__(self, *shape):
            super().__init__()
            self.normalized_shape, self.eps = shape, 1e-5

        def forward(self, x):
            flat = x.reshape(-1, np.prod(self.normalized_shape))
            return kernels.layernorm(RNG, flat, np.ones(flat.shape[-1]), np.zeros(flat.shape[-1]), 1e-5).reshape(x.shape)

    for shape, verdict in (((16,), "passed"), ((4, 16), "not judged")):
        model = LayerNorm(*shape)
        with ulplab.record(model, tmp_path / str(len(shape))):
            model(normal(RNG, 6, 4, 16))
        (found,) = ulplab.replay(tmp_path / str(len(shape)))
        assert found.verdict == verdict
    assert "normalized_shape = [4, 16]" in found.message


class GptOssTopKRouter(Module):
    def __init__(self, fault=None):
        super().__init__(weight=normal(RNG, 8, 32), bias=normal(RNG, 8))
        self.top_k, self.fault = 2, fault

    def forward(self, x):
        weight, bias = self._parameters["weight"], self._parameters["bias"]
        logits = kernels_matmul.kernel(RNG, x, weight.T, bias=bias)
        numbers = np.argsort(-logits.astype(np.float32), axis=-1, kind="stable")[:, : self.top_k]
        if self.fault == "choice":
            numbers[3, 1] = np.argmin(logits[3].astype(np.float32))
        of = np.roll(logits, -1, 0) if self.fault == "scores" else logits
        scores = kernels.softmax(RNG, np.take_along_axis(of, numbers, -1))
        if self.fault == "number":
            numbers = np.where(numbers == numbers[5, 0], 8, numbers)
        return logits, scores, numbers


@pytest.mark.parametrize(
    ("fault", "verdicts"),
    [
        (None, {"matmul": "passed", "softmax": "passed", "top_k": "passed"}),
        ("choice", {"matmul": "passed", "softmax": "passed", "top_k": "failed"}),
        ("scores", {"matmul": "passed", "softmax": "failed", "top_k": "passed"}),
        # Scores of an expert that does not exist are those of no logit.
        ("number", {"matmul": "passed", "softmax": "not judged", "top_k": "failed"}),
    ],
)
def test_a_router_chooses_by_its_logits(tmp_path, fault, verdicts):
    model = Module()
    model.router = GptOssTopKRouter(fault)
    with ulplab.record(model, tmp_path / "calls", ["router"]):
        model.router(normal(RNG, 20, 32))
    found = ulplab.replay(tmp_path / "calls")
    assert {one.op: one.verdict for one in found} == verdicts, str(found)


def test_a_router_without_a_number_of_experts_is_not_judged(tmp_path):
    model = Module()
    model.router = GptOssTopKRouter()
    with ulplab.record(model, tmp_path / "calls", ["router"]):
        model.router(normal(RNG, 20, 32))
    file = tmp_path / "calls/recording.json"
    held = json.loads(file.read_text())
    del held["calls"][0]["settings"]["top_k"]
    file.write_text(json.dumps(held))
    (one,) = ulplab.replay(tmp_path / "calls")
    assert one.verdict == "not judged" and "no attribute top_k" in one.message
