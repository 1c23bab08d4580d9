"""Products, norms, choices and gated delta rules of FlashInfer's recorder."""

import kernels
import kernels_attention
import kernels_gated_delta
import kernels_matmul
import ml_dtypes
import numpy as np
import pytest
from test_operations import normal
from test_replay import paged, plan, record

import ulplab

RNG = np.random.default_rng(0)


def test_norms_and_products_of_batches(tmp_path):
    x, weight, bias = normal(RNG, 7, 64), *(normal(RNG, 64).astype(np.float32) for _ in range(2))
    given = {"input": x, "gemma": weight, "beta": bias, "eps": 1e-5}
    record(tmp_path, "layernorm", (), given, kernels.layernorm(RNG, x, weight, bias, 1e-5))
    record(tmp_path, "layernorm", (), {**given, "eps": 1.0}, kernels.layernorm(RNG, x, weight, bias, 1e-5))
    a, b = normal(RNG, 3, 5, 32), normal(RNG, 3, 32, 6)
    record(tmp_path, "bmm_bf16", (), {"A": a, "B": b}, kernels_matmul.kernel(RNG, a, b))
    record(tmp_path, "bmm_bf16", (), {"A": a, "B": b[::-1].copy()}, kernels_matmul.kernel(RNG, a, b))
    found = ulplab.replay(tmp_path)
    assert sorted((one.verdict, one.op) for one in found) == [
        ("failed", "layernorm"), ("failed", "matmul"), ("passed", "layernorm"), ("passed", "matmul"),
    ]


def test_scales_of_groups(tmp_path):
    fp8 = ml_dtypes.float8_e4m3fn
    a, b = normal(RNG, 5, 256).astype(fp8), normal(RNG, 128, 256).astype(fp8)
    a_scale, b_scale = (RNG.uniform(0.5, 2, shape).astype(np.float32) for shape in ((5, 2), (1, 2)))
    right = kernels_matmul.kernel(RNG, a.astype(np.float32), b.astype(np.float32), b_rows="n", a_scale=a_scale, b_scale=b_scale)
    given = {"a": a, "b": b, "scale_major_mode": "K"}
    record(tmp_path, "gemm_fp8_nt_groupwise", (), {**given, "a_scale": a_scale, "b_scale": b_scale}, right)
    turned = {"a_scale": a_scale.T.copy(), "b_scale": b_scale.T.copy(), "scale_major_mode": "MN"}
    record(tmp_path, "gemm_fp8_nt_groupwise", (), {**given, **turned}, right)
    record(tmp_path, "gemm_fp8_nt_groupwise", (), {**given, "a_scale": a_scale[:, ::-1].copy(), "b_scale": b_scale}, right)
    record(tmp_path, "gemm_fp8_nt_groupwise", (), {"a": a, "b": b, "a_scale": a_scale, "b_scale": b_scale}, right)
    found = ulplab.replay(tmp_path)
    assert [one.verdict for one in found] == ["failed", "passed", "passed", "not judged"]
    assert found[-1].message == "its scale_major_mode is not given, expected K or MN"


def test_the_largest_in_any_order(tmp_path):
    x = np.array([[3, 7, -np.inf, 7, 1, 7], [np.nan, np.inf, 2, 5, -4, np.inf]], np.float32)
    cases = [
        # The order of what is found is not promised, and any of the equal elements may be found.
        ({}, [[7, 7], [np.inf, np.nan]], [[5, 1], [5, 0]], ["passed"] * 2),
        ({"sorted": True}, [[7, 7], [np.nan, np.inf]], [[5, 1], [0, 5]], ["passed"] * 2),
        ({"sorted": True}, [[7, 7], [np.inf, np.nan]], [[5, 1], [5, 0]], ["failed"] * 2),
        # The elements of lower index are found, in any order.
        ({"tie_break": {"type": "enum", "value": 1}}, [[7, 7], [np.inf, np.nan]], [[3, 1], [1, 0]], ["passed"] * 2),
        ({"tie_break": 1, "sorted": True}, [[7, 7], [np.nan, np.inf]], [[3, 1], [0, 1]], ["passed"] * 2),
        ({"tie_break": 1}, [[7, 7], [np.inf, np.nan]], [[5, 1], [1, 0]], ["failed", "passed"]),
        # An index is named twice; a value is not that of its index.
        ({}, [[7, 7], [np.inf, np.nan]], [[1, 1], [5, 0]], ["failed", "passed"]),
        ({}, [[7, 3], [np.inf, np.nan]], [[1, 3], [5, 0]], ["failed", "passed"]),
        ({"sorted": True}, [[7], [np.nan]], [[3], [0]], ["passed"] * 2),
        ({"tie_break": 2}, [[7, 7], [np.inf, np.nan]], [[5, 3], [5, 0]], ["not judged"]),
    ]
    for at, (words, values, indices, verdicts) in enumerate(cases):
        (tmp_path / str(at)).mkdir()
        given = {"input": x, "k": len(values[0]), **words}
        record(tmp_path / str(at), "top_k", (), given, (np.float32(values), np.int64(indices)))
        assert [one.verdict for one in ulplab.replay(tmp_path / str(at))] == verdicts, cases[at]


def test_calls_that_write_where_they_are_told(tmp_path):
    """What lies there before does not count, and what is returned is judged."""
    x, w = normal(RNG, 12, 64), normal(RNG, 64)
    right, before = kernels.rmsnorm(RNG, x, w, 1e-6), np.full((12, 64), np.nan, ml_dtypes.bfloat16)
    record(tmp_path, "rmsnorm", (x, w), {"out": before}, right)
    record(tmp_path, "rmsnorm", (x, w), {"out": right}, before)
    record(tmp_path, "fused_add_rmsnorm", (x, x, w), {}, None)
    found = ulplab.replay(tmp_path)
    assert [one.verdict for one in found] == ["failed", "passed", "not judged"]
    assert "what a call writes to its arguments is not recorded" in found[-1].message


def test_products_of_fp8_with_a_prepared_weight(tmp_path):
    fp8 = ml_dtypes.float8_e4m3fn
    a, b = normal(RNG, 5, 256).astype(fp8), normal(RNG, 64, 256).astype(fp8)
    alpha = np.float32([0.125])
    right = kernels_matmul.kernel(RNG, a.astype(np.float32), b.astype(np.float32), b_rows="n", alpha=0.125)
    # As FlashInfer's prepare_low_latency_gemm_weights says it: row r of each 32 goes to 8 (r mod 4) + r / 4.
    rows = np.arange(64)
    shuffled = np.empty_like(b)
    shuffled[rows // 32 * 32 + rows % 4 * 8 + rows % 32 // 4] = b
    prepared = np.ascontiguousarray(shuffled.reshape(64, 2, 128).swapaxes(0, 1))
    record(tmp_path, "mm_fp8", (), {"a": a, "b": prepared, "alpha": alpha}, right)
    record(tmp_path, "mm_fp8", (), {"a": a, "b": np.ascontiguousarray(b.T), "alpha": alpha}, right)
    # The weight was not prepared; a scale was left out; a scale for each row is not known.
    record(tmp_path, "mm_fp8", (), {"a": a, "b": b.reshape(64, 2, 128).swapaxes(0, 1).copy(), "alpha": alpha}, right)
    record(tmp_path, "mm_fp8", (), {"a": a, "b": prepared}, right)
    record(tmp_path, "mm_fp8", (), {"a": a, "b": prepared, "alpha": np.ones(5, np.float32)}, right)
    found = ulplab.replay(tmp_path)
    assert [one.verdict for one in found] == ["failed"] * 2 + ["passed"] * 2 + ["not judged"]
    assert "its alpha is [5], expected one number" in found[-1].message


@pytest.mark.parametrize("few_rows", [False, True])
@pytest.mark.parametrize("name", ["nvfp4", "mxfp4"])
def test_products_of_fp4(tmp_path, name, few_rows):
    a, b = (ulplab.quantize(normal(RNG, rows, 320), name) for rows in (21, 40))
    layouts = ("8x4" if few_rows else "128x4", "128x4")
    dtype = ml_dtypes.float8_e4m3fn if name == "nvfp4" else ml_dtypes.float8_e8m0fnu
    scales = [one.scales.view(dtype) for one in (a, b)]
    placed = [one.layout(layout) for one, layout in zip((a, b), layouts)]
    cols = -(-scales[0].shape[1] // 4) * 4
    a_descale, b_descale = (one.reshape(-1, cols) for one in placed)
    words = {"b_rows": "n", "a_codes": "e2m1", "b_codes": "e2m1"}
    right = kernels_matmul.kernel(RNG, a.codes, b.codes, a_scale=scales[0], b_scale=scales[1], alpha=0.01, **words)
    given = {"a": a.codes, "b": b.codes.T.copy(), "a_descale": a_descale, "b_descale": b_descale.T.copy()}
    given |= {"alpha": np.float32([0.01]), "use_8x4_sf_layout": few_rows, "use_nvfp4": name == "nvfp4"}
    given |= {"block_size": 16 if name == "nvfp4" else 32}
    plain = np.zeros_like(a_descale).reshape(-1)
    plain[: a.scales.size] = a.scales.reshape(-1)
    cases = [
        ({}, "passed"),
        ({"alpha": 0.0103}, "failed"),
        ({"a_descale": np.roll(a_descale, 1, -1)}, "failed"),
        # Scales that were not put into the order of tensor cores.
        ({"a_descale": plain.reshape(a_descale.shape)}, "failed"),
        ({"backend": "trtllm"}, "not judged"),
        ({"block_size": 64}, "not judged"),
        ({"a_descale": a_descale[:4].copy()}, "not judged"),
    ]
    for at, (other, verdict) in enumerate(cases):
        (tmp_path / str(at)).mkdir()
        record(tmp_path / str(at), "mm_fp4", (), {**given, **other}, right)
        (found,) = ulplab.replay(tmp_path / str(at))
        assert found.verdict == verdict, (other, found.message)


def test_latent_attention(tmp_path):
    wrapper, (cache, first, pages, last) = "BatchMLAPagedAttentionWrapper", paged([9, 4, 6], heads=1, size=32)
    cache, starts = cache[:, 0, :, 0], np.array([0, 2, 3, 6], np.int32)
    q = normal(RNG, 6, 4, 32)
    lengths = (np.diff(first) - 1) * 4 + last
    rows = []
    for at, (begin, end) in enumerate(zip(starts, starts[1:])):
        k = cache[pages[first[at] : first[at + 1]]].reshape(1, -1, 1, 32)[:, : lengths[at]]
        words = {"causal": True, "scale": 0.3, "lse_base": "2", "p": "bf16"}
        rows.append(kernels_attention.kernel(RNG, q[None, begin:end], k, k[..., :24], **words))
    right = tuple(np.concatenate([row[name][0] for row in rows]) for name in ("o", "lse"))
    plans = {"qo_indptr": starts, "kv_indptr": first, "kv_indices": pages, "kv_len_arr": lengths.astype(np.int32)}
    plans |= {"num_heads": 4, "head_dim_ckv": 24, "head_dim_kpe": 8, "page_size": 4, "causal": True, "sm_scale": 0.3}
    run = {"q_nope": q[..., :24].copy(), "q_pe": q[..., 24:].copy()}
    run |= {"ckv_cache": cache[..., :24].copy(), "kpe_cache": cache[..., 24:].copy()}
    cases = [
        (plans, {**run, "return_lse": True}, right, ["passed"] * 2),
        (plans, run, right[0], ["passed"]),
        # The rotated part of the next query; one key fewer; logarithms of the other base.
        (plans, {**run, "q_pe": np.roll(run["q_pe"], 1, 0)}, right[0], ["failed"]),
        ({**plans, "kv_len_arr": plans["kv_len_arr"] - 1}, run, right[0], ["failed"]),
        (plans, {**run, "return_lse": True, "return_lse_base_on_e": True}, right, ["failed", "passed"]),
        (plans, {**run, "ckv_scale": 0.5, "kpe_scale": 0.5}, right[0], ["not judged"]),
        (plans, {**run, "kpe_cache": run["kpe_cache"].astype(np.float32)}, right[0], ["not judged"]),
    ]
    for at, (planned, given, result, verdicts) in enumerate(cases):
        (tmp_path / str(at)).mkdir()
        plan(tmp_path / str(at), wrapper, planned, given, result, {})
        assert [one.verdict for one in ulplab.replay(tmp_path / str(at))] == verdicts, at


def fast_exp(x):
    """As ex2.approx of x log2(e), off by as much as PTX says that it may be."""
    x = x.astype(np.float32) * np.float32(np.log2(np.e))
    return (np.exp2(x.astype(np.float64)) * (1 + RNG.choice([-1, 1], x.shape) * 2.0**-22)).astype(np.float32)


def fast_log(x):
    log = np.log2(x.astype(np.float64))
    return (log + RNG.choice([-1, 1], x.shape) * 2.0**-22 * np.maximum(1, np.abs(log))).astype(np.float32) * np.float32(np.log(2))


def gated_delta(given, layout, gates=lambda g, beta: (g, beta)):
    """FlashInfer's: gates in float32, from approximations."""
    a_log, a, dt_bias, b = (given[name].astype(np.float32) for name in ("A_log", "a", "dt_bias", "b"))
    x = a + dt_bias
    g = -fast_exp(a_log) * np.where(x <= 20, fast_log(1 + fast_exp(np.minimum(x, 20))), x)
    g, beta = gates(g, 1 / (1 + fast_exp(-b)))
    words = {"scale": given.get("scale"), "l2norm": given["use_qk_l2norm"], "layout": layout}
    return kernels_gated_delta.kernel(RNG, *(given[name] for name in "qkv"), g, beta, given["state"], **words)


@pytest.mark.parametrize("layout", ["kv", "vk"])
def test_a_step_of_a_gated_delta_rule(tmp_path, layout):
    """The kernel computes its gates: the bound has what that may be off, and no more than a fault of them."""
    function = "gated_delta_rule_decode" + ("_pretranspose" if layout == "vk" else "")

    def draw(size):
        given = {"q": normal(RNG, 5, 1, 2, 16), "k": normal(RNG, 5, 1, 2, 16), "v": normal(RNG, 5, 1, 4, 24)}
        given |= {"state": RNG.standard_normal((5, 4, 16, 24) if layout == "kv" else (5, 4, 24, 16)).astype(np.float32)}
        given |= {"A_log": (size * RNG.standard_normal(4)).astype(np.float32), "dt_bias": normal(RNG, 4)}
        given |= {"a": normal(RNG, 5, 1, 4, scale=4 * size), "b": normal(RNG, 5, 1, 4, scale=4)}
        return given | {"use_qk_l2norm": bool(RNG.integers(2))} | ({"scale": 0.4} if RNG.integers(2) else {})

    def judged(name, given, outputs):
        (tmp_path / name).mkdir()
        record(tmp_path / name, function, (), given, outputs)
        return ulplab.replay(tmp_path / name)

    for at in range(60):
        given = draw([0.3, 1.0, 2.0][at % 3])
        found = gated_delta(given, layout)
        calls = judged(f"right{at}", given, (found["o"], found["state"]))
        assert [one.verdict for one in calls] == ["passed"] * 2, calls
    faults = {
        "beta is 1": lambda g, beta: (g, np.ones_like(beta)),
        "a decay is off by 1e-5": lambda g, beta: (g + np.float32(1e-5), beta),
        "beta is off by 1e-5": lambda g, beta: (g, beta * np.float32(1 + 1e-5)),
        "the neighbour's decay": lambda g, beta: (np.roll(g, 1, -1), beta),
    }
    for name, fault in faults.items():
        given = draw(0.3)
        found = gated_delta(given, layout, fault)
        calls = judged(name, given, (found["o"], found["state"]))
        assert calls[0].verdict == "failed", name
    found = gated_delta(given, layout)
    state, _ = judged("the state is not written", given, (found["o"], given["state"]))
    assert state.verdict == "failed" and "looks like state_not_written" in state.message
    many = {**given, "q": np.repeat(given["q"], 2, 1)}
    calls = judged("two tokens", many, (found["o"], found["state"]))
    assert "expected one token and float32" in calls[0].message
    narrow = {**given, "state": given["state"].astype(ml_dtypes.bfloat16)}
    calls = judged("a state in bf16", narrow, (found["o"], found["state"]))
    assert calls[0].verdict == "not judged"


def test_gated_delta_rules_say_why_they_are_not_judged(tmp_path):
    q = normal(RNG, 1, 2, 2, 16)
    record(tmp_path, "gated_delta_rule_mtp", (), {"q": q, "k": q, "v": q}, (q, q))
    record(tmp_path, "chunk_gated_delta_rule", (), {"q": q[0], "k": q[0], "v": q[0]}, q[0])
    steps, chunk = sorted(ulplab.replay(tmp_path), key=lambda one: one.function, reverse=True)
    assert steps.verdict == chunk.verdict == "not judged"
    assert "errors of the first are in the state of the next" in steps.message and "of a chunk" in chunk.message
