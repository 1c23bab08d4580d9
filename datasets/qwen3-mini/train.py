"""Trains qwen3-mini: a dense Qwen3 of 24 layers with bytes as its vocabulary, head_dim 128, GQA 4:1, q/k norm, tied head.

Usage: train.py OUT_DIR [--seconds N] [--texts DIR] [--mode graph|compile|eager] [--toy]
"""
import pathlib
import sys

import torch
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import training

HEADS, KV, D, H, INNER = 8, 2, 128, 64, 192


def norm(x, weight):
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def linear(x, weight):
    return F.linear(x, weight.to(x.dtype))


def rotate(x, cos, sin):
    """Half-split RoPE of [batch, length, heads, D] in FP32."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def layer(x, w, cos, sin, dtype):
    B, S, _ = x.shape
    h = norm(x, w["input_layernorm.weight"]).to(dtype)
    q = norm(linear(h, w["self_attn.q_proj.weight"]).view(B, S, HEADS, D), w["self_attn.q_norm.weight"])
    k = norm(linear(h, w["self_attn.k_proj.weight"]).view(B, S, KV, D), w["self_attn.k_norm.weight"])
    v = linear(h, w["self_attn.v_proj.weight"]).view(B, S, KV, D)
    q, k = rotate(q, cos, sin).to(dtype), rotate(k, cos, sin).to(dtype)
    k, v = (t.repeat_interleave(HEADS // KV, 2).transpose(1, 2) for t in (k, v))
    o = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, is_causal=True)
    x = x + linear(o.transpose(1, 2).reshape(B, S, HEADS * D), w["self_attn.o_proj.weight"]).float()
    h = norm(x, w["post_attention_layernorm.weight"]).to(dtype)
    y = F.silu(linear(h, w["mlp.gate_proj.weight"])) * linear(h, w["mlp.up_proj.weight"])
    return x + linear(y, w["mlp.down_proj.weight"]).float()


class Model:
    name = "qwen3-mini"
    learning_rate = 3e-3

    def __init__(self, toy):
        self.layers = 3 if toy else 24
        self.batch, self.length = (2, 256) if toy else (32, 1024)
        self.config = {
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 256, "hidden_size": H, "intermediate_size": INNER,
            "num_hidden_layers": self.layers, "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": D, "hidden_act": "silu",
            "max_position_embeddings": 1024, "initializer_range": 0.02, "rms_norm_eps": 1e-6, "use_cache": True,
            "tie_word_embeddings": True, "rope_theta": 1000000.0, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
            "attention_bias": False, "attention_dropout": 0.0, "use_sliding_window": False, "sliding_window": None,
            "max_window_layers": self.layers, "bos_token_id": None, "eos_token_id": None, "torch_dtype": "float32",
        }

    def parameters(self, generator):
        def matrix(rows, columns, gain=1.0):
            return torch.randn(rows, columns, generator=generator) * gain * columns**-0.5
        out = (2 * self.layers) ** -0.5
        weights = {"model.embed_tokens.weight": matrix(256, H), "model.norm.weight": torch.ones(H)}
        for i in range(self.layers):
            for name, value in {
                "input_layernorm.weight": torch.ones(H), "post_attention_layernorm.weight": torch.ones(H),
                "self_attn.q_proj.weight": matrix(HEADS * D, H), "self_attn.k_proj.weight": matrix(KV * D, H),
                "self_attn.v_proj.weight": matrix(KV * D, H), "self_attn.o_proj.weight": matrix(H, HEADS * D, out),
                "self_attn.q_norm.weight": torch.ones(D), "self_attn.k_norm.weight": torch.ones(D),
                "mlp.gate_proj.weight": matrix(INNER, H), "mlp.up_proj.weight": matrix(INNER, H),
                "mlp.down_proj.weight": matrix(H, INNER, out),
            }.items():
                weights[f"model.layers.{i}.{name}"] = value
        return weights

    def fast(self, name):
        return False

    def prepare(self, device, dtype, compiled):
        self.dtype = dtype
        frequency = 1e6 ** (-torch.arange(0, D, 2, dtype=torch.float32) / D)
        angle = torch.arange(self.length, dtype=torch.float32)[:, None] * frequency
        self.cos, self.sin = angle.cos()[:, None].to(device), angle.sin()[:, None].to(device)
        self.layer = torch.compile(layer, dynamic=False) if compiled else layer

    def progress(self, fraction):
        pass

    def forward(self, weights, ids):
        S = ids.shape[1]
        x = training.Embedding.apply(ids, weights["model.embed_tokens.weight"])
        for i in range(self.layers):
            prefix = f"model.layers.{i}."
            x = self.layer(x, {n[len(prefix):]: w for n, w in weights.items() if n.startswith(prefix)}, self.cos[:S], self.sin[:S], self.dtype)
        logits = linear(norm(x, weights["model.norm.weight"]).to(self.dtype), weights["model.embed_tokens.weight"])
        return logits, logits.new_zeros((), dtype=torch.float32)

    def store(self, weights):
        return training.fp8(weights)


if __name__ == "__main__":
    options = training.arguments(__doc__)
    training.train(Model(options.toy), options)
