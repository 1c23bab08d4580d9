"""Inputs of operations, drawn at random, and such that tell their faults apart."""

from __future__ import annotations

import kernels
import kernels_attention as attention
import kernels_conv1d as conv1d
import kernels_gated_delta as gated_delta
import kernels_matmul as matmul
import kernels_moe as moe
import numpy as np
from kernels import normal
from ml_dtypes import bfloat16


def draw_rmsnorm(rng, dtype):
    cols = int(rng.choice([1, 7, 64, 129, 2048, 5120]))
    x = normal(rng, 5, cols, dtype=dtype, scale=float(rng.choice([1 / (2 * cols), 1.0, 30.0])))
    given = {"x": x, "weight": kernels.rounded(1 + 0.1 * rng.standard_normal(cols), dtype), "eps": 1e-6}
    if rng.random() < 0.3:
        given["gate"] = normal(rng, 5, cols, dtype=dtype, scale=3.0)
    if rng.random() < 0.3:
        given["zero_centered"] = True
    if rng.random() < 0.3:
        given["cast"] = "before_weight"
    return given


def draw_silu_and_mul(rng, dtype):
    return {"x": normal(rng, 6, 2 * int(rng.choice([1, 9, 512])), dtype=dtype, scale=float(rng.choice([1.0, 20.0])))}


def draw_softmax(rng, dtype):
    x = normal(rng, 6, int(rng.choice([1, 3, 100, 4096])), dtype=dtype, scale=float(rng.choice([1.0, 10.0])))
    return {"x": x, "scale": float(rng.choice([1.0, 0.125]))}


def draw_rope(rng, dtype):
    pairs = int(rng.choice([1, 16]))
    angles = rng.uniform(0, 6, (5, pairs))
    given = {
        "x": normal(rng, 5, 2, 2 * pairs + int(rng.choice([0, 6])), dtype=dtype),
        "cos": np.cos(angles).astype(np.float32),
        "sin": np.sin(angles).astype(np.float32),
        "pairing": str(rng.choice(["half", "interleaved"])),
    }
    if rng.random() < 0.3:
        given["inverse"] = True
    return given


def given_rmsnorm(rng):
    weight = kernels.rounded(1 + 0.1 * rng.standard_normal(80), bfloat16)
    return [{"x": normal(rng, 9, 80, scale=0.01), "weight": weight, "gate": normal(rng, 9, 80), "eps": 1e-5}]


def given_rope(rng):
    angles = rng.uniform(0, 6, (9, 8))
    return [{"x": normal(rng, 9, 3, 20), "cos": np.cos(angles), "sin": np.sin(angles)}]


# Inputs at random, of a type.
OPERATIONS = {
    "rmsnorm": draw_rmsnorm,
    "silu_and_mul": draw_silu_and_mul,
    "softmax": draw_softmax,
    "gated_delta": gated_delta.draw,
    "matmul": matmul.draw,
    "moe": moe.draw,
    "rope": draw_rope,
    "attention": attention.draw,
    "causal_conv1d": conv1d.draw,
}
# What computes each as kernels do.
KERNELS = {
    "rmsnorm": kernels.rmsnorm,
    "silu_and_mul": kernels.silu_and_mul,
    "softmax": kernels.softmax,
    "gated_delta": gated_delta.kernel,
    "matmul": matmul.kernel,
    "moe": moe.kernel,
    "rope": kernels.rope,
    "attention": attention.kernel,
    "causal_conv1d": conv1d.kernel,
}
# Inputs that tell all faults of an operation apart: no two sizes are equal, and everything optional is given in one of them.
GIVEN = {
    "rmsnorm": given_rmsnorm,
    "silu_and_mul": lambda rng: [{"x": normal(rng, 9, 160)}],
    "softmax": lambda rng: [{"x": normal(rng, 9, 50), "scale": 0.5}],
    "gated_delta": gated_delta.given,
    "matmul": matmul.given,
    "moe": moe.given,
    "rope": given_rope,
    "attention": attention.given,
    "causal_conv1d": conv1d.given,
}


def ones(*shape):
    return np.ones(shape, np.float32)


# Inputs of a size that may be small, or 0.
SMALL = {
    "rmsnorm": lambda size: {"x": ones(3, size)},
    "silu_and_mul": lambda size: {"x": ones(3, 2 * size)},
    "softmax": lambda size: {"x": ones(3, size)},
    "matmul": lambda size: {"a": ones(3, size), "b": ones(size, 4)},
    "rope": lambda size: {"x": ones(3, 1, 2 * size), "cos": ones(3, size), "sin": 0 * ones(3, size)},
    "attention": lambda size: {name: ones(1, size, 2, 4) for name in "qkv"},
    "moe": lambda size: {
        "x": ones(3, size),
        "w13": ones(2, 2 * size, size),
        "w2": ones(2, size, size),
        "logits": ones(3, 2),
        "top_k": 1,
    },
    "gated_delta": lambda size: {
        **{name: ones(2, 3, 2, size) for name in "qkv"},
        "g": -ones(2, 3, 2),
        "beta": ones(2, 3, 2),
    },
    "causal_conv1d": lambda size: {"x": ones(2, 3, size), "weight": ones(3, 4), "bias": ones(3)},
}
