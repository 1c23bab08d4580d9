"""The operations of a served model's modules, by the names that SGLang and vLLM give them and the checkpoint that they serve."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy

from ._calls import Function, Judgement, Unknown
from ._dumps import Recorded
from ._files import Stored, header, tensor
from ._modules import KINDS

# Kinds of modules by the last part of their names, in models whose norms are Llama's; one of another name is not known.
_NAMES = {
    **dict.fromkeys(("input_layernorm", "post_attention_layernorm", "norm"), "rmsnorm_cast"),
    **dict.fromkeys(("qkv_proj", "o_proj", "gate_up_proj", "down_proj"), "linear"),
    "act_fn": "silu_and_mul",
}
_MODELS = ("llama", "mistral", "qwen2", "qwen3")
# Projections that are served as one: the weights of these lie one below the other.
_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
# Their rows are spread over ranks, so that a rank's own weights give its own outputs; those of others are added up.
_BY_ROWS = tuple(_FUSED)


class Checkpoint:
    """A folder with ``config.json`` and safetensors, as transformers has them. ValueError if it is none."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        try:
            self._config = json.loads((self._folder / "config.json").read_text(encoding="utf-8"))
            self._model = self._config["model_type"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{folder} is no checkpoint: config.json with a model_type: {error!r}") from error
        self._tensors = {}
        for file in sorted(self._folder.glob("*.safetensors")):
            entries, data = header(file)
            self._tensors.update({name: (file, name, entry, data) for name, entry in entries.items()})

    def judge(self, call: Recorded, part: str, kind: str, given: dict[str, Any]) -> list[Judgement]:
        """The outputs to judge of a call of a module of that kind, by the last part of its name."""
        if self._model not in _MODELS:
            raise Unknown(f"model_type = '{self._model}' is not known, expected one of {', '.join(_MODELS)}")
        ranks, settings = call.settings.get("ranks", 1), {}
        if kind == "silu_and_mul" and self._config.get("hidden_act") != "silu":
            raise Unknown(f"hidden_act = {self._config.get('hidden_act')!r}, expected 'silu'")
        if kind == "linear" and ranks > 1 and not (part in _BY_ROWS and "weight" in given):
            raise Unknown(f"its weights are spread over {ranks} ranks")
        if kind == "rmsnorm_cast":
            settings["eps"] = self._config.get("rms_norm_eps")
        if kind != "silu_and_mul" and "weight" not in given:
            if kind == "linear" and "quantization_config" in self._config:
                raise Unknown("the weights of the checkpoint are quantized")
            given = {**given, **self._parameters(call.function, part)}
        types = {Stored.of(given[name]).dtype for name in ("arg_0", "weight", "bias") if given.get(name) is not None}
        if len(types) > 1:
            raise Unknown(f"its input and its parameters are {' and '.join(sorted(types))}, expected one type")
        return KINDS[kind](given, settings)

    def _parameters(self, module: str, part: str) -> dict[str, Stored]:
        """The weight and, if there is one, the bias of a module that is not spread over ranks."""
        modules = [module.removesuffix(part) + one for one in _FUSED.get(part, (part,))]
        found = {}
        for name in ("weight", "bias"):
            names = [f"{one}.{name}" for one in modules]
            missing = [one for one in names if one not in self._tensors]
            if not missing:
                parts = [tensor(*self._tensors[one]) for one in names]
                found[name] = Stored(numpy.concatenate([one.bits for one in parts]), parts[0].dtype)
            elif name == "weight":
                raise Unknown(f"the checkpoint has no '{missing[0]}'")
        return found


def known(call: Recorded, checkpoint: Checkpoint | None) -> Function | None:
    """The operations of a call of a module, whose function is its name; None if the name is not known."""
    part = call.function.rpartition(".")[2]
    kind = _NAMES.get(part)
    if kind is None:
        return None

    def judge(given: dict[str, Any]) -> list[Judgement]:
        if checkpoint is None:
            raise Unknown("its dump has no attributes of modules: give checkpoint=, the folder of the model that was served")
        return checkpoint.judge(call, part, kind, given)

    return judge
