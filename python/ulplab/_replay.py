"""Calls that were recorded, computed once more from their inputs and judged."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import numpy

from . import _dumps, _errors, _native
from ._close import _outside, _where, unit
from ._files import Stored
from ._tensors import array, inputs as given_inputs


class _Unknown(Exception):
    """Why a call is not judged."""


@dataclass(frozen=True)
class _Output:
    """A recorded output that an operation is given."""

    at: int


# An output to judge: its place in the call's outputs, the operation, what it is given, and its shape there. Where right kernels
# differ, it is given one of several.
Judgement = tuple[int, str, "dict[str, Any] | list[dict[str, Any]]", "tuple[int, ...] | None"]


# What a method is given, and what its object has.
_Module = Callable[[dict[str, Any], dict[str, Any]], list[Judgement]]


def _take(given: dict[str, Any], needed: tuple[str, ...], optional: dict[str, Any], ignored: tuple[str, ...] = ()) -> list[Any]:
    """Arguments by name. What is neither known nor None makes the call one that is not judged."""
    extra = [
        name
        for name, value in given.items()
        if name not in needed and name not in optional and name not in ignored and value is not None
    ]
    if extra:
        raise _Unknown(f"its argument '{extra[0]}' is not known")
    missing = [name for name in needed if given.get(name) is None]
    if missing:
        raise _Unknown(f"its argument '{missing[0]}' was not recorded")
    values = [given[name] for name in needed]
    for name, default in optional.items():
        value = given.get(name)
        if isinstance(value, dict):
            raise _Unknown(f"its argument '{name}' is {value.get('type', 'an object')}")
        values.append(default if value is None else value)
    return values


# Where outputs are written, and how a kernel is launched: neither changes what it computes.
_LAUNCH = ("out", "enable_pdl", "backend")


def _rmsnorm(centered: bool) -> Callable[[dict[str, Any]], list[Judgement]]:
    def judge(given: dict[str, Any]) -> list[Judgement]:
        x, weight, eps = _take(given, ("input", "weight"), {"eps": 1e-6}, _LAUNCH)
        return [(0, "rmsnorm", {"x": x, "weight": weight, "eps": eps, "zero_centered": centered}, None)]

    return judge


def _silu_and_mul(given: dict[str, Any]) -> list[Judgement]:
    (x,) = _take(given, ("input",), {}, _LAUNCH)
    return [(0, "silu_and_mul", {"x": x}, None)]


def _softmax(given: dict[str, Any]) -> list[Judgement]:
    x, temperature = _take(given, ("logits",), {"temperature": 1.0}, (*_LAUNCH, "workspace_buffer"))
    if not isinstance(temperature, (int, float)) or temperature <= 0:
        raise _Unknown("its temperature is no positive number")
    return [(0, "softmax", {"x": x, "scale": 1.0 / temperature}, None)]


def _mm(given: dict[str, Any]) -> list[Judgement]:
    a, b, bias = _take(given, ("a", "b"), {"bias": None}, (*_LAUNCH, "out_dtype", "pdl"))
    return [(0, "matmul", {"a": a, "b": b, "bias": bias}, None)]


def _bmm(*scales: str) -> Callable[[dict[str, Any]], list[Judgement]]:
    def judge(given: dict[str, Any]) -> list[Judgement]:
        names = ("A", "B", *scales)
        values = _take(given, names, {}, (*_LAUNCH, "dtype", "out_dtype"))
        return [(0, "matmul", {name.lower(): value for name, value in zip(names, values)}, None)]

    return judge


def _layernorm(given: dict[str, Any]) -> list[Judgement]:
    x, weight, bias, eps = _take(given, ("input", "gemma", "beta"), {"eps": 1e-6}, _LAUNCH)
    words = {"x": x, "weight": weight, "bias": bias, "eps": eps}
    return [(0, "layernorm", words, None)]


def _reshaped(x: Any, shape: tuple[int, ...]) -> Stored:
    stored = Stored.of(x)
    return Stored(stored.bits.reshape(shape), stored.dtype)


def _single(decode: bool) -> Callable[[dict[str, Any]], list[Judgement]]:
    plain = {
        "kv_layout": "NHD",
        "pos_encoding_mode": "NONE",
        "causal": False,
        "sm_scale": None,
        "window_left": -1,
        "logits_soft_cap": 0.0,
    }
    plain |= {"use_fp16_qk_reduction": False, "use_tensor_cores": False}

    def judge(given: dict[str, Any]) -> list[Judgement]:
        ignored = (*_LAUNCH, "return_lse", "kv_cache_sf", "rope_scale", "rope_theta")
        q, k, v, layout, pos, causal, scale, window, cap, half, tensor_cores = _take(given, ("q", "k", "v"), plain, ignored)
        if pos != "NONE" or cap or half:
            raise _Unknown(f"pos_encoding_mode = {pos}, logits_soft_cap = {cap}, use_fp16_qk_reduction = {half}")
        q, k, v = (Stored.of(x) for x in (q, k, v))
        if k.bits.ndim != 3 or v.bits.ndim != 3 or q.bits.ndim != (2 if decode else 3) or layout not in ("NHD", "HND"):
            raise _Unknown(f"q, k, v are {list(q.shape)}, {list(k.shape)}, {list(v.shape)} in the layout {layout}")
        if layout == "HND":
            k, v = (Stored(x.bits.swapaxes(0, 1), x.dtype) for x in (k, v))
        if decode:
            q = _reshaped(q, (1, *q.shape))
        q, k, v = (_reshaped(x, (1, *x.shape)) for x in (q, k, v))
        if window >= 0 and not (causal or decode):
            raise _Unknown("it has a window without a causal mask")
        words = {"q": q, "k": k, "v": v, "scale": scale, "causal": bool(causal or decode)}
        # FlashInfer counts the keys to the left, the operation the query's own, too.
        words |= {"window": window + 1} if window >= 0 else {}
        words |= _rounded_weights(q) if not decode or tensor_cores else {}
        return [(0, "attention", words, (1, q.shape[1], q.shape[2], v.shape[3]))]

    return judge


# The types that tensor cores take weights in, by that of the queries.
_WEIGHTS = {"bfloat16": "bf16", "float16": "f16", "float8_e4m3fn": "e4m3"}


def _rounded_weights(q: Stored) -> dict[str, str]:
    """Tensor cores multiply values by weights of the queries' type; a cache of fewer bits is widened to it."""
    if q.dtype not in _WEIGHTS:
        raise _Unknown(f"its queries are {q.dtype}, which tensor cores do not take")
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
            raise _Unknown(f"its cache is {list(both.shape)}, expected [pages, 2, ...] or two tensors")
        k, v = both[:, 0], both[:, 1]
    if k.bits.ndim != 4 or v.bits.ndim != 4 or layout not in ("NHD", "HND"):
        raise _Unknown(f"its keys and values are {list(k.shape)} and {list(v.shape)} in the layout {layout}")
    return (k, v) if layout == "NHD" else (Stored(k.bits.swapaxes(1, 2), k.dtype), Stored(v.bits.swapaxes(1, 2), v.dtype))


# What a plan says of how it is computed, and what `run` says of where results go. Numbers of heads and types are those of the
# tensors.
_PLANNED = ("num_qo_heads", "num_kv_heads", "head_dim", "head_dim_qk", "head_dim_vo", "page_size", "q_data_type", "kv_data_type")
_PLANNED += ("o_data_type", "data_type", "rope_scale", "rope_theta", "non_blocking", "fixed_split_size", "disable_split_kv")
_PLANNED += ("block_tables", "seq_lens", "seq_lens_q", "max_token_per_sequence", "max_sequence_kv", "max_q_len", "max_kv_len")
_RUN = (*_LAUNCH, "lse", "return_lse", "kv_block_scales")


def _wrapper(decode: bool, paged: bool) -> _Module:
    """A batch wrapper's ``run``: sequences and pages are those of its plan."""

    def judge(given: dict[str, Any], settings: dict[str, Any]) -> list[Judgement]:
        for name in ("__init__", "plan"):
            if name not in settings:
                raise _Unknown(f"its {name} was not recorded")
        layout = settings["__init__"].get("kv_layout") or "NHD"
        ends = {
            (True, True): ("indptr", "indices", "last_page_len"),
            (False, True): ("qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len"),
            (False, False): ("qo_indptr", "kv_indptr"),
        }[decode, paged]
        plain = {"causal": False, "pos_encoding_mode": "NONE", "window_left": -1, "logits_soft_cap": 0.0, "sm_scale": None}
        plain |= {"use_fp16_qk_reduction": False}
        planned = _take(settings["plan"], ends, plain, _PLANNED)
        indices, (causal, pos, window, cap, scale, half) = [_integers(x) for x in planned[: len(ends)]], planned[len(ends) :]
        tensors = ("q", "paged_kv_cache") if paged else ("q", "k", "v")
        scales = {"window_left": None, "k_scale": 1.0, "v_scale": 1.0, "sinks": None}
        values = _take(given, tensors, scales, _RUN)
        now, k_scale, v_scale, sinks = values[len(tensors) :]
        window = window if now is None else now
        if pos != "NONE" or cap or half:
            raise _Unknown(f"pos_encoding_mode = {pos}, logits_soft_cap = {cap}, use_fp16_qk_reduction = {half}")
        if window >= 0 and not (causal or decode):
            raise _Unknown("it has a window without a causal mask")
        q = Stored.of(values[0])
        starts = numpy.arange(len(indices[0])) if decode else indices.pop(0)
        if q.bits.ndim != 3 or starts[-1] != q.shape[0]:
            raise _Unknown(f"q is {list(q.shape)}, and its plan has {starts[-1]} queries")
        words: dict[str, Any] = {"q": q, "cu_seqlens_q": starts, "scale": scale, "causal": bool(causal or decode)}
        words |= {"sinks": sinks, "k_scale": k_scale, "v_scale": v_scale, "window": window + 1 if window >= 0 else 0}
        if paged:
            k, v = _pages(values[1], layout)
            first, pages, last = indices
            counts = numpy.diff(first)
            table = numpy.zeros((len(counts), max(1, counts.max(initial=0))), numpy.int64)
            for row, (begin, count) in enumerate(zip(first, counts)):
                table[row, :count] = pages[begin : begin + count]
            words |= {"block_table": table, "seq_lens": numpy.where(counts > 0, (counts - 1) * k.shape[1] + last, 0)}
        else:
            k, v = (Stored.of(x) for x in values[1:3])
            if layout != "NHD":
                raise _Unknown(f"its layout is {layout}, expected NHD")
            words |= {"cu_seqlens_k": indices[0]}
        made = settings["__init__"]
        if not decode or made.get("use_tensor_cores") or made.get("backend") in ("trtllm-gen", "cute-dsl"):
            words |= _rounded_weights(q)
        return [(0, "attention", {**words, "k": k, "v": v}, (q.shape[0], q.shape[1], v.shape[-1]))]

    return judge


# By the wrapper's class and method, in FlashInfer; those for CUDA graphs compute the same.
_WRAPPERS: dict[str, _Module] = {
    f"{graph}{name}.run": _wrapper(decode, paged)
    for graph in ("", "CUDAGraph")
    for name, decode, paged in (
        ("BatchDecodeWithPagedKVCacheWrapper", True, True),
        ("BatchPrefillWithPagedKVCacheWrapper", False, True),
        ("BatchPrefillWithRaggedKVCacheWrapper", False, False),
    )
}


def _rope(given: dict[str, Any]) -> list[Judgement]:
    names = ("positions", "query", "key", "head_size", "cos_sin_cache")
    positions, query, key, size, cache, neox = _take(given, names, {"is_neox": True}, _LAUNCH)
    positions, cache, size = Stored.of(positions), Stored.of(cache), int(size)
    half = cache.shape[-1] // 2
    rows = cache.bits[positions.bits.reshape(-1)]
    cos, sin = (Stored(part, cache.dtype) for part in (rows[:, :half], rows[:, half:]))
    judgements: list[Judgement] = []
    for at, x in enumerate((query, key)):
        x = _reshaped(x, (rows.shape[0], -1, size))
        words = {"x": x, "cos": cos, "sin": sin, "pairing": "half" if neox else "interleaved"}
        judgements.append((at, "rope", words, x.shape))
    return judgements


# By the function's name, in FlashInfer.
_FLASHINFER: dict[str, Callable[[dict[str, Any]], list[Judgement]]] = {
    "rmsnorm": _rmsnorm(False),
    "gemma_rmsnorm": _rmsnorm(True),
    "silu_and_mul": _silu_and_mul,
    "softmax": _softmax,
    "mm_bf16": _mm,
    "bmm_bf16": _bmm(),
    "bmm_fp8": _bmm("A_scale", "B_scale"),
    "layernorm": _layernorm,
    "single_prefill_with_kv_cache": _single(False),
    "single_decode_with_kv_cache": _single(True),
    "apply_rope_with_cos_sin_cache": _rope,
}


def _torch_softmax(given: dict[str, Any]) -> list[Judgement]:
    x, dim = _take(given, ("arg_0",), {"dim": given.get("arg_1")}, ("arg_1", "_stacklevel"))
    if dim not in (-1, Stored.of(x).bits.ndim - 1):
        raise _Unknown(f"dim = {dim}, expected the last")
    return [(0, "softmax", {"x": x}, None)]


def _torch_matmul(given: dict[str, Any]) -> list[Judgement]:
    a, b = _take(given, ("arg_0", "arg_1"), {})
    if Stored.of(b).bits.ndim != 2:
        raise _Unknown(f"the second factor is {list(Stored.of(b).shape)}, expected [K, N]")
    return [(0, "matmul", {"a": a, "b": b}, None)]


def _torch_linear(given: dict[str, Any]) -> list[Judgement]:
    a, b, bias = _take(given, ("arg_0", "arg_1"), {"bias": given.get("arg_2")}, ("arg_2",))
    return [(0, "matmul", {"a": a, "b": b, "bias": bias, "b_rows": "n"}, None)]


def _npu_rms_norm(given: dict[str, Any]) -> list[Judgement]:
    x, weight, eps = _take(given, ("arg_0", "arg_1"), {"epsilon": given.get("arg_2") or 1e-6}, ("arg_2",))
    return [(0, "rmsnorm", {"x": x, "weight": weight, "eps": eps}, None)]


# By the part of msProbe's name that says what is called.
_MSPROBE = {
    "Functional.softmax": _torch_softmax,
    "Torch.softmax": _torch_softmax,
    "Torch.matmul": _torch_matmul,
    "Torch.mm": _torch_matmul,
    "Functional.linear": _torch_linear,
    "NPU.npu_rms_norm": _npu_rms_norm,
}


def _eps(settings: dict[str, Any]) -> float:
    found = [settings[name] for name in ("variance_epsilon", "eps", "epsilon") if isinstance(settings.get(name), float)]
    if not found:
        raise _Unknown("its ε is not known: it has no attribute variance_epsilon, eps or epsilon")
    return found[0]


def _of_last_dimension(settings: dict[str, Any]) -> None:
    """Refuses norms over several dimensions, and over a part of one."""
    shape, part = settings.get("normalized_shape"), settings.get("variance_size_override")
    if isinstance(shape, list) and len(shape) != 1 or part is not None:
        raise _Unknown(f"normalized_shape = {shape}, variance_size_override = {part}; expected a norm over the last dimension")


def _rms_module(centered: bool = False, cast: str | None = None) -> _Module:
    def judge(given: dict[str, Any], settings: dict[str, Any]) -> list[Judgement]:
        x, weight, residual = _take(given, ("arg_0",), {"weight": None, "residual": given.get("arg_1")}, ("arg_1",))
        _of_last_dimension(settings)
        words = {"weight": weight, "eps": _eps(settings), "zero_centered": centered, "cast": cast}
        if residual is None:
            return [(0, "rmsnorm", {"x": x, **words}, None)]
        # The sum is stored; its own rounding is judged as that of a product with two ones. What is normed is what was stored
        # (vLLM), or the sum before that (FlashInfer, SGLang).
        terms = numpy.stack([Stored.of(part).widened() for part in (x, residual)], axis=-1)
        normed = [{"x": one, **words} for one in (_Output(1), terms.sum(-1).astype(numpy.float32))]
        total = {"a": terms.reshape(-1, 2), "b": numpy.ones((2, 1))}
        return [(0, "rmsnorm", normed, None), (1, "matmul", total, (terms.size // 2, 1))]

    return judge


def _linear_module(given: dict[str, Any], settings: dict[str, Any]) -> list[Judgement]:
    x, weight, bias = _take(given, ("arg_0", "weight"), {"bias": None})
    x, weight = Stored.of(x), Stored.of(weight)
    rows = math.prod(x.shape[:-1])
    flat = _reshaped(x, (rows, x.shape[-1]))
    return [(0, "matmul", {"a": flat, "b": weight, "bias": bias, "b_rows": "n"}, (rows, weight.shape[0]))]


def _layer_module(given: dict[str, Any], settings: dict[str, Any]) -> list[Judgement]:
    x, weight, bias = _take(given, ("arg_0",), {"weight": None, "bias": None})
    _of_last_dimension(settings)
    return [(0, "layernorm", {"x": x, "weight": weight, "bias": bias, "eps": _eps(settings)}, None)]


def _silu_module(given: dict[str, Any], settings: dict[str, Any]) -> list[Judgement]:
    return [(0, "silu_and_mul", {"x": _take(given, ("arg_0",), {})[0]}, None)]


#: What modules may be said to be, by name.
_KINDS: dict[str, _Module] = {
    "rmsnorm": _rms_module(),
    "rmsnorm_cast": _rms_module(cast="before_weight"),
    "gemma_rmsnorm": _rms_module(centered=True),
    "layernorm": _layer_module,
    "linear": _linear_module,
    "silu_and_mul": _silu_module,
}

# Kinds of classes, as torch, vLLM and SGLang (the first), and transformers call them. A package before a name is one that
# differs: vLLM's kernels round before the weight.
_CLASSES = {
    "vllm.RMSNorm": "rmsnorm_cast",
    "RMSNorm": "rmsnorm",
    "LayerNorm": "layernorm",
    "Linear": "linear",
    "SiluAndMul": "silu_and_mul",
    **{f"{model}RMSNorm": "rmsnorm_cast" for model in ("Llama", "Mistral", "Mixtral", "Qwen2", "Qwen3", "Qwen3Moe", "DeepseekV3")},
    **{f"Gemma{version}RMSNorm": "gemma_rmsnorm" for version in ("", 2, 3)},
}


def _known(call: _dumps.Recorded, method: _Module | None) -> Callable[[dict[str, Any]], list[Judgement]] | None:
    """A function of what is given alone."""
    return method and (lambda given: method(given, call.settings))


@dataclass(frozen=True)
class Replayed:
    """What was found of an output of a recorded call."""

    function: str
    path: str
    #: ``failed``, ``biased``, ``passed`` or ``not judged``.
    verdict: str
    #: The largest error over its bound; None if it was not judged.
    ratio: float | None
    #: What is wrong, or why it was not judged.
    message: str
    op: str = ""


class Replay(list):
    """The calls that were replayed, the worst first. ``print`` shows them."""

    def of(self, verdict: str) -> list[Replayed]:
        """Those with a verdict."""
        return [call for call in self if call.verdict == verdict]

    def __str__(self) -> str:
        counts = ", ".join(f"{len(self.of(verdict)):,} {verdict}" for verdict in _VERDICTS)
        lines = [f"{len(self):,} outputs of calls: {counts}"]
        for call in self:
            ratio = "" if call.ratio is None else f", error / bound {call.ratio:.3g}"
            lines.append(f"{call.verdict}: {call.function}{f' as {call.op}' if call.op else ''}{ratio} ({call.path})")
            lines += [f"    {line.strip()}" for line in call.message.splitlines()]
        return "\n".join(lines)


_VERDICTS = ("failed", "biased", "passed", "not judged")


def replay(folder: str | os.PathLike[str], accumulate: str = "f32", *, modules: dict[str, str] | None = None) -> Replay:
    """Computes recorded calls once more in f64 from their recorded inputs, and judges their recorded outputs: the worst first.

    ``folder`` is what `ulplab.record` wrote, or FlashInfer's flight recorder (``FLASHINFER_LOGLEVEL=10
    FLASHINFER_DUMP_SAFETENSORS=1``), or msProbe with ``npy`` files. ``modules`` says what classes of recorded modules are, beside
    those that are known: ``{"MyNorm": "rmsnorm"}`` or ``{"package.MyNorm": "rmsnorm"}``, one of rmsnorm, rmsnorm_cast (which
    rounds before the weight), gemma_rmsnorm (which multiplies by 1 + weight), layernorm, linear and silu_and_mul; ``{"Linear":
    ""}`` leaves a class out. Calls of functions and with arguments that are not known, that have no outputs, or whose files
    cannot be read are *not judged*, and never passed. ``.pt`` files are read by torch if the caller has imported it
    (``weights_only=True``). ``accumulate`` is the type that kernels add in. ValueError if the folder holds none of these.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(f"{folder} is no folder")
    unit(accumulate)
    classes = {**_CLASSES, **(modules or {})}
    unknown = [kind for kind in classes.values() if kind and kind not in _KINDS]
    if unknown:
        raise ValueError(f"modules: '{unknown[0]}' is no kind of module, expected one of {', '.join(_KINDS)}")
    calls = []
    for call in _dumps.flashinfer(root):
        calls.append((call, _FLASHINFER.get(call.function) or _known(call, _WRAPPERS.get(call.function))))
    for call in _dumps.msprobe(root):
        calls.append((call, _MSPROBE.get(".".join(call.function.split(".")[:2]))))
    for call in _dumps.recordings(root):
        kind = classes.get(call.function, classes.get(call.function.rpartition(".")[2]))
        calls.append((call, _known(call, _KINDS[kind] if kind else None)))
    if not calls:
        raise ValueError(
            f"{folder} holds no calls: neither recording.json of ulplab.record, metadata.jsonl of FlashInfer's recorder, nor "
            "dump.json of msProbe"
        )
    found = [one for call, known in calls for one in _judged(call, known, accumulate)]
    found.sort(key=lambda one: (_VERDICTS.index(one.verdict), -(one.ratio or 0.0)))
    return Replay(found)


def _given(words: dict[str, Any], outputs: list[Any]) -> dict[str, Any]:
    """What an operation is given, with the recorded outputs among it."""
    missing = [value.at for value in words.values() if isinstance(value, _Output) and value.at >= len(outputs)]
    if missing:
        raise _Unknown(f"output {missing[0]} was not recorded")
    return given_inputs({name: outputs[value.at] if isinstance(value, _Output) else value for name, value in words.items()})


def _judged(call: _dumps.Recorded, known: Callable[[dict[str, Any]], list[Judgement]] | None, accumulate: str) -> list[Replayed]:
    def refused(why: str, op: str = "") -> Replayed:
        return Replayed(call.function, call.path, "not judged", None, why, op)

    if call.missing:
        return [refused(call.missing)]
    if known is None:
        return [refused("the function is not known")]
    try:
        judgements = known(call.given)
    except _Unknown as error:
        return [refused(str(error))]
    except (ValueError, TypeError, IndexError, AttributeError) as error:
        return [refused(f"{type(error).__name__}: {error}")]
    found = []
    for at, op, given, shape in judgements:
        try:
            if at >= len(call.outputs):
                raise _Unknown(f"output {at} was not recorded")
            got = Stored.of(call.outputs[at])
            got = got if shape is None else _reshaped(got, shape)
            held = array(got, "got")
            choices = [_given(one, call.outputs) for one in (given if isinstance(given, list) else [given])]
            all_judged = [_native.judge(op, held, one, unit(accumulate), None) for one in choices]
            judged = min(all_judged, key=lambda one: one["outside"])
        except (_Unknown, ValueError, TypeError) as error:
            found.append(refused(str(error), op))
            continue
        except AssertionError as error:
            found.append(Replayed(call.function, call.path, "failed", float("inf"), str(error), op))
            continue
        ratio = float(_errors.ratios(judged["got"], judged["value"], judged["bound"]).max(initial=0.0))
        if judged["outside"]:
            lines = [_outside("output", held, judged, "the bound"), *_where(judged["got"], judged["value"], judged["bound"], True)]
            lines += [f"looks like {what}; then {outside:,} elements are outside" for what, outside in judged["like"][:4]]
            lines += [call.caution] if call.caution else []
            found.append(Replayed(call.function, call.path, "failed", ratio, "\n".join(lines), op))
            continue
        biased = []
        if _errors.judged(op) and judged["value"].size:
            biased = _errors.Bias(
                op, *(judged[part] for part in ("got", "value", "error", "bound")), held.dtype, unit(accumulate)
            ).found()
        found.append(Replayed(call.function, call.path, "biased" if biased else "passed", ratio, "\n".join(biased), op))
    return found
