"""The trained models of `datasets/` in numpy: a forward pass in f32 in which every operation is a function that can be replaced.

`Operations` has what is replaced, one function each; `forward` walks the layers, and `losses` gives nats of each byte of a text.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Callable

import numpy as np
import ulplab
from layers import F32, attend, routed, turned
from ulplab import _files

DATASETS = Path(__file__).parents[1] / "datasets"


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rmsnorm(x, weight, eps, zero_centered=False, gate=None):
    """Rows of any shape by their root mean square, times the weight (plus 1 if it is zero-centred), times SiLU of a gate."""
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + F32(eps)) * (1 + weight if zero_centered else weight)
    return y if gate is None else y * (gate * sigmoid(gate))


def rows_seen(tokens, window=None):
    """A mask of the keys that a token sees: those up to itself, and of them the last `window`."""
    back = np.arange(tokens)[:, None] - np.arange(tokens)
    return (back >= 0) & (back < (window or tokens))


def attention(q, k, v, window=None, sinks=None):
    """Outputs [T, H, D] of causal attention."""
    return attend(q, k, v, rows_seen(len(q), window), sinks)[0]


def causal_conv1d(x, weight):
    """SiLU of [T, C] convolved with taps [C, W]."""
    width = weight.shape[1]
    seen = np.concatenate([np.zeros((width - 1, x.shape[1]), F32), x])
    y = sum(seen[i : i + len(x)] * weight[:, i] for i in range(width))
    return y * sigmoid(y)


def gated_delta(q, k, v, g, beta):
    """Outputs [T, H, V] of the gated delta rule for queries and keys [T, G, K]."""
    q, k = (x.repeat(v.shape[1] // x.shape[1], 1) for x in (q / F32(math.sqrt(q.shape[-1])), k))
    state, outputs = np.zeros((v.shape[1], k.shape[2], v.shape[2]), F32), []
    for q_, k_, v_, decay, b in zip(q, k, v, np.exp(g), beta):
        state = state * decay[:, None, None]
        added = b[:, None] * (v_ - (k_[:, None] @ state)[:, 0])
        state = state + k_[:, :, None] * added[:, None]
        outputs.append((q_[:, None] @ state)[:, 0])
    return np.stack(outputs)


def clamped(gate, up):
    """The activation of gpt-oss."""
    gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
    return (up + 1) * gate * sigmoid(F32(1.702) * gate)


def second(chosen, weights, hidden, w2, bias):
    """The outputs of chosen experts [T, k] for hidden numbers [T, k, I], times their weights: w2 is [E, I, C], with a bias [E, C]."""
    y = np.zeros((len(chosen), w2.shape[2]), F32)
    for expert in range(len(w2)):
        token, place = np.nonzero(chosen == expert)
        np.add.at(y, token, weights[token, place, None] * (hidden[token, place] @ w2[expert] + bias[expert]))
    return y


def experts(x, chosen, weights, w13, w2, second=second):
    """Like `layers.experts`, with the activation of gpt-oss: w13 has the gate's rows first, and the last columns are biases."""
    hidden = np.zeros((*chosen.shape, w2.shape[2] - 1), F32)
    for expert in range(len(w13)):
        token, place = np.nonzero(chosen == expert)
        hidden[token, place] = clamped(*np.split(x[token] @ w13[expert, :, :-1].T + w13[expert, :, -1], 2, -1))
    return second(chosen, weights, hidden, w2[..., :-1].swapaxes(1, 2), w2[..., -1])


def moe(x, logits, top_k, w13, w2):
    """The mixture of gpt-oss: softmax over the chosen."""
    return experts(x, *routed(np.exp(logits), top_k), w13, w2)


@dataclass(frozen=True)
class Operations:
    """The operations of the models, by names that entries of the zoo use."""

    rmsnorm: Callable = rmsnorm
    #: Angles [T, R/2] of positions and frequencies.
    angles: Callable = lambda positions, frequencies: positions[:, None] * frequencies
    #: Heads [T, H, D] with their first channels turned; positions and frequencies are for kernels that compute angles.
    rope: Callable = lambda x, cos, sin, positions, base: turned(x, cos, sin)
    attention: Callable = attention
    #: [T, K] by [N, K].
    matmul: Callable = lambda x, w: x @ w.T
    #: Products of one input with the weights of gate and up.
    gate_up: Callable | None = None
    #: Keys or values [T, G, D] as a KV cache gives them back.
    keys: Callable = lambda k: k
    values: Callable = lambda v: v
    moe: Callable = moe
    causal_conv1d: Callable = causal_conv1d
    gated_delta: Callable = gated_delta
    #: The residual stream, from embeddings and all that was added to them.
    residual: Callable = sum


@dataclass(frozen=True)
class Model:
    """A configuration, and tensors in f32 by name."""

    name: str
    config: dict
    tensors: dict

    def layer(self, index):
        prefix = f"model.layers.{index}."
        return {name[len(prefix) :]: x for name, x in self.tensors.items() if name.startswith(prefix)}


@cache
def load(name):
    """A model of `datasets/`, its scales applied."""
    folder = DATASETS / name
    stored, _ = _files.read(folder / "model.safetensors")
    tensors = {}
    for key, x in stored.items():
        if key.endswith("_blocks"):
            # [..., blocks, 16] bytes, and a scale for each block
            codes, scales = (t.bits.reshape(-1, x.shape[-2] * n) for t, n in ((x, 16), (stored[key.replace("_blocks", "_scales")], 1)))
            values = ulplab.dequantize(codes, scales, format="mxfp4", shape=(len(codes), 2 * codes.shape[1]))
            tensors[key.removesuffix("_blocks")] = values.reshape(*x.shape[:-2], -1)
        elif f"{key}_scale" in stored:
            scale = stored[f"{key}_scale"].bits
            tensors[key] = (x.widened().astype(F32).reshape(*scale.shape, -1) * scale[..., None]).reshape(x.shape)
        elif not key.endswith(("_scale", "_scales")):
            tensors[key] = x.widened().astype(F32)
    return Model(name, json.loads((folder / "config.json").read_text()), tensors)


def rotation(config, channels):
    """Frequencies of RoPE, the factor of its cosines and sines, and its base."""
    options = config.get("rope_scaling") or config["rope_parameters"]
    base = config.get("rope_theta") or options["rope_theta"]
    plain = base ** (-np.arange(0, channels, 2) / channels)
    if options["rope_type"] != "yarn":
        return plain, 1.0, base
    original, factor = options["original_max_position_embeddings"], options["factor"]

    def turns(rotations):
        return channels * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(turns(options["beta_fast"]), 0), min(turns(options["beta_slow"]), channels - 1)
    ramp = ((np.arange(channels // 2) - low) / (high - low)).clip(0, 1)
    return plain / factor * ramp + plain * (1 - ramp), 0.1 * math.log(factor) + 1, base


def attention_layer(h, w, model, index, ops, project):
    """The output of an attention layer of any of the models, which is added."""
    config, tokens = model.config, len(h)
    heads, groups, size = (config[n] for n in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    centred, eps = "qwen3_5" in config["model_type"], config["rms_norm_eps"]
    q, k, v = (project(h, f"self_attn.{n}_proj").reshape(tokens, count, -1) for n, count in zip("qkv", (heads, groups, groups)))
    gate = None
    if config.get("attn_output_gate"):
        q, gate = np.split(q, 2, -1)
    if "self_attn.q_norm.weight" in w:
        q, k = (ops.rmsnorm(x, w[f"self_attn.{n}_norm.weight"], eps, centred) for n, x in (("q", q), ("k", k)))
    channels = int(size * config.get("rope_parameters", {}).get("partial_rotary_factor", 1))
    frequencies, factor, base = rotation(config, channels)
    positions = np.arange(tokens)
    angles = ops.angles(positions, frequencies)
    cos, sin = ((f(angles) * factor).astype(F32) for f in (np.cos, np.sin))
    q, k = (ops.rope(x, cos, sin, positions, base) for x in (q, k))
    window = config["sliding_window"] if config.get("layer_types", [""] * 99)[index] == "sliding_attention" else None
    o = ops.attention(q, ops.keys(k), ops.values(v), window, w.get("self_attn.sinks"))
    o = o if gate is None else o * sigmoid(gate)
    return project(o.reshape(tokens, -1), "self_attn.o_proj")


def delta_layer(h, w, model, ops, project):
    """The output of a layer with the gated delta rule, which is added."""
    config, tokens = model.config, len(h)
    groups, heads, size = (config[f"linear_{n}"] for n in ("num_key_heads", "num_value_heads", "key_head_dim"))
    mixed = ops.causal_conv1d(project(h, "linear_attn.in_proj_qkv"), w["linear_attn.conv1d.weight"][:, 0])
    q, k, v = np.split(mixed, [groups * size, 2 * groups * size], -1)
    q, k = (x.reshape(tokens, groups, size) for x in (q, k))
    q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + F32(1e-6)) for x in (q, k))
    beta = sigmoid(project(h, "linear_attn.in_proj_b"))
    step = project(h, "linear_attn.in_proj_a") + w["linear_attn.dt_bias"]
    g = -np.exp(w["linear_attn.A_log"]) * np.logaddexp(F32(0), step)
    o = ops.gated_delta(q, k, v.reshape(tokens, heads, -1), g, beta)
    z = project(h, "linear_attn.in_proj_z").reshape(o.shape)
    o = ops.rmsnorm(o, w["linear_attn.norm.weight"], config["rms_norm_eps"], gate=z)
    return project(o.reshape(tokens, -1), "linear_attn.out_proj")


def feed_forward(h, w, model, ops, project):
    """The output of a dense SwiGLU or a mixture of experts, which is added."""
    if "mlp.router.weight" not in w:
        weights = [w[f"mlp.{n}_proj.weight"] for n in ("gate", "up")]
        gate, up = ops.gate_up(h, *weights) if ops.gate_up else (ops.matmul(h, x) for x in weights)
        return project(gate * sigmoid(gate) * up, "mlp.down_proj")
    w13, w2 = (
        np.concatenate([w[f"mlp.experts.{n}_proj"], w[f"mlp.experts.{n}_proj_bias"][..., None]], -1) for n in ("gate_up", "down")
    )
    w13 = np.concatenate([w13[:, 0::2], w13[:, 1::2]], 1)
    logits = h @ w["mlp.router.weight"].T + w["mlp.router.bias"]
    return ops.moe(h, logits, model.config["num_experts_per_tok"], w13, w2)


def forward(model, ids, ops=Operations()):
    """Logits [T, 256]; weights of products are what `ops.matmul` gets, the head and the router excepted."""
    config = model.config
    norm = dict(eps=config["rms_norm_eps"], zero_centered="qwen3_5" in config["model_type"])
    parts = [model.tensors["model.embed_tokens.weight"][ids]]
    for index in range(config["num_hidden_layers"]):
        w = model.layer(index)

        def project(x, name):
            return ops.matmul(x, w[f"{name}.weight"]) + w.get(f"{name}.bias", F32(0))

        h = ops.rmsnorm(ops.residual(parts), w["input_layernorm.weight"], **norm)
        delta = "linear_attn.A_log" in w
        parts.append(delta_layer(h, w, model, ops, project) if delta else attention_layer(h, w, model, index, ops, project))
        h = ops.rmsnorm(ops.residual(parts), w["post_attention_layernorm.weight"], **norm)
        parts.append(feed_forward(h, w, model, ops, project))
    head = model.tensors.get("lm_head.weight", model.tensors["model.embed_tokens.weight"])
    return ops.rmsnorm(ops.residual(parts), model.tensors["model.norm.weight"], **norm) @ head.T


def text(name, offset, tokens):
    """Bytes of a held-out text, one more than are predicted."""
    data = (DATASETS / "text" / f"{name}.txt").read_bytes()[offset : offset + tokens + 1]
    return np.frombuffer(data, np.uint8).astype(np.int64)


def losses(model, ids, ops=Operations()):
    """Nats of each byte of a text after the first, teacher-forced, in one shot."""
    logits = forward(model, ids[:-1], ops).astype(np.float64)
    top = logits.max(-1, keepdims=True)
    return np.log(np.exp(logits - top).sum(-1)) + top[:, 0] - logits[np.arange(len(logits)), ids[1:]]
