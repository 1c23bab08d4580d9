"""The operations of recorded calls of modules, and of functions of torch."""

from __future__ import annotations

import math
from typing import Any

import numpy

from . import _native
from ._calls import Function, Judgement, Method, Output, Unknown, reshaped, take, with_settings
from ._dumps import Recorded
from ._files import Stored


def _torch_softmax(given: dict[str, Any]) -> list[Judgement]:
    x, dim = take(given, ("arg_0",), {"dim": given.get("arg_1")}, ("arg_1", "_stacklevel"))
    if dim not in (-1, Stored.of(x).bits.ndim - 1):
        raise Unknown(f"dim = {dim}, expected the last")
    return [Judgement(0, "softmax", {"x": x})]


def _torch_matmul(given: dict[str, Any]) -> list[Judgement]:
    a, b = take(given, ("arg_0", "arg_1"), {})
    if Stored.of(b).bits.ndim != 2:
        raise Unknown(f"the second factor is {list(Stored.of(b).shape)}, expected [K, N]")
    return [Judgement(0, "matmul", {"a": a, "b": b})]


def _torch_linear(given: dict[str, Any]) -> list[Judgement]:
    a, b, bias = take(given, ("arg_0", "arg_1"), {"bias": given.get("arg_2")}, ("arg_2",))
    return [Judgement(0, "matmul", {"a": a, "b": b, "bias": bias, "b_rows": "n"})]


def _npu_rms_norm(given: dict[str, Any]) -> list[Judgement]:
    x, weight, eps = take(given, ("arg_0", "arg_1"), {"epsilon": given.get("arg_2") or 1e-6}, ("arg_2",))
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


# Where a norm rounds to the type of its output. The second leaves room for the first, and is named for those that need it.
_AFTER, _BEFORE = ({f'cast = "{cast}"': {"cast": cast}} for cast in ("after_weight", "before_weight"))


def _rms_module(centered: bool = False, casts: dict[str, dict[str, Any]] = _AFTER) -> Method:
    """A norm that rounds in one of the ways that ``casts`` has, unless the module itself tells, as SGLang's do."""

    def judge(given: dict[str, Any], settings: dict[str, Any]) -> list[Judgement]:
        x, weight, residual = take(given, ("arg_0",), {"weight": None, "residual": given.get("arg_1")}, ("arg_1",))
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
    x, weight, bias = take(given, ("arg_0", "weight"), {"bias": None})
    x, weight = Stored.of(x), Stored.of(weight)
    rows = math.prod(x.shape[:-1])
    flat = reshaped(x, (rows, x.shape[-1]))
    return [Judgement(0, "matmul", {"a": flat, "b": weight, "bias": bias, "b_rows": "n"}, (rows, weight.shape[0]))]


def _layer_module(given: dict[str, Any], settings: dict[str, Any]) -> list[Judgement]:
    x, weight, bias = take(given, ("arg_0",), {"weight": None, "bias": None})
    _of_last_dimension(settings)
    return [Judgement(0, "layernorm", {"x": x, "weight": weight, "bias": bias, "eps": _eps(settings)})]


def _of(operation: dict[str, Any]) -> Method:
    """A module of an operation: its arguments are the tensors that must be given, in order, and parameters and attributes have the names of
    what else it takes. A kernel may round in any of the places that there are (`cast`)."""
    name, takes = operation["name"], operation["takes"]
    tensors = [one for one, kind, default, _ in takes if kind == "tensor" and not default]
    casts = [word.strip('"') for one, _, words, _ in takes if one == "cast" for word in words.split(" | ")]
    choices: dict[str, dict[str, Any]] = {f'cast = "{cast}"': {"cast": cast} for cast in casts} or {"": {}}

    def judge(given: dict[str, Any], settings: dict[str, Any]) -> list[Judgement]:
        others = {one: settings.get(one) for one, *_ in takes if one not in tensors}
        values = take(given, tuple(f"arg_{at}" for at in range(len(tensors))), others)
        words = {one: value for one, value in zip([*tensors, *others], values) if value is not None}
        return [Judgement(0, name, words, choices=choices)]

    return judge


def _softmax_router(given: dict[str, Any], settings: dict[str, Any]) -> list[Judgement]:
    """gpt-oss's: logits, the softmax of the k largest, and their numbers. What is chosen follows from the logits as they are stored."""
    k = settings.get("top_k")
    if not isinstance(k, int):
        raise Unknown("how many experts it chooses is not known: it has no attribute top_k")
    return [
        *_linear_module(given, settings),
        Judgement(1, "softmax", {"x": Output(0, places=2)}),
        Judgement(2, "top_k", {"x": Output(0), "k": k, "ties": "any"}, output="indices"),
    ]


#: The kinds of modules, by name.
KINDS: dict[str, Method] = {
    "rmsnorm": _rms_module(),
    "rmsnorm_cast": _rms_module(casts=_AFTER | _BEFORE),
    "gemma_rmsnorm": _rms_module(centered=True),
    "layernorm": _layer_module,
    "linear": _linear_module,
    "softmax_router": _softmax_router,
    **{operation["name"]: _of(operation) for operation in _native.operations() if operation["modules"]},
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
    "GptOssTopKRouter": "softmax_router",
    **dict.fromkeys(("LlamaRMSNorm", "MistralRMSNorm", "MixtralRMSNorm", "DeepseekV3RMSNorm"), "rmsnorm_cast"),
    **dict.fromkeys(("Qwen2RMSNorm", "Qwen3RMSNorm", "Qwen3MoeRMSNorm"), "rmsnorm_cast"),
    **dict.fromkeys(("GptOssRMSNorm", "Olmo2RMSNorm"), "rmsnorm"),
    **dict.fromkeys(("GemmaRMSNorm", "Gemma2RMSNorm", "Gemma3RMSNorm", "Qwen3NextRMSNorm"), "gemma_rmsnorm"),
    **{module: operation["name"] for operation in _native.operations() for module in operation["modules"]},
}


def msprobe(call: Recorded) -> Function | None:
    """The operations of a call that msProbe recorded."""
    return _MSPROBE.get(".".join(call.function.split(".")[:2]))


def module(call: Recorded, classes: dict[str, str]) -> Function | None:
    """The operations of a call of a module, whose class says its kind."""
    kind = classes.get(call.function, classes.get(call.function.rpartition(".")[2]))
    return with_settings(KINDS[kind] if kind else None, call)
