"""Trains gptoss-mini: a gpt-oss of 12 layers with bytes as its vocabulary: sinks, sliding window 128 on alternate layers, YaRN,
8 experts of which 2 are active, with biases. The experts are trained for MXFP4 and stored as MXFP4 blocks, the rest as BF16.

Usage: train.py OUT_DIR [--seconds N] [--texts DIR] [--mode graph|compile|eager] [--toy]
"""
import math
import pathlib
import sys

import torch
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import training

HEADS, KV, D, H, INNER, EXPERTS, WINDOW = 8, 2, 64, 96, 128, 8, 128
THETA, FACTOR, ORIGINAL, FAST, SLOW = 150000.0, 4.0, 512, 32.0, 1.0
BALANCE = 0.01


def norm(x, weight):
    x = x.float()
    return weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5))


def linear(x, w, name):
    return F.linear(x, w[name + ".weight"].to(x.dtype), w[name + ".bias"].to(x.dtype))


def rotate(x, cos, sin):
    """Half-split RoPE of [batch, length, heads, D] in FP32."""
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def power(exponent):
    """2^exponent, exactly."""
    return ((exponent + 127) << 23).view(torch.float32)


def mxfp4(w):
    """MXFP4 of blocks of 32 along the last axis: (E2M1 values, exponents). OCP's rule: 2^(floor(log2 amax) - 2), to nearest even."""
    blocks = w.unflatten(-1, (-1, 32))
    exponent = (blocks.abs().amax(-1, keepdim=True).clamp_min(2.0**-100).view(torch.int32) >> 23) - 127 - 2
    x = blocks * power(-exponent)
    a = x.abs()
    step = torch.where(a < 2, 0.5, torch.where(a < 4, 1.0, 2.0))
    return torch.copysign((torch.round(a / step) * step).clamp_max(6.0), x), exponent


def fake(w, on):
    """The weight, with `on` = 1 as MXFP4 stores it; the gradient passes through."""
    with torch.no_grad():
        value, exponent = mxfp4(w)
        change = (value * power(exponent)).flatten(-2) - w
    return w + on * change


def attention_full(q, k, v, sinks):
    """Causal attention with a sink by head. A first key that only its logit tells apart, with value zero, is the sink."""
    B, S = q.shape[:2]
    def padded(x, extra):
        return torch.cat([x, extra.to(x.dtype), x.new_zeros(*x.shape[:3], 7)], -1)
    first = q.new_zeros(B, 1, HEADS, D)
    one = torch.ones(B, S + 1, HEADS, 1, device=q.device)
    sink = torch.cat([(sinks.float() * math.sqrt(D)).view(1, 1, HEADS, 1).expand(B, 1, -1, -1), one.new_zeros(B, S, HEADS, 1)], 1)
    q = padded(torch.cat([first, q], 1), one)
    k = padded(torch.cat([first, k], 1), sink)
    v = padded(torch.cat([first, v], 1), one.new_zeros(B, S + 1, HEADS, 1))
    o = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, scale=D**-0.5)
    return o[:, :, 1:, :D].transpose(1, 2)


def attention_window(q, k, v, sinks):
    """Attention over the last WINDOW keys with a sink by head: blocks of WINDOW queries against two blocks of keys."""
    B, S = q.shape[:2]
    n = S // WINDOW
    def blocks(x):
        return x.reshape(B, n, WINDOW, HEADS, D).permute(0, 3, 1, 2, 4)
    def pairs(x):
        x = blocks(x)
        return torch.cat([F.pad(x[:, :, :-1], (0, 0, 0, 0, 1, 0)), x], 3)
    logits = (blocks(q) @ pairs(k).transpose(-1, -2)).float() * D**-0.5
    a = torch.arange(WINDOW, device=q.device)[:, None]
    b = torch.arange(2 * WINDOW, device=q.device)[None]
    seen = ((b <= a + WINDOW) & (b > a))[None] & ((b >= WINDOW)[None] | (torch.arange(n, device=q.device) > 0)[:, None, None])
    logits = logits.masked_fill(~seen, float("-inf"))
    sink = sinks.float().view(1, HEADS, 1, 1, 1)
    top = torch.maximum(logits.amax(-1, keepdim=True), sink).detach()
    p = (logits - top).exp()
    p = p / (p.sum(-1, keepdim=True) + (sink - top).exp())
    o = p.to(v.dtype) @ pairs(v)
    return o.permute(0, 2, 3, 1, 4).reshape(B, S, HEADS, D)


def routed(h, w):
    """Each expert's share of each token, zero where it is not chosen, and the balance loss. `h` FP32 [tokens, H]."""
    logits = F.linear(h, w["mlp.router.weight"], w["mlp.router.bias"])
    number = torch.arange(EXPERTS, device=h.device)
    first = number == logits.detach().argmax(-1, keepdim=True)
    chosen = first | (number == logits.detach().masked_fill(first, float("-inf")).argmax(-1, keepdim=True))
    share = logits.masked_fill(~chosen, float("-inf")).softmax(-1)
    balance = EXPERTS * (chosen.float().mean(0) / 2 * logits.softmax(-1).mean(0)).sum()
    return share, balance


def layer(x, w, cos, sin, on, windowed, dtype):
    B, S, _ = x.shape
    h = norm(x, w["input_layernorm.weight"]).to(dtype)
    q = rotate(linear(h, w, "self_attn.q_proj").view(B, S, HEADS, D), cos, sin).to(dtype)
    k = rotate(linear(h, w, "self_attn.k_proj").view(B, S, KV, D), cos, sin).to(dtype)
    v = linear(h, w, "self_attn.v_proj").view(B, S, KV, D)
    k, v = (t.repeat_interleave(HEADS // KV, 2) for t in (k, v))
    o = (attention_window if windowed else attention_full)(q, k, v, w["self_attn.sinks"])
    x = x + linear(o.reshape(B, S, HEADS * D), w, "self_attn.o_proj").float()
    h = norm(x, w["post_attention_layernorm.weight"]).flatten(0, 1)
    share, balance = routed(h, w)
    # All experts see all tokens: at this size that is faster than gathering.
    up = fake(w["mlp.experts.gate_up_proj"], on).to(dtype).flatten(0, 1)
    down = fake(w["mlp.experts.down_proj"], on).to(dtype)
    y = F.linear(h.to(dtype), up, w["mlp.experts.gate_up_proj_bias"].to(dtype).flatten()).view(-1, EXPERTS, INNER, 2)
    gate, linear_part = y[..., 0].clamp(max=7.0), y[..., 1].clamp(-7.0, 7.0)
    y = (linear_part + 1) * gate * torch.sigmoid(1.702 * gate) * share[..., None].to(dtype)
    y = y.flatten(1) @ down.permute(0, 2, 1).flatten(0, 1) + share.to(dtype) @ w["mlp.experts.down_proj_bias"].to(dtype)
    return x + y.view(B, S, H).float(), balance


class Model:
    name = "gptoss-mini"
    learning_rate = 3e-3

    def __init__(self, toy):
        self.layers = 4 if toy else 12
        self.batch, self.length = (2, 256) if toy else (16, 2048)
        self.kinds = ["full_attention" if i % 2 else "sliding_attention" for i in range(self.layers)]
        self.config = {
            "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "vocab_size": 256, "hidden_size": H, "intermediate_size": INNER,
            "num_hidden_layers": self.layers, "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": D, "hidden_act": "silu",
            "num_local_experts": EXPERTS, "num_experts_per_tok": 2, "experts_per_token": 2, "sliding_window": WINDOW,
            "layer_types": self.kinds, "attention_bias": True, "attention_dropout": 0.0, "initializer_range": 0.02,
            "max_position_embeddings": 2048, "initial_context_length": ORIGINAL, "rms_norm_eps": 1e-5, "swiglu_limit": 7.0, "use_cache": True,
            "rope_theta": THETA, "rope_scaling": {"beta_fast": FAST, "beta_slow": SLOW, "factor": FACTOR,
                "original_max_position_embeddings": ORIGINAL, "rope_type": "yarn", "truncate": False},
            "router_aux_loss_coef": BALANCE, "output_router_logits": False, "tie_word_embeddings": False,
            "pad_token_id": None, "bos_token_id": None, "eos_token_id": None, "torch_dtype": "bfloat16",
            "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
                "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]},
        }

    def parameters(self, generator):
        def matrix(*shape, gain=1.0):
            return torch.randn(*shape, generator=generator) * gain * shape[-1] ** -0.5
        out = (2 * self.layers) ** -0.5
        weights = {"model.embed_tokens.weight": matrix(256, H), "model.norm.weight": torch.ones(H), "lm_head.weight": matrix(256, H, gain=0.5)}
        for i in range(self.layers):
            for name, value in {
                "input_layernorm.weight": torch.ones(H), "post_attention_layernorm.weight": torch.ones(H),
                "self_attn.q_proj.weight": matrix(HEADS * D, H), "self_attn.q_proj.bias": torch.zeros(HEADS * D),
                "self_attn.k_proj.weight": matrix(KV * D, H), "self_attn.k_proj.bias": torch.zeros(KV * D),
                "self_attn.v_proj.weight": matrix(KV * D, H), "self_attn.v_proj.bias": torch.zeros(KV * D),
                "self_attn.o_proj.weight": matrix(H, HEADS * D, gain=out), "self_attn.o_proj.bias": torch.zeros(H),
                "self_attn.sinks": torch.randn(HEADS, generator=generator),
                "mlp.router.weight": matrix(EXPERTS, H, gain=0.5), "mlp.router.bias": torch.zeros(EXPERTS),
                "mlp.experts.gate_up_proj": matrix(EXPERTS, 2 * INNER, H), "mlp.experts.gate_up_proj_bias": torch.zeros(EXPERTS, 2 * INNER),
                "mlp.experts.down_proj": matrix(EXPERTS, H, INNER, gain=out), "mlp.experts.down_proj_bias": torch.zeros(EXPERTS, H),
            }.items():
                weights[f"model.layers.{i}.{name}"] = value
        return weights

    def fast(self, name):
        return name.endswith("sinks")

    def prepare(self, device, dtype, compiled):
        self.dtype = dtype
        index = torch.arange(0, D, 2, dtype=torch.float32)
        extrapolated = THETA ** (-index / D)
        def turns(rotations):
            return D * math.log(ORIGINAL / (rotations * 2 * math.pi)) / (2 * math.log(THETA))
        low, high = max(turns(FAST), 0), min(turns(SLOW), D - 1)
        ramp = ((torch.arange(D // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
        frequency = extrapolated / FACTOR * ramp + extrapolated * (1 - ramp)
        angle = torch.arange(self.length, dtype=torch.float32)[:, None] * frequency
        scale = 0.1 * math.log(FACTOR) + 1
        self.cos, self.sin = (angle.cos() * scale)[:, None].to(device), (angle.sin() * scale)[:, None].to(device)
        self.on = torch.zeros((), device=device)
        self.layer = torch.compile(layer, dynamic=False) if compiled else layer

    def progress(self, fraction):
        self.on.fill_(1.0 if fraction > 0.8 else 0.0)

    def forward(self, weights, ids):
        S = ids.shape[1]
        x = training.Embedding.apply(ids, weights["model.embed_tokens.weight"])
        total = 0.0
        for i, kind in enumerate(self.kinds):
            prefix = f"model.layers.{i}."
            own = {n[len(prefix):]: w for n, w in weights.items() if n.startswith(prefix)}
            x, balance = self.layer(x, own, self.cos[:S], self.sin[:S], self.on, kind == "sliding_attention", self.dtype)
            total = total + balance
        h = norm(x, weights["model.norm.weight"]).to(self.dtype)
        return F.linear(h, weights["lm_head.weight"].to(h.dtype)), BALANCE * total / self.layers

    def store(self, weights):
        stored, used = {}, {}
        for name, weight in weights.items():
            if not name.endswith(("gate_up_proj", "down_proj")):
                stored[name] = weight.to(torch.bfloat16).contiguous()
                used[name] = stored[name].float()
                continue
            value, exponent = mxfp4(weight)
            used[name] = (value * power(exponent)).flatten(-2)
            table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
            code = (value.abs()[..., None] == table).to(torch.uint8).argmax(-1).to(torch.uint8) | (torch.signbit(value).to(torch.uint8) << 3)
            stored[name + "_blocks"] = (code[..., 0::2] | (code[..., 1::2] << 4)).contiguous()
            stored[name + "_scales"] = (exponent.squeeze(-1) + 127).to(torch.uint8).contiguous()
        return stored, used


if __name__ == "__main__":
    options = training.arguments(__doc__)
    training.train(Model(options.toy), options)
