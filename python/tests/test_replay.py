"""Recorded calls: judged from what was recorded, the worst first; what is not known is not judged."""

import base64
import io
import json

import kernels
import kernels_attention
import kernels_matmul
import numpy as np
import pytest
from test_operations import normal

import ulplab
from ulplab import _files

RNG = np.random.default_rng(0)
SIGNATURES = {
    "rmsnorm": "(input: torch.Tensor, weight: torch.Tensor, eps: float = 1e-06, out: Optional[torch.Tensor] = None, enable_pdl=None)",
    "softmax": "(logits: torch.Tensor, temperature: Union[torch.Tensor, float, NoneType] = None, enable_pdl=None) -> torch.Tensor",
    "BatchDecodeWithPagedKVCacheWrapper.__init__": "(self, float_workspace_buffer, kv_layout: str = 'NHD', use_cuda_graph=False)",
    "BatchDecodeWithPagedKVCacheWrapper.plan": "(self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size)",
    "BatchDecodeWithPagedKVCacheWrapper.run": "(self, q, paged_kv_cache, *args, q_scale=None, k_scale=None, return_lse=False)",
    "BatchPrefillWithPagedKVCacheWrapper.plan": "(self, qo_indptr, paged_kv_indptr)",
    "BatchPrefillWithRaggedKVCacheWrapper.plan": "(self, qo_indptr, kv_indptr)",
    "BatchPrefillWithPagedKVCacheWrapper.run": "(self, q, paged_kv_cache, *args, k_scale=None)",
    "BatchPrefillWithRaggedKVCacheWrapper.run": "(self, q, k, v, *args, k_scale=None)",
    "single_prefill_with_kv_cache": "(q, k, v, scale_q=None, kv_layout: str = 'NHD', causal: bool = False, window_left: int = -1)",
}


def record(folder, function, args, kwargs, result, status="completed", of=None):
    """As FlashInfer's recorder writes a call; `of` is the number of the wrapper whose method it is."""
    here = folder / f"20261123_101010_{len(list(folder.iterdir())):03}_pid7_{function}_call0001"
    here.mkdir()
    given = {f"arg_{at}": value for at, value in enumerate(args)} | {f"kwarg_{name}": value for name, value in kwargs.items()}
    # A tuple's tensors have names of their own.
    for name in [name for name, value in given.items() if isinstance(value, tuple)]:
        given |= {f"{name}__{at}": part for at, part in enumerate(given[name])}
        given[name] = {"type": "tuple", "length": 2, "truncated": False}
    _files.write(here / "inputs.safetensors", {name: x for name, x in given.items() if isinstance(x, np.ndarray)}, {})
    about = {"function_name": function, "input_metadata": {name: x for name, x in given.items() if not isinstance(x, np.ndarray)}}
    about |= {"function_signature": SIGNATURES.get(function, "(...)"), "execution_status": "inputs_saved", "process_id": 7}
    about |= {} if of is None else {"self_id": of}
    lines = [about]
    if status == "completed":
        results = result if isinstance(result, tuple) else None
        outputs = {f"result_{at}": x for at, x in enumerate(results)} if results else {"result": result}
        outputs = {} if result is None else outputs
        _files.write(here / "outputs.safetensors", outputs, {})
        lines.append({**about, "execution_status": status})
    (here / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


ME = {"type": "object"}
PAGED = "BatchDecodeWithPagedKVCacheWrapper"


def paged(layout="NHD"):
    """Queries, a cache of pages of 4 keys, its indptr, indices and last_page_len, and attention of each sequence's last query."""
    q, cache = normal(RNG, 3, 4, 16), normal(RNG, 7, 2, 4, 2, 16)
    indptr, indices, last = np.array([0, 2, 2, 5], np.int32), np.array([6, 1, 0, 5, 3], np.int32), np.array([3, 0, 2], np.int32)
    o = np.zeros_like(q)
    for row, (first, end) in enumerate(zip(indptr, indptr[1:])):
        keys = cache[indices[first:end]]
        count = max(0, (end - first - 1) * 4 + last[row])
        if count:
            k, v = (keys[:, part].reshape(-1, 2, 16)[:count] for part in (0, 1))
            o[row] = kernels_attention.kernel(RNG, q[None, None, row], k[None], v[None], causal=True)["o"][0, 0]
    return q, cache if layout == "NHD" else np.ascontiguousarray(cache.swapaxes(2, 3)), (indptr, indices, last), o


def test_wrappers_are_judged_with_their_plans(tmp_path):
    q, cache, plan, o = paged()
    sizes = (4, 2, 16, 4)
    record(tmp_path, f"{PAGED}.__init__", (ME, np.zeros(4, np.uint8)), {}, None, of=1)
    record(tmp_path, f"{PAGED}.plan", (ME, *plan, *sizes), {"q_data_type": "torch.float32"}, None, of=1)
    record(tmp_path, f"{PAGED}.run", (ME, q, cache), {}, o, of=1)
    # A later plan of the same wrapper: the first sequence has the pages of another.
    record(tmp_path, f"{PAGED}.plan", (ME, plan[0], plan[1][::-1].copy(), plan[2], *sizes), {}, None, of=1)
    record(tmp_path, f"{PAGED}.run", (ME, q, cache), {}, o, of=1)
    # No plan, and a mask.
    record(tmp_path, f"{PAGED}.run", (ME, q, cache), {}, o, of=2)
    q, cache, plan, o = paged("HND")
    record(tmp_path, f"{PAGED}.plan", (ME, *plan, *sizes), {"logits_soft_cap": 0.0}, None, of=3)
    record(tmp_path, f"{PAGED}.run", (ME, q, (cache[:, 0].copy(), cache[:, 1].copy())), {"return_lse": True}, (o, o[..., 0]), of=3)
    record(tmp_path, f"{PAGED}.plan", (ME, *plan, *sizes), {"custom_mask": np.zeros(4, np.uint8)}, None, of=4)
    record(tmp_path, f"{PAGED}.run", (ME, q, cache), {}, o, of=4)
    found = ulplab.replay(tmp_path)
    assert [call.verdict for call in found] == ["failed", "passed", "passed", "not judged", "not judged"], str(found)
    assert "no plan" in str(found) and "custom_mask" in str(found)


def test_prefill_of_wrappers(tmp_path):
    q, cache, (indptr, indices, last), _ = paged()
    starts = np.array([0, 2, 2, 3], np.int32)
    o = np.zeros_like(q)
    ragged = [np.zeros((0, 2, 16), np.float32)] * 2
    lengths = []
    for row, (first, end) in enumerate(zip(indptr, indptr[1:])):
        keys = cache[indices[first:end]]
        count = max(0, (end - first - 1) * 4 + last[row])
        k, v = (keys[:, part].reshape(-1, 2, 16)[:count] for part in (0, 1))
        ragged, lengths = [np.concatenate(both) for both in zip(ragged, (k, v))], lengths + [count]
        own = slice(starts[row], starts[row + 1])
        if count:
            o[own] = kernels_attention.kernel(RNG, q[None, own], k[None], v[None], causal=True)["o"][0]
    sizes = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim_qk": 16, "causal": True}
    pages = {"paged_kv_indptr": indptr, "paged_kv_indices": indices, "paged_kv_last_page_len": last, "page_size": 4}
    wrapper = "BatchPrefillWithPagedKVCacheWrapper"
    record(tmp_path, f"{wrapper}.plan", (ME,), {"qo_indptr": starts, **pages, **sizes}, None, of=1)
    record(tmp_path, f"{wrapper}.run", (ME, q, cache), {}, o, of=1)
    wrapper = "BatchPrefillWithRaggedKVCacheWrapper"
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    record(tmp_path, f"{wrapper}.plan", (ME,), {"qo_indptr": starts, "kv_indptr": ends, **sizes}, None, of=2)
    record(tmp_path, f"{wrapper}.run", (ME, q, *ragged), {}, o, of=2)
    record(tmp_path, f"{wrapper}.plan", (ME,), {"qo_indptr": starts, "kv_indptr": ends, **sizes, "causal": False}, None, of=2)
    record(tmp_path, f"{wrapper}.run", (ME, q, *ragged), {}, o, of=2)
    found = ulplab.replay(tmp_path)
    assert [(call.verdict, call.op) for call in found] == [("failed", "attention"), ("passed", "attention"), ("passed", "attention")], str(found)


def test_flight_records(tmp_path):
    x, w = normal(RNG, 12, 64), normal(RNG, 64)
    right = kernels.rmsnorm(RNG, x, w, 1e-5)
    record(tmp_path, "rmsnorm", (x, w, 1e-5), {"enable_pdl": True}, right)
    record(tmp_path, "rmsnorm", (x, w), {"eps": 1e-5}, np.roll(right, 1, 0))
    record(tmp_path, "softmax", (x,), {"temperature": 0.5}, kernels.softmax(RNG, x, 2.0))
    record(tmp_path, "softmax", (x,), {"temperature": normal(RNG, 12)}, right)
    record(tmp_path, "rmsnorm", (x, w), {"weight_bias": 1.0}, right)
    record(tmp_path, "rmsnorm", (x, w), {}, right, status="crashed")
    record(tmp_path, "fused_moe", (x,), {}, right)
    q, k, v = normal(RNG, 5, 4, 16), normal(RNG, 9, 2, 16), normal(RNG, 9, 2, 16)
    o = kernels_attention.kernel(RNG, q[None], k[None], v[None], causal=True, window=4)["o"][0]
    record(tmp_path, "single_prefill_with_kv_cache", (q, k, v), {"causal": True, "window_left": 3}, o)
    swapped = {"causal": True, "window_left": 3, "kv_layout": "HND"}
    record(tmp_path, "single_prefill_with_kv_cache", (q, k.swapaxes(0, 1), v.swapaxes(0, 1)), swapped, o)
    record(tmp_path, "single_prefill_with_kv_cache", (q, k, v), {"causal": True, "logits_soft_cap": 30.0}, o)
    found = ulplab.replay(tmp_path)
    assert [call.verdict for call in found] == ["failed"] + ["passed"] * 4 + ["not judged"] * 5
    assert found[0].op == "rmsnorm" and found[0].ratio > 1 and found[0].function == "rmsnorm"
    assert sorted(call.op for call in found.of("passed")) == ["attention", "attention", "rmsnorm", "softmax"]
    reasons = "\n".join(call.message for call in found.of("not judged"))
    for said in (
        "temperature is torch.Tensor|temperature is no positive",
        "'weight_bias' is not known",
        "crashed",
        "function is not known",
        "soft_cap = 30",
    ):
        assert any(part in reasons for part in said.split("|")), reasons
    assert str(found).startswith(
        "10 outputs of calls: 1 failed, 0 biased, 4 passed, 5 not judged\nfailed: rmsnorm as rmsnorm, error / bound "
    )


def test_rotations_give_two_outputs(tmp_path):
    angles = RNG.uniform(0, 6, (30, 8))
    cache = np.concatenate([np.cos(angles), np.sin(angles)], -1).astype(np.float32)
    positions = np.array([3, 29, 0, 7], np.int64)
    q, k = normal(RNG, 4, 3 * 16), normal(RNG, 4, 16)
    cos, sin = np.split(cache[positions], 2, -1)
    turned = [kernels.rope(RNG, x.reshape(4, -1, 16), cos, sin).reshape(x.shape) for x in (q, k)]
    given = {"positions": positions, "query": q, "key": k, "head_size": 16, "cos_sin_cache": cache}
    record(tmp_path, "apply_rope_with_cos_sin_cache", (), given, tuple(turned))
    record(tmp_path, "apply_rope_with_cos_sin_cache", (), {**given, "is_neox": False}, tuple(turned))
    assert [call.verdict for call in ulplab.replay(tmp_path)] == ["failed"] * 2 + ["passed"] * 2


def test_broken_records_are_not_judged(tmp_path):
    x, w = normal(RNG, 4, 8), normal(RNG, 8)
    record(tmp_path, "rmsnorm", (x, w), {}, kernels.rmsnorm(RNG, x, w, 1e-6))
    record(tmp_path, "rmsnorm", (x, w[:5]), {}, x)
    (first, _) = sorted(tmp_path.iterdir())
    raw = (first / "inputs.safetensors").read_bytes()
    (first / "inputs.safetensors").write_bytes(raw[:-3])
    found = ulplab.replay(tmp_path)
    assert [call.verdict for call in found] == ["not judged"] * 2
    assert any("'arg_1' is BF16 [8] in bytes" in call.message for call in found)
    assert any("'weight' is [5], expected [8]" in call.message for call in found)
    (first / "inputs.safetensors").rename(first / "inputs.pt")
    assert any("read by torch only" in call.message for call in ulplab.replay(tmp_path))
    with pytest.raises(ValueError, match="is no folder"):
        ulplab.replay(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no calls"):
        ulplab.replay(tmp_path / "empty")


def test_msprobe(tmp_path):
    folder = tmp_path / "step0/rank0"
    (folder / "dump_tensor_data").mkdir(parents=True)
    x, w = normal(RNG, 6, 32), normal(RNG, 9, 32)

    def tensor(name, value):
        np.save(folder / "dump_tensor_data" / f"{name}.npy", value.astype(np.float32))
        return {"type": "torch.Tensor", "dtype": "torch.bfloat16", "shape": list(value.shape), "data_name": f"{name}.npy"}

    def entry(name, args, kwargs, output):
        args = [tensor(f"{name}.input.{at}", value) for at, value in enumerate(args)]
        kwargs = {key: {"type": "int", "value": value} for key, value in kwargs.items()}
        return {"input_args": args, "input_kwargs": kwargs, "output": [tensor(f"{name}.output", output)]}

    data = {
        "Functional.softmax.0.forward": entry("s0", [x], {"dim": -1}, kernels.softmax(RNG, x)),
        "Functional.softmax.1.forward": entry("s1", [x], {"dim": 0}, kernels.softmax(RNG, x)),
        "Functional.linear.0.forward": entry("l0", [x, w], {}, kernels_matmul.kernel(RNG, x, w.T)),
        "Functional.linear.1.forward": entry("l1", [x, w], {}, kernels_matmul.kernel(RNG, x, -w.T)),
        "Functional.gelu.0.forward": entry("g0", [x], {}, x),
        "Functional.softmax.0.backward": {},
    }
    (folder / "dump.json").write_text(json.dumps({"task": "tensor", "level": "L1", "data": data}))
    found = ulplab.replay(tmp_path)
    assert [(call.verdict, call.function) for call in found[:1]] == [("failed", "Functional.linear.1.forward")]
    assert {call.function for call in found.of("passed")} == {"Functional.softmax.0.forward", "Functional.linear.0.forward"}
    assert {call.function for call in found.of("not judged")} == {"Functional.softmax.1.forward", "Functional.gelu.0.forward"}


def test_workloads_and_polygraphy(tmp_path):
    x = normal(RNG, 4, 8)
    (tmp_path / "workloads").mkdir()
    _files.write(tmp_path / "x.safetensors", {"x": x}, {})
    inputs = {
        "x": {"type": "safetensors", "path": "x.safetensors", "tensor_key": "x"},
        "eps": {"type": "scalar", "value": 1e-5},
        "w": {"type": "random"},
    }
    path = tmp_path / "workloads/rmsnorm_h8.jsonl"
    path.write_text(json.dumps({"definition": "rmsnorm_h8", "workload": {"uuid": "u", "axes": {"n": 4}, "inputs": inputs}}) + "\n")
    (found,) = ulplab.read_workloads(path)
    assert (found["definition"], found["uuid"], found["axes"]) == ("rmsnorm_h8", "u", {"n": 4})
    assert found["inputs"]["eps"] == 1e-5 and found["inputs"]["w"] is None
    ulplab.assert_close(kernels.rmsnorm(RNG, x, np.ones(8), 1e-5), op="rmsnorm", inputs={"x": found["inputs"]["x"], "eps": 1e-5})
    path.write_text(path.read_text().replace('"tensor_key": "x"', '"tensor_key": "y"'))
    with pytest.raises(ValueError, match="rmsnorm_h8.jsonl:1: 'x': x.safetensors has no 'y'; it has x"):
        ulplab.read_workloads(path)

    buffer = io.BytesIO()
    np.save(buffer, x.astype(np.float32))
    values = {"array": base64.b64encode(buffer.getvalue()).decode(), "polygraphy_class": "ndarray"}
    outputs = {"y": {"values": values, "polygraphy_class": "LazyArray"}}
    file = tmp_path / "outputs.json"
    file.write_text(json.dumps({"lst": [["trt", [{"outputs": outputs, "runtime": 0.1}]]], "polygraphy_class": "RunResults"}))
    assert (ulplab.read_polygraphy(file)["trt"][0]["y"] == x.astype(np.float32)).all()
    file.write_text("{}")
    with pytest.raises(ValueError, match="no outputs of Polygraphy"):
        ulplab.read_polygraphy(file)
