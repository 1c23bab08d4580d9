"""FlashInfer's functions, as its flight recorder names them and their arguments."""

from __future__ import annotations

from typing import Any

import numpy

from ._files import Stored
from ._known import LAUNCH, Judge, Judgement, Unknown, reshaped, take


def _rmsnorm(centered: bool) -> Judge:
    def judge(given: dict[str, Any]) -> list[Judgement]:
        x, weight, eps = take(given, ("input", "weight"), {"eps": 1e-6}, LAUNCH)
        return [(0, "rmsnorm", {"x": x, "weight": weight, "eps": eps, "zero_centered": centered}, None)]

    return judge


def _silu_and_mul(given: dict[str, Any]) -> list[Judgement]:
    (x,) = take(given, ("input",), {}, LAUNCH)
    return [(0, "silu_and_mul", {"x": x}, None)]


def _softmax(given: dict[str, Any]) -> list[Judgement]:
    x, temperature = take(given, ("logits",), {"temperature": 1.0}, (*LAUNCH, "workspace_buffer"))
    if not isinstance(temperature, (int, float)) or temperature <= 0:
        raise Unknown("its temperature is no positive number")
    return [(0, "softmax", {"x": x, "scale": 1.0 / temperature}, None)]


def _mm(given: dict[str, Any]) -> list[Judgement]:
    a, b, bias = take(given, ("a", "b"), {"bias": None}, (*LAUNCH, "out_dtype", "pdl"))
    return [(0, "matmul", {"a": a, "b": b, "bias": bias}, None)]


def _window(left: int) -> dict[str, Any]:
    """FlashInfer counts the keys to the left, the operation the query's own, too."""
    return {"window": left + 1} if left >= 0 else {}


def _weights(v: Stored) -> dict[str, Any]:
    """The type that weights are rounded to before tensor cores multiply them: that of the values."""
    of_values = {"bfloat16": "bf16", "float16": "f16", "float8_e4m3fn": "e4m3"}
    return {"p": of_values[v.dtype]} if v.dtype in of_values else {}


# What a wrapper's `plan` is given that changes nothing but how kernels are launched.
_PLANNED = ("q_data_type", "kv_data_type", "o_data_type", "data_type", "non_blocking", "rope_scale", "rope_theta", "fixed_split_size")
_PLANNED += ("disable_split_kv", "prefix_len_ptr", "token_pos_in_items_ptr", "token_pos_in_items_len", "max_item_len_ptr", "seq_lens")
_PLANNED += ("max_token_per_sequence", "max_sequence_kv", "block_tables", "seq_lens_q", "num_qo_heads", "num_kv_heads", "head_dim")
_PLANNED += ("head_dim_qk", "head_dim_vo", "causal", "page_size")


def _scale(given: dict[str, Any], width: int) -> float:
    """What scores are multiplied by, the scale of queries included."""
    scale, of_queries = given.get("plan.sm_scale"), given.get("q_scale")
    for name, value in (("sm_scale", scale), ("q_scale", of_queries)):
        if value is not None and not isinstance(value, (int, float)):
            raise Unknown(f"its {name} is no number")
    return (width**-0.5 if scale is None else scale) * (1.0 if of_queries is None else of_queries)


def _batch(given: dict[str, Any], keys: dict[str, Any], starts: str | None, tensors: tuple[str, ...]) -> list[Judgement]:
    """Attention of a wrapper: queries one behind the other, or one for each sequence if `starts` is None."""
    of_plan = {name.removeprefix("plan."): value for name, value in given.items() if name.startswith("plan.")}
    used = ("sm_scale", "window_left", "pos_encoding_mode", "logits_soft_cap", "use_fp16_qk_reduction")
    take(of_plan, (), {name: None for name in used}, (*_PLANNED, *tensors))
    if of_plan.get("pos_encoding_mode", "NONE") != "NONE" or of_plan.get("logits_soft_cap") or of_plan.get("use_fp16_qk_reduction"):
        raise Unknown("its plan has a pos_encoding_mode, a logits_soft_cap or use_fp16_qk_reduction")
    causal = starts is None or bool(of_plan.get("causal", False))
    left = given.get("window_left")
    left = of_plan.get("window_left", -1) if left is None else left
    if left >= 0 and not causal:
        raise Unknown("it has a window without a causal mask")
    q, v = Stored.of(given["q"]), Stored.of(keys["v"])
    if q.bits.ndim != 3:
        raise Unknown(f"q is {list(q.shape)}, expected [tokens, heads, channels]")
    shape = (*q.shape[:2], v.shape[-1])
    if starts is None:
        q, shape = reshaped(q, (q.shape[0], 1, *q.shape[1:])), (shape[0], 1, *shape[1:])
    else:
        keys = keys | {"cu_seqlens_q": of_plan[starts]}
    words = {"q": q, **keys, "scale": _scale(given, q.shape[-1]), "causal": causal, **_window(left), **_weights(v)}
    for name in ("k_scale", "v_scale", "sinks"):
        if given.get(name) is not None:
            words[name] = given[name]
    return [(0, "attention", words, shape)]


# What `run` of a wrapper is given besides queries, keys and values.
_RUN = (*LAUNCH, "self", "lse", "return_lse", "q_scale", "k_scale", "v_scale", "window_left", "sinks", "q_len_per_req", "init.kv_layout")


def _pages(given: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The pages of a cache, and which of them each sequence has."""
    cache, parts = given.get("paged_kv_cache"), [given.get(f"paged_kv_cache__{at}") for at in (0, 1)]
    if parts[0] is None:
        both = Stored.of(cache)
        if both.bits.ndim != 5 or both.shape[1] != 2:
            raise Unknown(f"its cache is {list(both.shape)}, expected [pages, 2, ...] or two tensors")
        parts = [both[:, 0], both[:, 1]]
    k, v = (Stored.of(part) for part in parts)
    layout, size, heads = given.get("init.kv_layout"), given.get("plan.page_size"), given.get("plan.num_kv_heads")
    if layout is None and size != heads:
        # The wrapper's own call was not recorded, and the shape tells.
        layout = {(size, heads): "NHD", (heads, size): "HND"}.get(tuple(k.shape[1:3]))
    if layout not in ("NHD", "HND"):
        raise Unknown("the layout of its cache was not recorded, and its shape does not tell")
    if layout == "HND":
        k, v = (Stored(part.bits.swapaxes(1, 2), part.dtype) for part in (k, v))
    names = [f"plan.{prefix}{name}" for name in ("indptr", "indices", "last_page_len")]
    missing = [name for name in names if given.get(name) is None]
    if missing:
        raise Unknown(f"'{missing[0]}' was not recorded")
    starts, pages, last = (Stored.of(given[name]).bits.astype(numpy.int64).reshape(-1) for name in names)
    counts = numpy.diff(starts)
    table = numpy.zeros((len(counts), max(1, int(counts.max(initial=0)))), numpy.int32)
    for row, (first, count) in enumerate(zip(starts, counts)):
        table[row, :count] = pages[first : first + count]
    lengths = numpy.where(counts > 0, (counts - 1) * k.shape[1] + last, 0).astype(numpy.int32)
    return {"k": k, "v": v, "block_table": table, "seq_lens": lengths}


def _decode_paged(given: dict[str, Any]) -> list[Judgement]:
    take(given, ("q",), {}, _given(given, "paged_kv_cache"))
    return _batch(given, _pages(given, ""), None, ("indptr", "indices", "last_page_len"))


def _prefill_paged(given: dict[str, Any]) -> list[Judgement]:
    take(given, ("q",), {}, _given(given, "paged_kv_cache"))
    names = tuple(f"paged_kv_{name}" for name in ("indptr", "indices", "last_page_len"))
    return _batch(given, _pages(given, "paged_kv_"), "qo_indptr", ("qo_indptr", *names))


def _prefill_ragged(given: dict[str, Any]) -> list[Judgement]:
    _, k, v = take(given, ("q", "k", "v"), {}, _given(given, ""))
    keys = {"k": k, "v": v, "cu_seqlens_k": given.get("plan.kv_indptr")}
    return _batch(given, keys, "qo_indptr", ("qo_indptr", "kv_indptr"))


def _given(given: dict[str, Any], cache: str) -> tuple[str, ...]:
    """The names that a wrapper's `run` may be given, once it has been planned."""
    planned = [name for name in given if name.startswith("plan.")]
    if not planned:
        raise Unknown("no plan of its wrapper was recorded before it")
    return (*_RUN, cache, f"{cache}__0", f"{cache}__1", *planned)


def _single(decode: bool) -> Judge:
    plain = {
        "kv_layout": "NHD",
        "pos_encoding_mode": "NONE",
        "causal": False,
        "sm_scale": None,
        "window_left": -1,
        "logits_soft_cap": 0.0,
    }
    plain |= {"use_fp16_qk_reduction": False}

    def judge(given: dict[str, Any]) -> list[Judgement]:
        ignored = (*LAUNCH, "use_tensor_cores", "return_lse", "kv_cache_sf", "rope_scale", "rope_theta")
        q, k, v, layout, pos, causal, scale, window, cap, half = take(given, ("q", "k", "v"), plain, ignored)
        if pos != "NONE" or cap or half:
            raise Unknown(f"pos_encoding_mode = {pos}, logits_soft_cap = {cap}, use_fp16_qk_reduction = {half}")
        q, k, v = (Stored.of(x) for x in (q, k, v))
        if k.bits.ndim != 3 or v.bits.ndim != 3 or q.bits.ndim != (2 if decode else 3) or layout not in ("NHD", "HND"):
            raise Unknown(f"q, k, v are {list(q.shape)}, {list(k.shape)}, {list(v.shape)} in the layout {layout}")
        if layout == "HND":
            k, v = (Stored(x.bits.swapaxes(0, 1), x.dtype) for x in (k, v))
        if decode:
            q = reshaped(q, (1, *q.shape))
        q, k, v = (reshaped(x, (1, *x.shape)) for x in (q, k, v))
        if window >= 0 and not (causal or decode):
            raise Unknown("it has a window without a causal mask")
        words = {"q": q, "k": k, "v": v, "scale": scale, "causal": bool(causal or decode)}
        words |= _window(window) | _weights(v)
        return [(0, "attention", words, (1, q.shape[1], q.shape[2], v.shape[3]))]

    return judge


def _rope(given: dict[str, Any]) -> list[Judgement]:
    names = ("positions", "query", "key", "head_size", "cos_sin_cache")
    positions, query, key, size, cache, neox = take(given, names, {"is_neox": True}, LAUNCH)
    positions, cache, size = Stored.of(positions), Stored.of(cache), int(size)
    half = cache.shape[-1] // 2
    rows = cache.bits[positions.bits.reshape(-1)]
    cos, sin = (Stored(part, cache.dtype) for part in (rows[:, :half], rows[:, half:]))
    judgements: list[Judgement] = []
    for at, x in enumerate((query, key)):
        x = reshaped(x, (rows.shape[0], -1, size))
        words = {"x": x, "cos": cos, "sin": sin, "pairing": "half" if neox else "interleaved"}
        judgements.append((at, "rope", words, x.shape))
    return judgements


# By the function's name, in FlashInfer.
FLASHINFER: dict[str, Judge] = {
    "rmsnorm": _rmsnorm(False),
    "gemma_rmsnorm": _rmsnorm(True),
    "silu_and_mul": _silu_and_mul,
    "softmax": _softmax,
    "mm_bf16": _mm,
    "single_prefill_with_kv_cache": _single(False),
    "single_decode_with_kv_cache": _single(True),
    "apply_rope_with_cos_sin_cache": _rope,
    "BatchDecodeWithPagedKVCacheWrapper.run": _decode_paged,
    "BatchPrefillWithPagedKVCacheWrapper.run": _prefill_paged,
    "BatchPrefillWithRaggedKVCacheWrapper.run": _prefill_ragged,
}
