"""The operations of calls of attention that FlashInfer recorded."""

from __future__ import annotations

from typing import Any

import numpy

from ._calls import LAUNCH, Function, Judgement, Method, Unknown, reshaped, take
from ._files import Stored


# Options of attention, with their defaults.
_ATTENTION: dict[str, Any] = {"causal": False, "window_left": -1, "sm_scale": None}
_ATTENTION |= {"pos_encoding_mode": "NONE", "logits_soft_cap": 0.0, "use_fp16_qk_reduction": False}


def _attention(causal: Any, window: Any, scale: Any, pos: Any, cap: Any, half: Any) -> dict[str, Any]:
    """The words of the operation, by `_ATTENTION`."""
    if pos != "NONE" or cap or half:
        raise Unknown(f"pos_encoding_mode = {pos}, logits_soft_cap = {cap}, use_fp16_qk_reduction = {half}")
    if window >= 0 and not causal:
        raise Unknown("it has a window without a causal mask")
    words = {"scale": scale, "causal": bool(causal)}
    # FlashInfer counts the keys to the left, the operation the query's own, too.
    return {**words, "window": window + 1} if window >= 0 else words


def _heads_and_tokens_swapped(x: Stored) -> Stored:
    return Stored(x.bits.swapaxes(-3, -2), x.dtype)


def _single(decode: bool) -> Function:
    plain = {"kv_layout": "NHD", "use_tensor_cores": False, **_ATTENTION}

    def judge(given: dict[str, Any]) -> list[Judgement]:
        ignored = (*LAUNCH, "return_lse", "rope_scale", "rope_theta")
        q, k, v, layout, tensor_cores, causal, *others = take(given, ("q", "k", "v"), plain, ignored)
        words = _attention(causal or decode, *others)
        q, k, v = (Stored.of(x) for x in (q, k, v))
        if k.bits.ndim != 3 or v.bits.ndim != 3 or q.bits.ndim != (2 if decode else 3) or layout not in ("NHD", "HND"):
            raise Unknown(f"q, k, v are {list(q.shape)}, {list(k.shape)}, {list(v.shape)} in the layout {layout}")
        if layout == "HND":
            k, v = (_heads_and_tokens_swapped(x) for x in (k, v))
        if decode:
            q = reshaped(q, (1, *q.shape))
        q, k, v = (reshaped(x, (1, *x.shape)) for x in (q, k, v))
        words |= {"q": q, "k": k, "v": v}
        words |= _rounded_weights(q) if not decode or tensor_cores else {}
        return [Judgement(0, "attention", words, (1, q.shape[1], q.shape[2], v.shape[3]))]

    return judge


# The types that tensor cores take weights in, by that of the queries.
_WEIGHTS = {"bfloat16": "bf16", "float16": "f16", "float8_e4m3fn": "e4m3"}


def _rounded_weights(q: Stored) -> dict[str, str]:
    """Tensor cores multiply values by weights of the queries' type; a cache of fewer bits is widened to it."""
    if q.dtype not in _WEIGHTS:
        raise Unknown(f"its queries are {q.dtype}, which tensor cores do not take")
    return {"p": _WEIGHTS[q.dtype]}


def _integers(x: Any) -> numpy.ndarray:
    return Stored.of(x).bits.astype(numpy.int64)


def _pages(cache: Any, layout: str) -> tuple[Stored, Stored]:
    """The keys and the values of a paged cache, [pages, tokens, heads, D] each."""
    if isinstance(cache, list) and len(cache) == 2:
        k, v = (Stored.of(part) for part in cache)
    else:
        both = Stored.of(cache)
        if both.bits.ndim != 5 or both.shape[1] != 2:
            raise Unknown(f"its cache is {list(both.shape)}, expected [pages, 2, ...] or two tensors")
        k, v = both[:, 0], both[:, 1]
    if k.bits.ndim != 4 or v.bits.ndim != 4 or layout not in ("NHD", "HND"):
        raise Unknown(f"its keys and values are {list(k.shape)} and {list(v.shape)} in the layout {layout}")
    return (k, v) if layout == "NHD" else (_heads_and_tokens_swapped(k), _heads_and_tokens_swapped(v))


# What a plan says of how it is computed, and what `run` says of where results go. Numbers of heads and types are those of the
# tensors.
_PLANNED: tuple[str, ...] = ("num_qo_heads", "num_kv_heads", "head_dim", "head_dim_qk", "head_dim_vo", "page_size", "q_data_type")
_PLANNED += ("kv_data_type", "o_data_type", "data_type", "rope_scale", "rope_theta", "non_blocking", "fixed_split_size")
_PLANNED += ("disable_split_kv", "block_tables", "seq_lens", "seq_lens_q", "max_token_per_sequence", "max_sequence_kv")
_PLANNED += ("max_q_len", "max_kv_len")
_RUN = (*LAUNCH, "lse", "return_lse")


def _wrapper(decode: bool, paged: bool) -> Method:
    """A batch wrapper's ``run``: sequences and pages are those of its plan."""

    def judge(given: dict[str, Any], settings: dict[str, Any]) -> list[Judgement]:
        for name in ("__init__", "plan"):
            if name not in settings:
                raise Unknown(f"its {name} was not recorded")
        layout = settings["__init__"].get("kv_layout") or "NHD"
        ends = {
            (True, True): ("indptr", "indices", "last_page_len"),
            (False, True): ("qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len"),
            (False, False): ("qo_indptr", "kv_indptr"),
        }[decode, paged]
        planned = take(settings["plan"], ends, _ATTENTION, _PLANNED)
        indices, (causal, window, *others) = [_integers(x) for x in planned[: len(ends)]], planned[len(ends) :]
        tensors = ("q", "paged_kv_cache") if paged else ("q", "k", "v")
        scales = {"window_left": None, "k_scale": 1.0, "v_scale": 1.0, "sinks": None}
        values = take(given, tensors, scales, _RUN)
        now, k_scale, v_scale, sinks = values[len(tensors) :]
        words = _attention(causal or decode, window if now is None else now, *others)
        q = Stored.of(values[0])
        starts = numpy.arange(len(indices[0])) if decode else indices.pop(0)
        if q.bits.ndim != 3 or starts[-1] != q.shape[0]:
            raise Unknown(f"q is {list(q.shape)}, and its plan has {starts[-1]} queries")
        words |= {"q": q, "cu_seqlens_q": starts, "sinks": sinks, "k_scale": k_scale, "v_scale": v_scale}
        if paged:
            k, v = _pages(values[1], layout)
            first, pages, last = indices
            counts = numpy.diff(first)
            lengths = numpy.where(counts > 0, (counts - 1) * k.shape[1] + last, 0)
            words |= {"block_table": _block_table(first, pages), "seq_lens": lengths}
        else:
            k, v = (Stored.of(x) for x in values[1:3])
            if layout != "NHD":
                raise Unknown(f"its layout is {layout}, expected NHD")
            words |= {"cu_seqlens_k": indices[0]}
        made = settings["__init__"]
        if not decode or made.get("use_tensor_cores") or made.get("backend") in ("trtllm-gen", "cute-dsl"):
            words |= _rounded_weights(q)
        return [Judgement(0, "attention", {**words, "k": k, "v": v}, (q.shape[0], q.shape[1], v.shape[-1]))]

    return judge


def _block_table(first: numpy.ndarray, pages: numpy.ndarray) -> numpy.ndarray:
    """The pages of each sequence in a row, of a list of all and of where those of each begin."""
    counts = numpy.diff(first)
    table = numpy.zeros((len(counts), max(1, counts.max(initial=0))), numpy.int64)
    for row, (begin, count) in enumerate(zip(first, counts)):
        table[row, :count] = pages[begin : begin + count]
    return table


def _joined(*parts: Any) -> Stored:
    """Tensors of one type, one behind the other in the last dimension."""
    stored = [Stored.of(part) for part in parts]
    if len({part.dtype for part in stored}) > 1 or len({part.shape[:-1] for part in stored}) > 1:
        raise Unknown(f"its parts are {' and '.join(f'{part.dtype} {list(part.shape)}' for part in stored)}")
    return Stored(numpy.concatenate([part.bits for part in stored], -1), stored[0].dtype)


def _latent(given: dict[str, Any], settings: dict[str, Any]) -> list[Judgement]:
    """MLA with absorbed projections: all heads of a query read one key, a latent and its rotated part, and the latent is the
    value. Scales of a cache in FP8, and of an output in it, are not known."""
    if "plan" not in settings:
        raise Unknown("its plan was not recorded")
    ends = ("qo_indptr", "kv_indptr", "kv_indices", "kv_len_arr")
    of_heads = ("num_heads", "head_dim_ckv", "head_dim_kpe", "page_size", "q_data_type", "kv_data_type", "use_profiler")
    *planned, causal, scale = take(settings["plan"], (*ends, "causal", "sm_scale"), {}, of_heads)
    starts, first, pages, lengths = (_integers(x) for x in planned)
    tensors = ("q_nope", "q_pe", "ckv_cache", "kpe_cache")
    of_lse = {"return_lse": False, "return_lse_base_on_e": False}
    *parts, with_lse, base_e = take(given, tensors, of_lse, (*LAUNCH, "lse", "profiler_buffer"))
    q, k = _joined(*parts[:2]), _joined(*parts[2:])
    v = Stored.of(parts[2])
    if q.bits.ndim != 3 or k.bits.ndim != 3 or starts[-1] != q.shape[0]:
        raise Unknown(f"its queries are {list(q.shape)}, its cache {list(k.shape)}, and its plan has {starts[-1]} queries")
    words = {"q": q, "k": k[:, :, None], "v": v[:, :, None], "cu_seqlens_q": starts, "scale": scale, "causal": bool(causal)}
    words |= {"block_table": _block_table(first, pages), "seq_lens": lengths, **_rounded_weights(q)}
    shape = (q.shape[0], q.shape[1], v.shape[-1])
    outputs = [Judgement(0, "attention", words, shape, "o")]
    if with_lse:
        outputs.append(Judgement(1, "attention", {**words, "lse_base": "e" if base_e else "2"}, shape[:2], "lse"))
    return outputs


# By the wrapper's class and method, in FlashInfer; those for CUDA graphs compute the same.
WRAPPERS: dict[str, Method] = {
    f"{graph}{name}.run": _wrapper(decode, paged)
    for graph in ("", "CUDAGraph")
    for name, decode, paged in (
        ("BatchDecodeWithPagedKVCacheWrapper", True, True),
        ("BatchPrefillWithPagedKVCacheWrapper", False, True),
        ("BatchPrefillWithRaggedKVCacheWrapper", False, False),
    )
}
WRAPPERS["BatchMLAPagedAttentionWrapper.run"] = _latent

FUNCTIONS: dict[str, Function] = {
    "single_prefill_with_kv_cache": _single(False),
    "single_decode_with_kv_cache": _single(True),
}
