"""The operations of calls that FlashInfer recorded, other than attention."""

from __future__ import annotations

from typing import Any

import numpy

from . import _flashinfer_attention
from ._calls import LAUNCH, Function, Judgement, Unknown, reshaped, take, with_settings
from ._dumps import Recorded
from ._files import Stored
from ._quantized import unplaced


def _rmsnorm(centered: bool) -> Function:
    def judge(given: dict[str, Any]) -> list[Judgement]:
        x, weight, eps = take(given, ("input", "weight"), {"eps": 1e-6}, LAUNCH)
        return [Judgement(0, "rmsnorm", {"x": x, "weight": weight, "eps": eps, "zero_centered": centered})]

    return judge


def _silu_and_mul(given: dict[str, Any]) -> list[Judgement]:
    (x,) = take(given, ("input",), {}, LAUNCH)
    return [Judgement(0, "silu_and_mul", {"x": x})]


def _softmax(given: dict[str, Any]) -> list[Judgement]:
    x, temperature = take(given, ("logits",), {"temperature": 1.0}, (*LAUNCH, "workspace_buffer"))
    if not isinstance(temperature, (int, float)) or temperature <= 0:
        raise Unknown("its temperature is no positive number")
    return [Judgement(0, "softmax", {"x": x, "scale": 1.0 / temperature})]


def _mm(given: dict[str, Any]) -> list[Judgement]:
    a, b, bias = take(given, ("a", "b"), {"bias": None}, (*LAUNCH, "out_dtype", "pdl"))
    return [Judgement(0, "matmul", {"a": a, "b": b, "bias": bias})]


def _bmm(*scales: str) -> Function:
    def judge(given: dict[str, Any]) -> list[Judgement]:
        names = ("A", "B", *scales)
        values = take(given, names, {}, (*LAUNCH, "dtype", "out_dtype"))
        return [Judgement(0, "matmul", {name.lower(): value for name, value in zip(names, values)})]

    return judge


def _fp8_groupwise(given: dict[str, Any]) -> list[Judgement]:
    words = {"scale_major_mode": "not given", "scale_granularity_mnk": (1, 128, 128)}
    a, b, *scales, major, blocks = take(given, ("a", "b", "a_scale", "b_scale"), words, (*LAUNCH, "mma_sm", "out_dtype"))
    if major not in ("K", "MN"):
        raise Unknown(f"its scale_major_mode is {major}, expected K or MN")
    scales = [Stored.of(scale) for scale in scales]
    if major == "MN":
        scales = [Stored(scale.bits.T, scale.dtype) for scale in scales]
    if not (isinstance(blocks, (list, tuple)) and [type(size) for size in blocks] == [int] * 3):
        raise Unknown(f"its scale_granularity_mnk is {blocks!r}, expected three whole numbers")
    sizes = dict(zip(("m_block", "n_block", "k_block"), blocks))
    return [Judgement(0, "matmul", {"a": a, "b": b, "a_scale": scales[0], "b_scale": scales[1], "b_rows": "n", **sizes})]


def _alpha(alpha: Any) -> float:
    """A factor that is a number, or a tensor of one."""
    if alpha is None or isinstance(alpha, (int, float)):
        return 1.0 if alpha is None else float(alpha)
    values = Stored.of(alpha).widened()
    if values.size != 1:
        raise Unknown(f"its alpha is {list(values.shape)}, expected one number")
    return float(values.item())


def _mm_fp8(given: dict[str, Any]) -> list[Judgement]:
    """The weight is [K, N], or as ``prepare_low_latency_gemm_weights`` gives it."""
    a, b, alpha = take(given, ("a", "b"), {"alpha": None}, (*LAUNCH, "out_dtype"))
    b = Stored.of(b)
    if b.bits.ndim == 3:
        # [K/128, N, 128], and of each 32 rows the fourth ones lie together: 0, 4, ..., 28, 1, 5, ...
        blocks, rows, size = b.shape
        if rows % 32:
            raise Unknown(f"its weight is {list(b.shape)}, expected [K/128, N, 128] with N a multiple of 32")
        bits = b.bits.swapaxes(0, 1).reshape(rows // 32, 4, 8, blocks * size)
        b = Stored(bits.swapaxes(1, 2).reshape(rows, blocks * size), b.dtype)
        return [Judgement(0, "matmul", {"a": a, "b": b, "b_rows": "n", "alpha": _alpha(alpha)})]
    return [Judgement(0, "matmul", {"a": a, "b": b, "alpha": _alpha(alpha)})]


def _mm_fp4(given: dict[str, Any]) -> list[Judgement]:
    """Codes with scales in the order of tensor cores, as ``nvfp4_quantize`` and ``mxfp4_quantize`` give them."""
    names = ("a", "b", "a_descale", "b_descale")
    words = {"alpha": None, "block_size": 16, "use_8x4_sf_layout": False, "use_nvfp4": True, "backend": "auto"}
    *tensors, alpha, block, few_rows, nvfp4, backend = take(given, names, words, ("out", "out_dtype", "enable_pdl"))
    if backend == "trtllm":
        raise Unknown("the rows of its weight are shuffled: backend = trtllm")
    if block != (16 if nvfp4 else 32):
        raise Unknown(f"block_size = {block} with use_nvfp4 = {nvfp4}, expected 16 for NVFP4 and 32 for MXFP4")
    a, b, *scales = (Stored.of(x) for x in tensors)
    # FlashInfer is given the transposes of b and of its scales.
    b, scales[1] = Stored(b.bits.T, b.dtype), Stored(scales[1].bits.T, scales[1].dtype)
    given = {"a": a, "b": b, "b_rows": "n", "a_codes": "e2m1", "b_codes": "e2m1", "alpha": _alpha(alpha)}
    for name, codes, scale, layout in zip("ab", (a, b), scales, ("8x4" if few_rows else "128x4", "128x4")):
        rows, cols = codes.shape[0], 2 * codes.shape[1] // block
        placed = numpy.ascontiguousarray(scale.bits).view(numpy.uint8).reshape(-1)
        given[f"{name}_scale"] = Stored(unplaced(placed, rows, cols, layout), "float8_e4m3fn" if nvfp4 else "float8_e8m0fnu")
    return [Judgement(0, "matmul", given)]


def _top_k(given: dict[str, Any], outputs: list[Any]) -> list[Judgement]:
    """Unless it is ``sorted``, the order of what is found is not promised; that of equal elements never is."""
    ignored = ("deterministic", "dsa_graph_safe")
    x, k, in_order, tie_break = take(given, ("input", "k"), {"sorted": False, "tie_break": 0}, ignored)
    if tie_break not in (0, 1) or len(outputs) != 2:
        raise Unknown(f"tie_break = {tie_break}, and {len(outputs)} outputs; expected 0 or 1, and 2")
    values, indices = (Stored.of(one) for one in outputs)
    # NaN counts as larger than infinity.
    numbers = values.widened()
    of_nan = numpy.isnan(numbers)
    numbers = numpy.where(of_nan, numpy.inf, numbers)
    if in_order:
        changes = numpy.ones_like(of_nan)
        changes[..., 1:] = (numbers[..., 1:] != numbers[..., :-1]) | (of_nan[..., 1:] != of_nan[..., :-1])
        order = numpy.lexsort((indices.bits, changes.cumsum(axis=-1)))
    else:
        order = numpy.lexsort((indices.bits, -numbers, ~of_nan))
    words = {"x": x, "k": k, "ties": "lower_index" if tie_break else "any"}
    return [
        Judgement(at, "top_k", words, None, name, Stored(numpy.take_along_axis(one.bits, order, -1), one.dtype))
        for at, (name, one) in enumerate((("values", values), ("indices", indices)))
    ]


def _layernorm(given: dict[str, Any]) -> list[Judgement]:
    x, weight, bias, eps = take(given, ("input", "gemma", "beta"), {"eps": 1e-6}, LAUNCH)
    words = {"x": x, "weight": weight, "bias": bias, "eps": eps}
    return [Judgement(0, "layernorm", words)]


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
        judgements.append(Judgement(at, "rope", words, x.shape))
    return judgements


# The unit roundoff of f32.
_U = 2.0**-24


def _exp_error(x: numpy.ndarray) -> numpy.ndarray:
    """The relative error of ex2.approx of x·log2(e): two units in the last place (PTX), and two roundings of the exponent."""
    error: numpy.ndarray = (4 + 2 * numpy.abs(x)) * _U
    return error


def _gates(*given: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """g = -exp(A_log)·softplus(a + dt_bias) and beta = sigmoid(b), and both at the ends of what they are in a kernel.

    lg2.approx is off by 2^-22, or by that times its value if this is larger (PTX). The argument of the logarithm is off by
    what its exponential is, whose share of it is sigmoid(x). Above 20 softplus(x) is x.
    """
    a_log, a, dt_bias, b = (Stored.of(x).widened() for x in given)
    x = a + dt_bias
    with numpy.errstate(over="ignore"):
        plus, share, rate = numpy.logaddexp(0, x), 1 / (1 + numpy.exp(-x)), numpy.exp(a_log)
        beta = 1 / (1 + numpy.exp(-b))
    off = _U * (2 + 4 * numpy.maximum(1, plus) + 2 * plus) + share * (_exp_error(x) + _U * numpy.abs(x))
    g = -rate * plus
    g_off = rate * off - g * (_exp_error(a_log) + _U)
    beta_off = beta * ((1 - beta) * _exp_error(b) + 6 * _U)
    ends = [{"g": numpy.minimum(g + one * g_off, 0), "beta": beta + two * beta_off} for one in (-1, 1) for two in (-1, 1)]
    return {"g": g, "beta": beta}, ends


def _gated_delta(layout: str) -> Function:
    """One token, whose gates the kernel computes: output and state are linear in the decay and in beta, so they lie between
    those at the ends of both."""

    def judge(given: dict[str, Any]) -> list[Judgement]:
        names = ("q", "k", "v", "state", "A_log", "a", "dt_bias", "b")
        q, k, v, state, *gates, scale, l2norm = take(given, names, {"scale": None, "use_qk_l2norm": True}, ("output",))
        q, state = Stored.of(q), Stored.of(state)
        if q.shape[1:2] != (1,) or state.dtype != "float32":
            raise Unknown(f"q is {list(q.shape)} and its state {state.dtype}, expected one token and float32")
        words, corners = _gates(*gates)
        words |= {"q": q, "k": k, "v": v, "state": state, "scale": scale, "l2norm": l2norm, "eps": 1e-6, "layout": layout}
        return [Judgement(at, "gated_delta", words, None, name, corners=corners) for at, name in enumerate(("o", "state"))]

    return judge


# By the function's name, in FlashInfer.
_FUNCTIONS: dict[str, Function] = {
    **_flashinfer_attention.FUNCTIONS,
    "rmsnorm": _rmsnorm(False),
    "gemma_rmsnorm": _rmsnorm(True),
    "silu_and_mul": _silu_and_mul,
    "softmax": _softmax,
    "mm_bf16": _mm,
    "bmm_bf16": _bmm(),
    "gemm_fp8_nt_groupwise": _fp8_groupwise,
    "mm_fp8": _mm_fp8,
    "mm_fp4": _mm_fp4,
    "bmm_fp8": _bmm("A_scale", "B_scale"),
    "layernorm": _layernorm,
    "gated_delta_rule_decode": _gated_delta("kv"),
    "gated_delta_rule_decode_pretranspose": _gated_delta("vk"),
    "apply_rope_with_cos_sin_cache": _rope,
}


# Why calls of functions that are known are not judged.
_NOT_JUDGED = {
    "chunk_gated_delta_rule": "it multiplies matrices of a chunk, whose rounding the bound of the recurrence does not have",
    "gated_delta_rule_mtp": "it computes gates of several tokens, and errors of the first are in the state of the next",
}


def _refuse(why: str) -> Function:
    def judge(given: dict[str, Any]) -> list[Judgement]:
        raise Unknown(why)

    return judge


def known(call: Recorded) -> Function | None:
    """The operations of a call of FlashInfer; None if they are not known."""
    if call.function == "top_k":
        return lambda given: _top_k(given, call.outputs)
    if call.function in _NOT_JUDGED:
        return _refuse(_NOT_JUDGED[call.function])
    return _FUNCTIONS.get(call.function) or with_settings(_flashinfer_attention.WRAPPERS.get(call.function), call)
