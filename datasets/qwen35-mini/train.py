"""Trains qwen35-mini: a hybrid of the Qwen3.5 kind with bytes as its vocabulary, 24 layers, 3:1 gated delta rule and gated attention.

The gated delta rule runs in chunks of 64: Yang et al., Gated Delta Networks (2024), with the state between chunks as the linear
recurrence S' = A S + B of matrices, so that everything but one product per chunk is parallel over chunks.

Usage: train.py OUT_DIR [--seconds N] [--texts DIR] [--mode graph|compile|eager] [--toy]
"""
import math
import pathlib
import sys

import torch
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import training

H, INNER = 64, 192
HEADS, KV, D, ROTARY = 4, 2, 256, 64
KEY_HEADS, VALUE_HEADS, K, V, CONV, CHUNK = 2, 4, 128, 128, 4, 64
MIXED = 2 * KEY_HEADS * K + VALUE_HEADS * V
THETA = 10000000.0


def norm(x, weight):
    """Zero-centred RMSNorm in FP32."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * (1 + weight)


def linear(x, weight):
    return F.linear(x, weight.to(x.dtype))


def rotate(x, cos, sin):
    """Half-split RoPE of the first ROTARY channels of [batch, length, heads, D] in FP32."""
    a, b, rest = x.split([ROTARY // 2, ROTARY // 2, D - ROTARY], -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def mlp(x, w, dtype):
    h = norm(x, w["post_attention_layernorm.weight"]).to(dtype)
    y = F.silu(linear(h, w["mlp.gate_proj.weight"])) * linear(h, w["mlp.up_proj.weight"])
    return x + linear(y, w["mlp.down_proj.weight"]).float()


def full_layer(x, w, cos, sin, dtype):
    B, S, _ = x.shape
    h = norm(x, w["input_layernorm.weight"]).to(dtype)
    q, gate = linear(h, w["self_attn.q_proj.weight"]).view(B, S, HEADS, 2 * D).chunk(2, -1)
    q = rotate(norm(q, w["self_attn.q_norm.weight"]), cos, sin).to(dtype)
    k = linear(h, w["self_attn.k_proj.weight"]).view(B, S, KV, D)
    k = rotate(norm(k, w["self_attn.k_norm.weight"]), cos, sin).to(dtype)
    v = linear(h, w["self_attn.v_proj.weight"]).view(B, S, KV, D)
    k, v = (t.repeat_interleave(HEADS // KV, 2).transpose(1, 2) for t in (k, v))
    o = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, is_causal=True).transpose(1, 2)
    o = (o * torch.sigmoid(gate)).reshape(B, S, HEADS * D)
    return mlp(x + linear(o, w["self_attn.o_proj.weight"]).float(), w, dtype)


class Scan(torch.autograd.Function):
    """The states at the start of each chunk, S[0] = 0, S[i + 1] = A[i] S[i] + B[i]; tensors [chunks, sequences, rows, columns]."""

    @staticmethod
    def forward(ctx, a, b):
        s = torch.zeros_like(b)
        for i in range(len(b) - 1):
            torch.baddbmm(b[i], a[i], s[i], out=s[i + 1])
        ctx.save_for_backward(a, s)
        return s

    @staticmethod
    def backward(ctx, grad):
        a, s = ctx.saved_tensors
        total = grad.clone(memory_format=torch.contiguous_format)
        for i in range(len(total) - 2, -1, -1):
            total[i].baddbmm_(a[i].mT, total[i + 1])
        of_b = torch.cat([total[1:], torch.zeros_like(total[:1])])
        return of_b @ s.mT, of_b


def unit_inverse(lower):
    """The inverse of I + lower, `lower` strictly lower triangular [..., CHUNK, CHUNK]: diagonal blocks double from 1 to CHUNK.
    The last Newton step gives the inverse its gradient."""
    number = torch.arange(CHUNK, device=lower.device)
    eye = torch.eye(CHUNK, device=lower.device, dtype=lower.dtype)
    with torch.no_grad():
        inverse, size = eye.expand_as(lower), 1
        while size < CHUNK:
            block, half = number // (2 * size), number // size
            between = (block[:, None] == block[None]) & (half[:, None] > half[None])
            inverse = inverse - inverse @ torch.where(between, lower, 0.0) @ inverse
            size *= 2
    return 2 * inverse - inverse @ (eye + lower) @ inverse


def before_scan(x, w, dtype):
    """Projections, convolution, gates, and what the chunks need: A and B of the recurrence and the parts of the output."""
    B, S, _ = x.shape
    n = S // CHUNK
    h = norm(x, w["input_layernorm.weight"]).to(dtype)
    mixed = F.pad(linear(h, w["linear_attn.in_proj_qkv.weight"]), (0, 0, CONV - 1, 0)).float()
    taps = w["linear_attn.conv1d.weight"][:, 0]
    mixed = F.silu(sum(mixed[:, j : j + S] * taps[:, j] for j in range(CONV)))
    q, k, v = mixed.split([KEY_HEADS * K, KEY_HEADS * K, VALUE_HEADS * V], -1)

    def chunks(t):  # [batch, length, heads, width] to [chunks * batch * heads, CHUNK, width]
        return t.reshape(B, n, CHUNK, VALUE_HEADS, -1).permute(1, 0, 3, 2, 4).reshape(n * B * VALUE_HEADS, CHUNK, -1)

    def keys(t):
        t = t.view(B, S, KEY_HEADS, K)
        t = t * torch.rsqrt(t.square().sum(-1, keepdim=True) + 1e-6)
        return chunks(t.repeat_interleave(VALUE_HEADS // KEY_HEADS, 2))

    q, k, v = keys(q) * K**-0.5, keys(k), chunks(v)
    beta = chunks(torch.sigmoid(linear(h, w["linear_attn.in_proj_b.weight"]).float()))
    step = linear(h, w["linear_attn.in_proj_a.weight"]).float() + w["linear_attn.dt_bias"]
    g = chunks(-w["linear_attn.A_log"].exp() * F.softplus(step))[..., 0].cumsum(-1)
    future = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=x.device).triu(1)
    decay = (g[:, :, None] - g[:, None]).masked_fill(future, float("-inf")).exp()
    inverse = unit_inverse(((k * beta) @ k.mT * decay).tril(-1))
    u = inverse @ (v * beta)
    read = inverse @ (k * beta * g[..., None].exp())
    within = q @ k.mT * decay
    last = g[:, -1:]
    kept = k * (last - g)[..., None].exp()
    a = last[..., None].exp() * torch.eye(K, device=x.device) - kept.mT @ read
    b = kept.mT @ u
    z = linear(h, w["linear_attn.in_proj_z.weight"])
    shape = (n, B * VALUE_HEADS, K)
    return a.view(*shape, K), b.view(*shape, V), q * g[..., None].exp(), within, u, read, z


def after_scan(x, w, states, q, within, u, read, z, dtype):
    B, S, _ = x.shape
    s = states.flatten(0, 1)
    o = q @ s + within @ (u - read @ s)
    o = o.view(S // CHUNK, B, VALUE_HEADS, CHUNK, V).permute(1, 0, 3, 2, 4).reshape(B, S, VALUE_HEADS, V)
    o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + 1e-6) * w["linear_attn.norm.weight"]
    o = (o * F.silu(z.view(B, S, VALUE_HEADS, V).float())).to(dtype).reshape(B, S, VALUE_HEADS * V)
    return mlp(x + linear(o, w["linear_attn.out_proj.weight"]).float(), w, dtype)


class Model:
    name = "qwen35-mini"
    learning_rate = 3e-3

    def __init__(self, toy):
        self.layers = 4 if toy else 24
        self.batch, self.length = (2, 256) if toy else (8, 2048)
        self.kinds = ["linear_attention" if (i + 1) % 4 else "full_attention" for i in range(self.layers)]
        self.config = {
            "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "vocab_size": 256, "hidden_size": H,
            "intermediate_size": INNER, "num_hidden_layers": self.layers, "num_attention_heads": HEADS, "num_key_value_heads": KV,
            "head_dim": D, "hidden_act": "silu", "max_position_embeddings": 2048, "initializer_range": 0.02, "rms_norm_eps": 1e-6,
            "use_cache": True, "tie_word_embeddings": True, "attention_bias": False, "attention_dropout": 0.0, "attn_output_gate": True,
            "full_attention_interval": 4, "layer_types": self.kinds, "linear_conv_kernel_dim": CONV, "linear_key_head_dim": K,
            "linear_value_head_dim": V, "linear_num_key_heads": KEY_HEADS, "linear_num_value_heads": VALUE_HEADS,
            "mamba_ssm_dtype": "float32", "rope_parameters": {"rope_type": "default", "rope_theta": THETA, "partial_rotary_factor": 0.25,
                "mrope_interleaved": True, "mrope_section": [11, 11, 10]},
            "pad_token_id": None, "bos_token_id": None, "eos_token_id": None, "torch_dtype": "float32",
        }

    def parameters(self, generator):
        def matrix(rows, columns, gain=1.0):
            return torch.randn(rows, columns, generator=generator) * gain * columns**-0.5
        def uniform(low, high, n):
            return low + (high - low) * torch.rand(n, generator=generator)
        out = (2 * self.layers) ** -0.5
        weights = {"model.embed_tokens.weight": matrix(256, H), "model.norm.weight": torch.zeros(H)}
        for i, kind in enumerate(self.kinds):
            step = uniform(math.log(1e-3), math.log(1e-1), VALUE_HEADS).exp()
            mixer = {
                "linear_attn.in_proj_qkv.weight": matrix(MIXED, H), "linear_attn.in_proj_z.weight": matrix(VALUE_HEADS * V, H),
                "linear_attn.in_proj_a.weight": matrix(VALUE_HEADS, H, 0.5), "linear_attn.in_proj_b.weight": matrix(VALUE_HEADS, H, 0.5),
                "linear_attn.conv1d.weight": torch.randn(MIXED, 1, CONV, generator=generator) * CONV**-0.5,
                "linear_attn.A_log": uniform(1.0, 16.0, VALUE_HEADS).log(), "linear_attn.dt_bias": step + torch.log(-torch.expm1(-step)),
                "linear_attn.norm.weight": torch.ones(V), "linear_attn.out_proj.weight": matrix(H, VALUE_HEADS * V, out),
            } if kind == "linear_attention" else {
                "self_attn.q_proj.weight": matrix(HEADS * D * 2, H), "self_attn.k_proj.weight": matrix(KV * D, H),
                "self_attn.v_proj.weight": matrix(KV * D, H), "self_attn.o_proj.weight": matrix(H, HEADS * D, out),
                "self_attn.q_norm.weight": torch.zeros(D), "self_attn.k_norm.weight": torch.zeros(D),
            }
            for name, value in {
                "input_layernorm.weight": torch.zeros(H), "post_attention_layernorm.weight": torch.zeros(H), **mixer,
                "mlp.gate_proj.weight": matrix(INNER, H), "mlp.up_proj.weight": matrix(INNER, H), "mlp.down_proj.weight": matrix(H, INNER, out),
            }.items():
                weights[f"model.layers.{i}.{name}"] = value
        return weights

    def fast(self, name):
        return name.endswith(("A_log", "dt_bias"))

    def prepare(self, device, dtype, compiled):
        self.dtype = dtype
        frequency = THETA ** (-torch.arange(0, ROTARY, 2, dtype=torch.float32) / ROTARY)
        angle = torch.arange(self.length, dtype=torch.float32)[:, None] * frequency
        self.cos, self.sin = angle.cos()[:, None].to(device), angle.sin()[:, None].to(device)
        self.parts = [torch.compile(f, dynamic=False) if compiled else f for f in (full_layer, before_scan, after_scan)]

    def progress(self, fraction):
        pass

    def forward(self, weights, ids):
        S = ids.shape[1]
        full, before, after = self.parts
        x = training.Embedding.apply(ids, weights["model.embed_tokens.weight"])
        for i, kind in enumerate(self.kinds):
            prefix = f"model.layers.{i}."
            own = {n[len(prefix):]: w for n, w in weights.items() if n.startswith(prefix)}
            if kind == "full_attention":
                x = full(x, own, self.cos[:S], self.sin[:S], self.dtype)
            else:
                a, b, *parts = before(x, own, self.dtype)
                x = after(x, own, Scan.apply(a, b), *parts, self.dtype)
        logits = linear(norm(x, weights["model.norm.weight"]).to(self.dtype), weights["model.embed_tokens.weight"])
        return logits, logits.new_zeros((), dtype=torch.float32)

    def store(self, weights):
        return training.fp8(weights)


if __name__ == "__main__":
    options = training.arguments(__doc__)
    training.train(Model(options.toy), options)
