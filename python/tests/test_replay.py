"""Recorded calls: judged from what was recorded, the worst first; what is not known is not judged."""

import base64
import io
import json
import pickle
import shutil
import sys
import types

import kernels
import kernels_attention
import kernels_matmul
import ml_dtypes
import numpy as np
import pytest
from test_operations import normal

import ulplab
from ulplab import _files

RNG = np.random.default_rng(0)
SIGNATURES = {
    "rmsnorm": "(input: torch.Tensor, weight: torch.Tensor, eps: float = 1e-06, out: Optional[torch.Tensor] = None, enable_pdl=None)",
    "softmax": "(logits: torch.Tensor, temperature: Union[torch.Tensor, float, NoneType] = None, enable_pdl=None) -> torch.Tensor",
    "single_prefill_with_kv_cache": "(q, k, v, scale_q=None, kv_layout: str = 'NHD', causal: bool = False, window_left: int = -1)",
}


def record(folder, function, args, kwargs, result, status="completed", about=None):
    """As FlashInfer's recorder writes a call."""
    number = len(list(folder.iterdir())) + 1
    here = folder / f"20261123_101010_{number:03d}_pid7_{function}_call{number:04d}"
    here.mkdir()
    given = {f"arg_{at}": value for at, value in enumerate(args)} | {f"kwarg_{name}": value for name, value in kwargs.items()}
    for name, value in list(given.items()):
        if isinstance(value, tuple):
            items = [{"type": "torch.Tensor", "tensor_key": f"{name}__{at}"} for at in range(len(value))]
            given |= {f"{name}__{at}": one for at, one in enumerate(value)}
            given[name] = {"type": "tuple", "items": items, "truncated": False}
    _files.write(here / "inputs.safetensors", {name: x for name, x in given.items() if isinstance(x, np.ndarray)}, {})
    plain = {name: x for name, x in given.items() if not isinstance(x, np.ndarray)}
    about = {**(about or {}), "function_name": function, "input_metadata": plain}
    signature = SIGNATURES.get(function, "(self, ...)" if "." in function else "(...)")
    about |= {"function_signature": signature, "execution_status": "inputs_saved"}
    lines = [about]
    if status == "completed":
        results = result if isinstance(result, tuple) else None
        outputs = {f"result_{at}": x for at, x in enumerate(results)} if results else {"result": result}
        outputs = {name: x for name, x in outputs.items() if x is not None}
        _files.write(here / "outputs.safetensors", outputs, {})
        lines.append({**about, "execution_status": status})
    (here / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


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


def test_broken_records_are_not_judged(tmp_path, monkeypatch):
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
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert any("read by torch only" in call.message for call in ulplab.replay(tmp_path))

    def load(path, map_location, weights_only):
        assert weights_only
        raise pickle.UnpicklingError("planted")

    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(load=load))
    assert any("torch cannot read it: UnpicklingError: planted" in call.message for call in ulplab.replay(tmp_path))
    monkeypatch.setattr(sys.modules["torch"], "load", lambda path, **_: [x])
    assert any("holds a list, expected tensors by name" in call.message for call in ulplab.replay(tmp_path))
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


def plan(folder, wrapper, plans, run, result, made=None):
    """A wrapper that is made, planned and run, as FlashInfer's recorder writes it."""
    object_id = {"self_id": 4711, "process_id": 7}
    itself = {"type": wrapper, "repr": "<...>"}
    for method, given, found in (("__init__", made, None), ("plan", plans, None), ("run", run, result)):
        if given is not None:
            record(folder, f"{wrapper}.{method}", (itself,), given, found, about=object_id)


def paged(lengths, heads=2, size=16, page=4):
    """A cache of pages in an order of its own, and what FlashInfer's plans say of it."""
    counts = [-(-length // page) for length in lengths]
    pages = RNG.permutation(sum(counts) + 3)[: sum(counts)].astype(np.int32)
    cache = normal(RNG, sum(counts) + 3, 2, page, heads, size)
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    last = np.array([length - (count - 1) * page for length, count in zip(lengths, counts)], np.int32)
    return cache, indptr, pages, last


def attention(q, starts, cache, indptr, pages, last, **words):
    rows = []
    for at, (begin, end) in enumerate(zip(starts, starts[1:])):
        mine = cache[pages[indptr[at] : indptr[at + 1]]]
        count = (len(mine) - 1) * cache.shape[2] + last[at]
        k, v = (mine[:, part].reshape(-1, *mine.shape[3:])[:count] for part in (0, 1))
        rows.append(kernels_attention.kernel(RNG, q[None, begin:end], k[None], v[None], **words)["o"][0])
    return np.concatenate(rows)


def test_paged_decode(tmp_path):
    wrapper, (cache, indptr, pages, last) = "BatchDecodeWithPagedKVCacheWrapper", paged([9, 4, 1])
    q = normal(RNG, 3, 4, 16)
    right = attention(q, [0, 1, 2, 3], cache, indptr, pages, last, causal=True)
    plans = {"indptr": indptr, "indices": pages, "last_page_len": last}
    plans |= {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 16, "page_size": 4}
    made = {"kv_layout": "NHD"}
    plan(tmp_path, wrapper, plans, {"q": q, "paged_kv_cache": cache}, right, made)
    # Two tensors, heads before tokens.
    k, v = (np.ascontiguousarray(cache[:, part].swapaxes(1, 2)) for part in (0, 1))
    plan(tmp_path, wrapper, plans, {"q": q, "paged_kv_cache": (k, v)}, right, {"kv_layout": "HND"})
    plan(tmp_path, wrapper, {**plans, "window_left": 2}, {"q": q, "paged_kv_cache": cache}, right, made)
    plan(tmp_path, wrapper, {**plans, "indices": np.roll(pages, 1)}, {"q": q, "paged_kv_cache": cache}, right, made)
    plan(tmp_path, wrapper, {**plans, "logits_soft_cap": 30.0}, {"q": q, "paged_kv_cache": cache}, right, made)
    found = ulplab.replay(tmp_path)
    assert [one.verdict for one in found] == ["failed"] * 2 + ["passed"] * 2 + ["not judged"]
    assert {one.op for one in found[:4]} == {"attention"}
    assert found[-1].function == f"{wrapper}.run" and "logits_soft_cap = 30.0" in found[-1].message


def test_batches_of_prefill(tmp_path):
    (cache, indptr, pages, last), starts = paged([9, 4, 6]), np.array([0, 3, 5, 6], np.int32)
    q = normal(RNG, 6, 4, 16)
    right = attention(q, starts, cache, indptr, pages, last, causal=True, window=3)
    plans = {"qo_indptr": starts, "paged_kv_indptr": indptr, "paged_kv_indices": pages, "paged_kv_last_page_len": last}
    plans |= {"causal": True, "window_left": 2}
    plan(tmp_path, "BatchPrefillWithPagedKVCacheWrapper", plans, {"q": q, "paged_kv_cache": cache}, right, {})
    plan(tmp_path, "BatchPrefillWithPagedKVCacheWrapper", plans, {"q": q[:5], "paged_kv_cache": cache}, right[:5], {})
    ends = np.array([0, 9, 13, 19], np.int32)
    k, v = normal(RNG, 19, 2, 16), normal(RNG, 19, 2, 16)
    rows = [
        kernels_attention.kernel(RNG, q[None, a:b], k[None, c:d], v[None, c:d])["o"][0]
        for a, b, c, d in zip(starts, starts[1:], ends, ends[1:])
    ]
    plans, run = {"qo_indptr": starts, "kv_indptr": ends}, {"q": q, "k": k, "v": v}
    plan(tmp_path, "BatchPrefillWithRaggedKVCacheWrapper", plans, run, np.concatenate(rows), {})
    found = ulplab.replay(tmp_path)
    assert [one.verdict for one in found] == ["passed", "passed", "not judged"]
    assert "q is [5, 4, 16], and its plan has 6 queries" in found[-1].message


def test_a_wrapper_without_its_plan_is_not_judged(tmp_path):
    q, k = normal(RNG, 6, 4, 16), normal(RNG, 6, 4, 16)
    plan(tmp_path, "BatchPrefillWithRaggedKVCacheWrapper", None, {"q": q, "k": k, "v": k}, q, {})
    (found,) = ulplab.replay(tmp_path)
    assert (found.verdict, found.message) == ("not judged", "its plan was not recorded")


def test_products_of_fp8(tmp_path):
    a, b = (normal(RNG, *shape).astype(ml_dtypes.float8_e4m3fn) for shape in ((2, 5, 64), (2, 64, 7)))
    scales = {"A_scale": np.float32([0.5]), "B_scale": np.float32([0.25])}
    right = kernels_matmul.kernel(RNG, a.astype(np.float32), b.astype(np.float32), alpha=0.125)
    given = {"A": a, "B": b, **scales, "dtype": {"type": "torch.dtype", "value": "torch.bfloat16"}}
    record(tmp_path, "bmm_fp8", (), given, right)
    record(tmp_path, "bmm_fp8", (), {**given, "A_scale": np.float32([1.0])}, right)
    record(tmp_path, "fused_add_rmsnorm", (a,), {}, None)
    found = ulplab.replay(tmp_path)
    assert [(one.verdict, one.op) for one in found] == [("failed", "matmul"), ("passed", "matmul"), ("not judged", "")]
    assert "what a call writes to its arguments is not recorded" in found[-1].message


def session(folder, order):
    """As FlashInfer's recorder lists the calls of a session, in a folder that has been moved since."""
    lines = [json.dumps({"dump_dir": f"/elsewhere/{name}"}) for name in order]
    (folder / "session.jsonl").write_text("\n".join([*lines, '{"dump_']))


def test_calls_of_one_millisecond_are_in_the_order_of_the_session(tmp_path):
    wrapper, starts = "BatchPrefillWithRaggedKVCacheWrapper", np.array([0, 6], np.int32)
    q, k = normal(RNG, 6, 4, 16), normal(RNG, 6, 2, 16)
    plans, run = {"qo_indptr": starts, "kv_indptr": starts}, {"q": q, "k": k, "v": k}
    right = kernels_attention.kernel(RNG, q[None], k[None], k[None])["o"][0]
    plan(tmp_path, wrapper, plans, run, right, {})
    plan(tmp_path, wrapper, {**plans, "causal": True}, None, None)
    order = sorted(tmp_path.iterdir())
    names = [f"20261123_101010_123_pid7_{one.name.partition('pid7_')[2]}" for one in order]
    for one, name in zip(order, names):
        one.rename(tmp_path / name)
    assert [one.verdict for one in ulplab.replay(tmp_path)] == ["failed"], "the second plan's name comes before the run's"
    session(tmp_path, names)
    assert [one.verdict for one in ulplab.replay(tmp_path)] == ["passed"]


def test_runs_of_a_graph_follow_the_plan_before_them(tmp_path):
    wrapper, (cache, indptr, pages, last) = "BatchDecodeWithPagedKVCacheWrapper", paged([9, 4])
    q = normal(RNG, 2, 4, 16)
    plans = {"indptr": indptr, "indices": pages, "last_page_len": last}
    plan(tmp_path, wrapper, {**plans, "last_page_len": last - 1}, {"q": q, "paged_kv_cache": cache}, q, {})
    made, planned, run = sorted(tmp_path.iterdir())
    plan(tmp_path, wrapper, plans, None, None)
    replanned = max(tmp_path.iterdir())
    right = attention(q, [0, 1, 2], cache, indptr, pages, last, causal=True)
    about = {**json.loads((run / "metadata.jsonl").read_text().splitlines()[-1]), "graph_capture": True}
    flushes = [f"{run.name}/graph_flushes/flush_{at:04d}" for at in (1, 2)]
    for name, result in zip(flushes, (right, -right)):
        (tmp_path / name).mkdir(parents=True)
        shutil.copy(run / "inputs.safetensors", tmp_path / name)
        _files.write(tmp_path / name / "outputs.safetensors", {"result": result}, {})
        (tmp_path / name / "metadata.jsonl").write_text(json.dumps(about))
    session(tmp_path, [made.name, planned.name, run.name, replanned.name, *flushes])
    failed, passed = ulplab.replay(tmp_path)
    assert (failed.verdict, passed.verdict) == ("failed", "passed")
    assert "recorded after its CUDA graph had run" in failed.message and not passed.message
    shutil.rmtree(run / "graph_flushes")
    pending = {**about, "execution_status": "graph_capture_pending_flush"}
    (run / "metadata.jsonl").write_text(json.dumps(pending))
    (run / "outputs.safetensors").unlink()
    assert [one.message for one in ulplab.replay(tmp_path)] == ["it was captured in a CUDA graph, of which no run was recorded"]


def test_a_new_object_has_no_plan_of_an_old_one(tmp_path):
    wrapper, starts = "BatchPrefillWithRaggedKVCacheWrapper", np.array([0, 6], np.int32)
    q, k = normal(RNG, 6, 4, 16), normal(RNG, 6, 2, 16)
    plan(tmp_path, wrapper, {"qo_indptr": starts, "kv_indptr": starts}, None, None, {})
    plan(tmp_path, wrapper, None, {"q": q, "k": k, "v": k}, q, {})
    assert [one.message for one in ulplab.replay(tmp_path)] == ["its plan was not recorded"]


def test_weights_are_rounded_as_queries_are(tmp_path):
    """Tensor cores widen a cache of FP8 to the type of the queries, and multiply it by weights of that."""
    fp8 = ml_dtypes.float8_e4m3fn
    q, k, v = normal(RNG, 40, 4, 16), normal(RNG, 90, 2, 16).astype(fp8), normal(RNG, 90, 2, 16).astype(fp8)
    wide = [x.astype(np.float32).astype(ml_dtypes.bfloat16) for x in (k, v)]
    right = kernels_attention.kernel(RNG, q[None], *(x[None] for x in wide), p="bf16")["o"][0].astype(np.float32)
    record(tmp_path, "single_prefill_with_kv_cache", (q, k, v), {}, right)
    record(tmp_path, "single_prefill_with_kv_cache", (q.astype(np.float32), k, v), {}, right)
    record(tmp_path, "single_prefill_with_kv_cache", (q, k, v), {"causal": True}, right)
    found = ulplab.replay(tmp_path)
    assert [one.verdict for one in found] == ["failed", "passed", "not judged"]
    assert "its queries are float32, which tensor cores do not take" in found[-1].message
    # Scales of blocks of a cache are never left out.
    record(tmp_path, "single_prefill_with_kv_cache", (q, k, v), {"kv_cache_sf": np.ones(4, np.uint8)}, right)
    assert any("'kv_cache_sf' is not known" in one.message for one in ulplab.replay(tmp_path))
