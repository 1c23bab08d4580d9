"""Dumps of served models, as SGLang and vLLM write them: judged with the checkpoint that was served, never without."""

import json
import pickle
import sys
import types
from pathlib import Path

import kernels
import kernels_matmul
import ml_dtypes
import numpy as np
import pytest
from test_operations import normal

import ulplab
from ulplab import _files

RNG = np.random.default_rng(0)
BF16 = ml_dtypes.bfloat16
HIDDEN, UP, HEADS, SIZE = 64, 96, 4, 16


@pytest.fixture(autouse=True)
def torch(monkeypatch):
    """What the caller has imported. The dumps of these tests are pickles of numpy arrays."""

    def load(path, map_location, weights_only):
        assert map_location == "cpu" and weights_only
        return pickle.loads(Path(path).read_bytes())

    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(load=load))


@pytest.fixture
def checkpoint(tmp_path):
    """The weights of two layers in two files, each projection by itself."""
    weights = {"model.norm.weight": normal(RNG, HIDDEN)}
    for layer in range(2):
        name = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{name}{norm}.weight"] = normal(RNG, HIDDEN)
        for part, rows, cols in (("q", HIDDEN, HIDDEN), ("k", 2 * SIZE, HIDDEN), ("v", 2 * SIZE, HIDDEN), ("o", HIDDEN, HIDDEN)):
            weights[f"{name}self_attn.{part}_proj.weight"] = normal(RNG, rows, cols, scale=0.1)
            if part in "qkv":
                weights[f"{name}self_attn.{part}_proj.bias"] = normal(RNG, rows)
        for part, rows, cols in (("gate", UP, HIDDEN), ("up", UP, HIDDEN), ("down", HIDDEN, UP)):
            weights[f"{name}mlp.{part}_proj.weight"] = normal(RNG, rows, cols, scale=0.1)
    here = tmp_path / "model"
    here.mkdir()
    names = sorted(weights)
    for at, part in enumerate((names[::2], names[1::2])):
        _files.write(here / f"model-0000{at}-of-2.safetensors", {name: weights[name] for name in part}, {})
    config(here)
    return here, weights


def config(here, **other):
    about = {"model_type": "qwen2", "rms_norm_eps": 1e-5, "hidden_act": "silu", **other}
    (here / "config.json").write_text(json.dumps(about))


def forward(weights, fault=None):
    """A model's modules as they run: names, inputs and outputs. ``fault`` names a module and what its output becomes."""
    calls = []

    def run(name, inputs, output):
        if fault and name == fault[0]:
            output = fault[1](output)
        calls.append((name, inputs, output))
        return output

    def linear(name, x, *parts):
        parts = [name.rpartition(".")[0] + "." + part for part in parts] or [name]
        weight = np.concatenate([weights[f"{part}.weight"] for part in parts])
        bias = [weights[f"{part}.bias"] for part in parts if f"{part}.bias" in weights]
        return run(name, [x], kernels_matmul.kernel(RNG, x, weight, np.concatenate(bias) if bias else None, b_rows="n"))

    def norm(name, x, residual):
        weight = weights[f"{name}.weight"]
        if residual is None:
            return run(name, [x], kernels.rmsnorm(RNG, x, weight, 1e-5)), x
        total = x.astype(np.float32) + residual.astype(np.float32)
        # The sum is normed before it is rounded.
        return run(name, [x, residual], [kernels.rmsnorm(RNG, total, weight, 1e-5, dtype=BF16), total.astype(BF16)])

    x, residual = run("model.embed_tokens", [np.arange(7)], normal(RNG, 7, HIDDEN)), None
    for layer in range(2):
        name = f"model.layers.{layer}."
        x, residual = norm(f"{name}input_layernorm", x, residual)
        qkv = linear(f"{name}self_attn.qkv_proj", x, "q_proj", "k_proj", "v_proj")
        run(f"{name}self_attn.rotary_emb", [qkv], [qkv[:, :HIDDEN], qkv[:, HIDDEN : HIDDEN + 2 * SIZE]])
        x = linear(f"{name}self_attn.o_proj", run(f"{name}self_attn.attn", [qkv], qkv[:, :HIDDEN].copy()))
        x, residual = norm(f"{name}post_attention_layernorm", x, residual)
        x = linear(f"{name}mlp.gate_up_proj", x, "gate_proj", "up_proj")
        x = linear(f"{name}mlp.down_proj", run(f"{name}mlp.act_fn", [x], kernels.silu_and_mul(RNG, x)))
    norm("model.norm", x, residual)
    return calls


def save(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(value))


def passes(folder, calls, rank=0):
    """SGLang's: what each module without children gives, by name, and what the batch is."""
    about = {"model.forward_batch_info.positions": np.arange(7)}
    save(folder / f"TP{rank}_PP0_Rank{rank}_pid7/Pass00000.pt", {name: output for name, _, output in calls} | about)


def dumper(folder, calls, parameters=None, tp=1):
    """SGLang's dumper: a file for each tensor."""
    files = [(f"param__{name}", value) for name, value in (parameters or {}).items()]
    for name, inputs, output in calls:
        files += [(f"non_intrusive__{name}.inputs.{at}", value) for at, value in enumerate(inputs)]
        several = output if isinstance(output, list) else None
        files += [(f"non_intrusive__{name}.output.{at}", value) for at, value in enumerate(several or [])]
        files += [] if several else [(f"non_intrusive__{name}.output", output)]
    files.append(("input_ids", np.arange(7)))
    for at, (name, value) in enumerate(files, 1):
        tags = f"step=0___rank=0___dump_index={at}___name={name}___recompute_status=disabled"
        about = {"name": name, "rank": 0, "world_size": tp, "sglang_parallel_info": {"tp_rank": 0, "tp_size": tp}}
        save(folder / f"dump_20261124/{tags}.pt", {"value": value, "meta": about})


@pytest.mark.parametrize("write", [passes, dumper])
def test_a_model_that_is_right(tmp_path, checkpoint, write):
    here, weights = checkpoint
    write(tmp_path / "dump", forward(weights))
    found = ulplab.replay(tmp_path / "dump", checkpoint=here)
    assert not found.of("failed") and not found.of("biased"), found
    assert {one.function.rpartition(".")[2] for one in found.of("not judged")} >= {"embed_tokens", "rotary_emb", "attn"}
    kinds = [(one.function.rpartition(".")[2], one.op) for one in found.of("passed")]
    assert kinds.count(("input_layernorm", "rmsnorm")) == 2 and kinds.count(("input_layernorm", "matmul")) == 1
    assert {kinds.count((part, "matmul")) for part in ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")} == {2}
    assert kinds.count(("act_fn", "silu_and_mul")) == 2 and ("norm", "rmsnorm") in kinds


FAULTS = [
    ("model.layers.1.mlp.act_fn", np.negative, "silu_and_mul"),
    ("model.layers.0.mlp.gate_up_proj", lambda y: np.roll(y, 1, 1), "matmul"),
    ("model.layers.1.self_attn.qkv_proj", lambda y: np.roll(y, 1, 0), "matmul"),
    ("model.layers.1.input_layernorm", lambda y: [np.roll(y[0], 1, 0), y[1]], "rmsnorm"),
    ("model.norm", lambda y: [y[0], (y[1].astype(np.float32) * 1.1).astype(BF16)], "matmul"),
]


@pytest.mark.parametrize("write", [passes, dumper])
@pytest.mark.parametrize(("name", "fault", "op"), FAULTS)
def test_a_module_with_a_fault_is_named(tmp_path, checkpoint, write, name, fault, op):
    here, weights = checkpoint
    write(tmp_path / "dump", forward(weights, (name, fault)))
    found = ulplab.replay(tmp_path / "dump", checkpoint=here).of("failed")
    assert {one.function for one in found} == {name} and op in {one.op for one in found}


def test_what_is_not_known_is_not_judged(tmp_path, checkpoint):
    here, weights = checkpoint
    calls = forward(weights)
    passes(tmp_path / "dump", calls)

    def reasons(**given):
        found = ulplab.replay(tmp_path / "dump", **given)
        return {one.function: one.message for one in found.of("not judged")}, found

    said, found = reasons()
    assert len(said) == len(found) and "give checkpoint=" in said["model.norm"]
    assert said["model.embed_tokens"] == "the function is not known"
    config(here, model_type="gemma2")
    assert "model_type = 'gemma2' is not known, expected one of llama" in reasons(checkpoint=here)[0]["model.norm"]
    config(here, hidden_act="gelu", quantization_config={})
    said, _ = reasons(checkpoint=here)
    assert "hidden_act = 'gelu'" in said["model.layers.0.mlp.act_fn"]
    assert "are quantized" in said["model.layers.0.mlp.down_proj"] and "model.norm" not in said
    config(here)
    (half := here / "model-00001-of-2.safetensors").rename(here / "elsewhere")
    assert any("the checkpoint has no 'model." in why for why in reasons(checkpoint=here)[0].values())
    (here / "elsewhere").rename(half)
    # A module between two that are known: nobody has recorded what the second was given.
    at = next(at for at, call in enumerate(calls) if call[0] == "model.layers.0.mlp.act_fn")
    passes(tmp_path / "dump", [*calls[:at], ("model.layers.0.mlp.experts", [], calls[at - 1][2]), *calls[at:]])
    assert "experts came before it" in reasons(checkpoint=here)[0]["model.layers.0.mlp.act_fn"]
    passes(tmp_path / "dump", calls, rank=1)
    said, found = reasons(checkpoint=here)
    assert "one of 2 terms" in said["model.norm"] and "over 2 ranks" in said["model.layers.0.mlp.down_proj"]
    assert {one.op for one in found.of("passed")} == {"silu_and_mul"}
    with pytest.raises(ValueError, match="is no checkpoint: config.json with a model_type"):
        ulplab.replay(tmp_path / "dump", checkpoint=tmp_path)


def test_weights_that_were_dumped_come_first(tmp_path, checkpoint):
    """Those of a rank give its own outputs, if they are rows; the rest is summed up over ranks."""
    here, weights = checkpoint
    calls = forward(weights)
    fused = np.concatenate([weights[f"model.layers.0.mlp.{part}_proj.weight"] for part in ("gate", "up")])
    dumper(tmp_path / "right", calls, {"model.layers.0.mlp.gate_up_proj.weight": fused}, tp=2)
    found = ulplab.replay(tmp_path / "right", checkpoint=here)
    assert [one.function for one in found.of("passed") if one.op == "matmul" and "proj" in one.function] == [
        "model.layers.0.mlp.gate_up_proj"
    ]
    assert not found.of("failed")
    dumper(tmp_path / "wrong", calls, {"model.layers.0.mlp.gate_up_proj.weight": fused[::-1].copy()})
    found = ulplab.replay(tmp_path / "wrong", checkpoint=here)
    assert [one.function for one in found.of("failed")] == ["model.layers.0.mlp.gate_up_proj"]


def test_files_that_are_broken(tmp_path, checkpoint, monkeypatch):
    here, weights = checkpoint
    calls = forward(weights)
    dumper(tmp_path / "dumper", calls)
    passes(tmp_path / "passes", calls)
    (broken,) = (tmp_path / "passes").rglob("Pass*.pt")
    broken.write_bytes(b"no pickle")
    (one,) = ulplab.replay(tmp_path / "passes", checkpoint=here)
    assert one.verdict == "not judged" and "torch cannot read it" in one.message
    (broken,) = (tmp_path / "dumper").rglob("*layers.1.mlp.act_fn.output*")
    broken.write_bytes(b"no pickle")
    found = ulplab.replay(tmp_path / "dumper", checkpoint=here)
    (one,) = (one for one in found if one.function == "model.layers.1.mlp.act_fn")
    assert one.verdict == "not judged" and "torch cannot read it" in one.message
    monkeypatch.delitem(sys.modules, "torch")
    assert all("is not imported" in one.message for one in ulplab.replay(tmp_path / "passes"))
