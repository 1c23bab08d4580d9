"""Functions of torch, as msProbe names them, and modules, as `ulplab.record` keeps them."""

from __future__ import annotations

from typing import Any

from ._files import Stored
from ._known import Judge, Judgement, Unknown, reshaped, take


def _torch_softmax(given: dict[str, Any]) -> list[Judgement]:
    x, dim = take(given, ("arg_0",), {"dim": given.get("arg_1")}, ("arg_1", "_stacklevel"))
    if dim not in (-1, Stored.of(x).bits.ndim - 1):
        raise Unknown(f"dim = {dim}, expected the last")
    return [(0, "softmax", {"x": x}, None)]


def _torch_matmul(given: dict[str, Any]) -> list[Judgement]:
    a, b = take(given, ("arg_0", "arg_1"), {})
    if Stored.of(b).bits.ndim != 2:
        raise Unknown(f"the second factor is {list(Stored.of(b).shape)}, expected [K, N]")
    return [(0, "matmul", {"a": a, "b": b}, None)]


def _torch_linear(given: dict[str, Any]) -> list[Judgement]:
    a, b, bias = take(given, ("arg_0", "arg_1"), {"bias": given.get("arg_2")}, ("arg_2",))
    return [(0, "matmul", {"a": a, "b": b, "bias": bias, "b_rows": "n"}, None)]


def _npu_rms_norm(given: dict[str, Any]) -> list[Judgement]:
    x, weight, eps = take(given, ("arg_0", "arg_1"), {"epsilon": given.get("arg_2") or 1e-6}, ("arg_2",))
    return [(0, "rmsnorm", {"x": x, "weight": weight, "eps": eps}, None)]


# By the part of msProbe's name that says what is called.
MSPROBE = {
    "Functional.softmax": _torch_softmax,
    "Torch.softmax": _torch_softmax,
    "Torch.matmul": _torch_matmul,
    "Torch.mm": _torch_matmul,
    "Functional.linear": _torch_linear,
    "NPU.npu_rms_norm": _npu_rms_norm,
}


def _module_rmsnorm(centered: bool) -> Judge:
    def judge(given: dict[str, Any]) -> list[Judgement]:
        names = ("self.variance_epsilon", "self.eps", "self.epsilon")
        found = [given[name] for name in names if given.get(name) is not None]
        if not found:
            raise Unknown("its module has no variance_epsilon, eps or epsilon")
        plain = {key: value for key, value in given.items() if key not in names and not isinstance(value, str)}
        x, weight = take(plain, ("arg_0", "self.weight"), {}, ("self.dim", "self.normalized_shape", "self.bias"))
        return [(0, "rmsnorm", {"x": x, "weight": weight, "eps": found[0], "zero_centered": centered}, None)]

    return judge


def _module_linear(given: dict[str, Any]) -> list[Judgement]:
    a, b, bias = take(given, ("arg_0", "self.weight"), {"self.bias": None})
    a, b = Stored.of(a), Stored.of(b)
    rows = reshaped(a, (-1, a.shape[-1]))
    return [(0, "matmul", {"a": rows, "b": b, "bias": bias, "b_rows": "n"}, (rows.shape[0], b.shape[0]))]


def _module_silu_and_mul(given: dict[str, Any]) -> list[Judgement]:
    (x,) = take(given, ("arg_0",), {})
    return [(0, "silu_and_mul", {"x": x}, None)]


def _module_layernorm(given: dict[str, Any]) -> list[Judgement]:
    x, weight, bias, eps = take(given, ("arg_0",), {"self.weight": None, "self.bias": None, "self.eps": 1e-5})
    return [(0, "layernorm", {"x": x, "weight": weight, "bias": bias, "eps": eps}, None)]


def _module_softmax(given: dict[str, Any]) -> list[Judgement]:
    x, dim = take(given, ("arg_0",), {"self.dim": -1})
    if dim not in (-1, Stored.of(x).bits.ndim - 1):
        raise Unknown(f"dim = {dim}, expected the last")
    return [(0, "softmax", {"x": x}, None)]


# What modules compute, by the name of an operation: `replay(folder, modules={"MyNorm": "rmsnorm"})` says it of more of them.
OPERATIONS = {
    "rmsnorm": _module_rmsnorm(False),
    "gemma_rmsnorm": _module_rmsnorm(True),
    "linear": _module_linear,
    "silu_and_mul": _module_silu_and_mul,
    "layernorm": _module_layernorm,
    "softmax": _module_softmax,
}

# By the name of the class, in torch, transformers, vLLM and SGLang.
_MODULES = {
    "GemmaRMSNorm": "gemma_rmsnorm",
    "Gemma2RMSNorm": "gemma_rmsnorm",
    "Gemma3RMSNorm": "gemma_rmsnorm",
    "Linear": "linear",
    "SiluAndMul": "silu_and_mul",
    "LayerNorm": "layernorm",
    "Softmax": "softmax",
}


def of_class(name: str, modules: dict[str, str]) -> Judge | None:
    known = modules.get(name) or _MODULES.get(name) or ("rmsnorm" if name.endswith("RMSNorm") and "Gated" not in name else None)
    return OPERATIONS.get(known or "")
