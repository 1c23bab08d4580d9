"""A model's calls: kept as they were when they were made, compared with others, and judged."""

import json

import kernels
import numpy as np
import pytest
from test_operations import normal

import ulplab
from ulplab import _files

RNG = np.random.default_rng(0)


class Handle:
    def __init__(self, hooks, hook):
        self.hooks, self.hook = hooks, hook

    def remove(self):
        self.hooks.remove(self.hook)


class Module:
    """What `record` uses of a torch module."""

    def __init__(self, **children):
        self.children, self.before, self.after = children, [], []
        for name, child in children.items():
            setattr(self, name, child)

    def named_modules(self, prefix=""):
        yield prefix, self
        for name, child in self.children.items():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

    def register_forward_pre_hook(self, hook, with_kwargs):
        assert with_kwargs
        self.before.append(hook)
        return Handle(self.before, hook)

    def register_forward_hook(self, hook, with_kwargs):
        assert with_kwargs
        self.after.append(hook)
        return Handle(self.after, hook)

    def __call__(self, *args, **kwargs):
        for hook in list(self.before):
            hook(self, args, kwargs)
        out = self.forward(*args, **kwargs)
        for hook in list(self.after):
            hook(self, args, kwargs, out)
        return out


class RMSNorm(Module):
    """As vLLM's: with a residual, both are changed in place and returned."""

    def __init__(self, size, wrong=False):
        super().__init__()
        self.weight, self.variance_epsilon, self.wrong = normal(RNG, size), 1e-6, wrong

    def forward(self, x, residual=None):
        if residual is None:
            y = kernels.rmsnorm(RNG, x, self.weight, self.variance_epsilon)
            return np.roll(y, 1, 0) if self.wrong else y
        residual += x
        x[:] = kernels.rmsnorm(RNG, residual, self.weight, self.variance_epsilon)
        return x, residual


class Linear(Module):
    def __init__(self, rows, cols):
        super().__init__()
        self.weight, self.bias = normal(RNG, rows, cols), None

    def forward(self, x):
        return x @ self.weight.T


class Model(Module):
    def __init__(self, wrong=False):
        super().__init__(first=RMSNorm(32, wrong), second=RMSNorm(32), up=Linear(48, 32))

    def forward(self, x):
        x, _ = self.second(self.first(x), residual=np.ones_like(x))
        return self.up(x)


def tensors(folder):
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= _files.read(file)[0]
    return found


def test_what_is_changed_in_place_is_kept_as_it_was(tmp_path):
    model, x = Model(), normal(RNG, 5, 32)
    with ulplab.record(model, tmp_path / "run", at="{first,second}") as recording:
        model(x)
        model(x)
    assert recording.calls == 4 and not recording.left_out and "4 calls of 2 modules" in str(recording)
    kept = tensors(tmp_path / "run")
    assert (kept["second.0.in.residual"].widened() == 1).all()
    assert (kept["first.0.out"].bits == kept["second.0.in.arg_0"].bits).all()
    assert not (kept["second.0.out.0"].bits == kept["second.0.in.arg_0"].bits).all()
    assert set(kept) >= {"first.weight", "second.1.out.1"} and not any(name.startswith("up") for name in kept)
    # Hooks are gone.
    assert model.first.before == model.first.after == []
    lines = [json.loads(line) for line in (tmp_path / "run" / "calls.jsonl").read_text().splitlines()]
    assert lines[0]["class"] == "RMSNorm" and lines[0]["attributes"] == {"variance_epsilon": 1e-6}
    assert lines[-1]["recording"]["calls"] == 4


def test_known_modules_are_judged(tmp_path):
    x = normal(RNG, 5, 32)
    model = Model(wrong=True)
    with ulplab.record(model, tmp_path / "run"):
        model(x)
    found = ulplab.replay(tmp_path / "run")
    verdicts = {call.path.rpartition(" ")[2]: (call.verdict, call.op) for call in found}
    # The norm with a residual has an argument that is not known.
    assert verdicts == {"first": ("failed", "rmsnorm"), "up": ("passed", "matmul"), "second": ("not judged", "")}
    assert "residual" in found.of("not judged")[0].message
    assert "neighbour" in found[0].message or "row" in found[0].message

    class Own(RMSNorm):
        pass

    own = Module(norm=Own(32))
    own.forward = lambda x: own.norm(x)
    with ulplab.record(own, tmp_path / "own"):
        own(x)
    assert ulplab.replay(tmp_path / "own")[0].verdict == "not judged"
    assert ulplab.replay(tmp_path / "own", modules={"Own": "rmsnorm"})[0].verdict == "passed"
    with pytest.raises(ValueError, match="no operation 'norm'"):
        ulplab.replay(tmp_path / "own", modules={"Own": "norm"})


def test_what_is_left_out_is_told(tmp_path):
    model, x = Model(), normal(RNG, 5, 32)
    with pytest.warns(ulplab.UlplabWarning, match="1 because max_calls = 1"):
        with ulplab.record(model, tmp_path / "few", at="up", max_calls=1) as recording:
            model(x), model(x)
    assert recording.calls == 1
    with pytest.warns(ulplab.UlplabWarning, match="3 because max_bytes = 100"):
        with ulplab.record(model, tmp_path / "small", max_bytes=100):
            model(x)
    with ulplab.record(model, tmp_path / "outputs", at="up", inputs=False):
        model(x)
    assert list(tensors(tmp_path / "outputs")) == ["up.0.out"]


def test_a_module_that_raises_leaves_its_inputs(tmp_path):
    model = Model()
    with pytest.raises(ValueError):
        with ulplab.record(model, tmp_path / "run", at="up"):
            model.up(normal(RNG, 5, 33))
    call = ulplab.replay(tmp_path / "run")[0]
    assert call.verdict == "not judged" and "raised ValueError" in call.message
    assert tensors(tmp_path / "run")["up.0.in.arg_0"].shape == (5, 33)


def test_what_cannot_be_recorded_is_refused(tmp_path):
    model = Model()
    with pytest.raises(ValueError, match="no module is called 'thrid'; the model has first, second, up"):
        ulplab.record(model, tmp_path / "run", at="{first,thrid}")
    with pytest.raises(ValueError, match="brace"):
        ulplab.record(model, tmp_path / "run", at="{first")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    with pytest.raises(ValueError, match="exists"):
        ulplab.record(model, tmp_path / "full")
    with pytest.raises(TypeError, match="named_modules"):
        ulplab.record(object(), tmp_path / "run")
    with pytest.raises(ValueError, match="max_calls = 0"):
        ulplab.record(model, tmp_path / "run", max_calls=0)
