"""What recorded calls compute: an operation for each output that is known, and what it is given."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Callable

import numpy

from ._dumps import Recorded
from ._files import Stored


class Unknown(Exception):
    """Why a call is not judged."""


@dataclass(frozen=True)
class Output:
    """A recorded output that an operation is given."""

    at: int


@dataclass(frozen=True)
class Judgement:
    """An output to judge."""

    #: Its place in the call's outputs.
    at: int
    op: str
    #: What the operation is given.
    given: dict[str, Any]
    #: Its shape in the operation, if that is another.
    shape: tuple[int, ...] | None = None
    #: Its name in the operation, if that has several.
    output: str | None = None
    #: The output itself, if its order is not promised and is settled here.
    settled: Stored | None = None
    #: What else the operation is given, where right kernels differ, by what a verdict says of it: the first that holds counts.
    choices: dict[str, dict[str, Any]] = field(default_factory=lambda: {"": {}})


#: A function of what a call is given.
Function = Callable[[dict[str, Any]], list[Judgement]]
#: A function of what a method is given, and of what its object has.
Method = Callable[[dict[str, Any], dict[str, Any]], list[Judgement]]


def _take(given: dict[str, Any], needed: tuple[str, ...], optional: dict[str, Any], ignored: tuple[str, ...] = ()) -> list[Any]:
    """Arguments by name. What is neither known nor None makes the call one that is not judged."""
    extra = [
        name
        for name, value in given.items()
        if name not in needed and name not in optional and name not in ignored and value is not None
    ]
    if extra:
        raise Unknown(f"its argument '{extra[0]}' is not known")
    missing = [name for name in needed if given.get(name) is None]
    if missing:
        raise Unknown(f"its argument '{missing[0]}' was not recorded")
    values = [given[name] for name in needed]
    for name, default in optional.items():
        value = given.get(name)
        if isinstance(value, dict):
            raise Unknown(f"its argument '{name}' is {value.get('type', 'an object')}")
        values.append(default if value is None else value)
    return values


# Where outputs are written, and how a kernel is launched: neither changes what it computes.
_LAUNCH = ("out", "enable_pdl", "backend")


def _rmsnorm(centered: bool) -> Function:
    def judge(given: dict[str, Any]) -> list[Judgement]:
        x, weight, eps = _take(given, ("input", "weight"), {"eps": 1e-6}, _LAUNCH)
        return [Judgement(0, "rmsnorm", {"x": x, "weight": weight, "eps": eps, "zero_centered": centered})]

    return judge


def _silu_and_mul(given: dict[str, Any]) -> list[Judgement]:
    (x,) = _take(given, ("input",), {}, _LAUNCH)
    return [Judgement(0, "silu_and_mul", {"x": x})]


def _softmax(given: dict[str, Any]) -> list[Judgement]:
    x, temperature = _take(given, ("logits",), {"temperature": 1.0}, (*_LAUNCH, "workspace_buffer"))
    if not isinstance(temperature, (int, float)) or temperature <= 0:
        raise Unknown("its temperature is no positive number")
    return [Judgement(0, "softmax", {"x": x, "scale": 1.0 / temperature})]


def _mm(given: dict[str, Any]) -> list[Judgement]:
    a, b, bias = _take(given, ("a", "b"), {"bias": None}, (*_LAUNCH, "out_dtype", "pdl"))
    return [Judgement(0, "matmul", {"a": a, "b": b, "bias": bias})]


def _bmm(*scales: str) -> Function:
    def judge(given: dict[str, Any]) -> list[Judgement]:
        names = ("A", "B", *scales)
        values = _take(given, names, {}, (*_LAUNCH, "dtype", "out_dtype"))
        return [Judgement(0, "matmul", {name.lower(): value for name, value in zip(names, values)})]

    return judge


def _fp8_groupwise(given: dict[str, Any]) -> list[Judgement]:
    ignored = (*_LAUNCH, "mma_sm", "scale_granularity_mnk", "out_dtype")
    a, b, *scales, major = _take(given, ("a", "b", "a_scale", "b_scale"), {"scale_major_mode": "not given"}, ignored)
    if major not in ("K", "MN"):
        raise Unknown(f"its scale_major_mode is {major}, expected K or MN")
    scales = [Stored.of(scale) for scale in scales]
    if major == "MN":
        scales = [Stored(scale.bits.T, scale.dtype) for scale in scales]
    return [Judgement(0, "matmul", {"a": a, "b": b, "a_scale": scales[0], "b_scale": scales[1], "b_rows": "n"})]


def _top_k(given: dict[str, Any], outputs: list[Any]) -> list[Judgement]:
    """Unless it is ``sorted``, the order of what is found is not promised; that of equal elements never is."""
    ignored = ("deterministic", "dsa_graph_safe")
    x, k, in_order, tie_break = _take(given, ("input", "k"), {"sorted": False, "tie_break": 0}, ignored)
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
    x, weight, bias, eps = _take(given, ("input", "gemma", "beta"), {"eps": 1e-6}, _LAUNCH)
    words = {"x": x, "weight": weight, "bias": bias, "eps": eps}
    return [Judgement(0, "layernorm", words)]


def reshaped(x: Any, shape: tuple[int, ...]) -> Stored:
    stored = Stored.of(x)
    return Stored(stored.bits.reshape(shape), stored.dtype)


# How attention is computed, and what it is if nothing is said.
_ATTENTION = {"causal": False, "window_left": -1, "sm_scale": None}
_ATTENTION |= {"pos_encoding_mode": "NONE", "logits_soft_cap": 0.0, "use_fp16_qk_reduction": False}


def _attention(causal: Any, window: Any, scale: Any, pos: Any, cap: Any, half: Any) -> dict[str, Any]:
    """What the operation is told of `_ATTENTION`."""
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
        ignored = (*_LAUNCH, "return_lse", "rope_scale", "rope_theta")
        q, k, v, layout, tensor_cores, causal, *others = _take(given, ("q", "k", "v"), plain, ignored)
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
_RUN = (*_LAUNCH, "lse", "return_lse")


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
        planned = _take(settings["plan"], ends, _ATTENTION, _PLANNED)
        indices, (causal, window, *others) = [_integers(x) for x in planned[: len(ends)]], planned[len(ends) :]
        tensors = ("q", "paged_kv_cache") if paged else ("q", "k", "v")
        scales = {"window_left": None, "k_scale": 1.0, "v_scale": 1.0, "sinks": None}
        values = _take(given, tensors, scales, _RUN)
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
            table = numpy.zeros((len(counts), max(1, counts.max(initial=0))), numpy.int64)
            for row, (begin, count) in enumerate(zip(first, counts)):
                table[row, :count] = pages[begin : begin + count]
            words |= {"block_table": table, "seq_lens": numpy.where(counts > 0, (counts - 1) * k.shape[1] + last, 0)}
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


# By the wrapper's class and method, in FlashInfer; those for CUDA graphs compute the same.
_WRAPPERS: dict[str, Method] = {
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
        x = reshaped(x, (rows.shape[0], -1, size))
        words = {"x": x, "cos": cos, "sin": sin, "pairing": "half" if neox else "interleaved"}
        judgements.append(Judgement(at, "rope", words, x.shape))
    return judgements


# By the function's name, in FlashInfer.
_FUNCTIONS: dict[str, Function] = {
    "rmsnorm": _rmsnorm(False),
    "gemma_rmsnorm": _rmsnorm(True),
    "silu_and_mul": _silu_and_mul,
    "softmax": _softmax,
    "mm_bf16": _mm,
    "bmm_bf16": _bmm(),
    "gemm_fp8_nt_groupwise": _fp8_groupwise,
    "bmm_fp8": _bmm("A_scale", "B_scale"),
    "layernorm": _layernorm,
    "single_prefill_with_kv_cache": _single(False),
    "single_decode_with_kv_cache": _single(True),
    "apply_rope_with_cos_sin_cache": _rope,
}


def _torch_softmax(given: dict[str, Any]) -> list[Judgement]:
    x, dim = _take(given, ("arg_0",), {"dim": given.get("arg_1")}, ("arg_1", "_stacklevel"))
    if dim not in (-1, Stored.of(x).bits.ndim - 1):
        raise Unknown(f"dim = {dim}, expected the last")
    return [Judgement(0, "softmax", {"x": x})]


def _torch_matmul(given: dict[str, Any]) -> list[Judgement]:
    a, b = _take(given, ("arg_0", "arg_1"), {})
    if Stored.of(b).bits.ndim != 2:
        raise Unknown(f"the second factor is {list(Stored.of(b).shape)}, expected [K, N]")
    return [Judgement(0, "matmul", {"a": a, "b": b})]


def _torch_linear(given: dict[str, Any]) -> list[Judgement]:
    a, b, bias = _take(given, ("arg_0", "arg_1"), {"bias": given.get("arg_2")}, ("arg_2",))
    return [Judgement(0, "matmul", {"a": a, "b": b, "bias": bias, "b_rows": "n"})]


def _npu_rms_norm(given: dict[str, Any]) -> list[Judgement]:
    x, weight, eps = _take(given, ("arg_0", "arg_1"), {"epsilon": given.get("arg_2") or 1e-6}, ("arg_2",))
    return [Judgement(0, "rmsnorm", {"x": x, "weight": weight, "eps": eps})]


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
        raise Unknown("its ε is not known: it has no attribute variance_epsilon, eps or epsilon")
    return float(found[0])


def _of_last_dimension(settings: dict[str, Any]) -> None:
    """Refuses norms over several dimensions, and over a part of one."""
    shape, part = settings.get("normalized_shape"), settings.get("variance_size_override")
    if isinstance(shape, list) and len(shape) != 1 or part is not None:
        raise Unknown(f"normalized_shape = {shape}, variance_size_override = {part}; expected a norm over the last dimension")


# Where a norm rounds to the type of its output. The second leaves room for the first, and is said of those that need it.
_AFTER, _BEFORE = ({f'cast = "{cast}"': {"cast": cast}} for cast in ("after_weight", "before_weight"))


def _rms_module(centered: bool = False, casts: dict[str, dict[str, Any]] = _AFTER) -> Method:
    """A norm that rounds in one of the ways that ``casts`` has, unless the module itself tells, as SGLang's do."""

    def judge(given: dict[str, Any], settings: dict[str, Any]) -> list[Judgement]:
        x, weight, residual = _take(given, ("arg_0",), {"weight": None, "residual": given.get("arg_1")}, ("arg_1",))
        _of_last_dimension(settings)
        words = {"weight": weight, "eps": _eps(settings), "zero_centered": centered}
        first = settings.get("cast_x_before_out_mul")
        choices = casts if not isinstance(first, bool) else _AFTER | _BEFORE if first else _AFTER
        if residual is None:
            return [Judgement(0, "rmsnorm", {"x": x, **words}, choices=choices)]
        # The sum is stored; its own rounding is judged as that of a product with two ones. What is normed is what was stored
        # (vLLM), or the sum before that (FlashInfer, SGLang).
        terms = numpy.stack([Stored.of(part).widened() for part in (x, residual)], axis=-1)
        normed = {"the sum as it is stored": Output(1), "the sum before it is stored": terms.sum(-1).astype(numpy.float32)}
        choices = {
            f"{which}, of {said}": {"x": one, **word} for which, word in choices.items() for said, one in normed.items()
        }
        total = {"a": terms.reshape(-1, 2), "b": numpy.ones((2, 1))}
        return [
            Judgement(0, "rmsnorm", words, choices=choices),
            Judgement(1, "matmul", total, (terms.size // 2, 1)),
        ]

    return judge


def _linear_module(given: dict[str, Any], settings: dict[str, Any]) -> list[Judgement]:
    x, weight, bias = _take(given, ("arg_0", "weight"), {"bias": None})
    x, weight = Stored.of(x), Stored.of(weight)
    rows = math.prod(x.shape[:-1])
    flat = reshaped(x, (rows, x.shape[-1]))
    return [Judgement(0, "matmul", {"a": flat, "b": weight, "bias": bias, "b_rows": "n"}, (rows, weight.shape[0]))]


def _layer_module(given: dict[str, Any], settings: dict[str, Any]) -> list[Judgement]:
    x, weight, bias = _take(given, ("arg_0",), {"weight": None, "bias": None})
    _of_last_dimension(settings)
    return [Judgement(0, "layernorm", {"x": x, "weight": weight, "bias": bias, "eps": _eps(settings)})]


def _silu_module(given: dict[str, Any], settings: dict[str, Any]) -> list[Judgement]:
    return [Judgement(0, "silu_and_mul", {"x": _take(given, ("arg_0",), {})[0]})]


#: What modules may be said to be, by name.
KINDS: dict[str, Method] = {
    "rmsnorm": _rms_module(),
    "rmsnorm_cast": _rms_module(casts=_AFTER | _BEFORE),
    "gemma_rmsnorm": _rms_module(centered=True),
    "layernorm": _layer_module,
    "linear": _linear_module,
    "silu_and_mul": _silu_module,
}

# Kinds of classes, as torch, SGLang, vLLM and transformers call them; a package before a name is one that differs. Many models
# have an RMSNorm of their own, which rounds as Llama's does or at the end. vLLM's has rounded before the weight up to 0.19 and
# not in 0.20, and what came later has done either (vLLM #40860, #42379).
CLASSES = {
    "torch.RMSNorm": "rmsnorm",
    "sglang.RMSNorm": "rmsnorm",
    "RMSNorm": "rmsnorm_cast",
    "LayerNorm": "layernorm",
    "Linear": "linear",
    "SiluAndMul": "silu_and_mul",
    **{f"{model}RMSNorm": "rmsnorm_cast" for model in ("Llama", "Mistral", "Mixtral", "Qwen2", "Qwen3", "Qwen3Moe", "DeepseekV3")},
    **{f"{model}RMSNorm": "rmsnorm" for model in ("GptOss", "Olmo2")},
    **{f"{model}RMSNorm": "gemma_rmsnorm" for model in ("Gemma", "Gemma2", "Gemma3", "Qwen3Next")},
}


def flashinfer(call: Recorded) -> Function | None:
    """What a call of FlashInfer's computes; None if that is not known."""
    if call.function == "top_k":
        return lambda given: _top_k(given, call.outputs)
    return _FUNCTIONS.get(call.function) or _method(_WRAPPERS.get(call.function), call)


def msprobe(call: Recorded) -> Function | None:
    """What a call that msProbe recorded computes."""
    return _MSPROBE.get(".".join(call.function.split(".")[:2]))


def module(call: Recorded, classes: dict[str, str]) -> Function | None:
    """What a call of a module computes, whose kind is given by its class."""
    kind = classes.get(call.function, classes.get(call.function.rpartition(".")[2]))
    return _method(KINDS[kind] if kind else None, call)


def _method(method: Method | None, call: Recorded) -> Function | None:
    return method and (lambda given: method(given, call.settings))


def with_outputs(words: dict[str, Any], outputs: list[Any]) -> dict[str, Any]:
    """What an operation is given, with the recorded outputs among it."""
    missing = [value.at for value in words.values() if isinstance(value, Output) and value.at >= len(outputs)]
    if missing:
        raise Unknown(f"output {missing[0]} was not recorded")
    return {name: outputs[value.at] if isinstance(value, Output) else value for name, value in words.items()}
