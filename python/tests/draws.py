"""Inputs of operations, drawn at random, and such that tell their faults apart."""

from __future__ import annotations

import kernels
import kernels_matmul as matmul
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


def draw_attention(rng, dtype):
    heads, groups, dim = 4, int(rng.choice([1, 2, 4])), int(rng.choice([8, 64]))
    queries, keys = int(rng.choice([1, 5])), int(rng.choice([5, 70]))
    layout = str(rng.choice(["bthd", "bhtd"]))

    def tensor(tokens, heads, dim):
        shape = (2, tokens, heads, dim) if layout == "bthd" else (2, heads, tokens, dim)
        return normal(rng, *shape, dtype=dtype)

    given = {"q": tensor(queries, heads, dim), "k": tensor(keys, groups, dim), "v": tensor(keys, groups, 24), "layout": layout}
    if rng.random() < 0.5:
        given["causal"] = True
    if rng.random() < 0.3:
        given["window"] = 4
    if rng.random() < 0.3:
        given["sinks"] = normal(rng, heads, dtype=np.float32)
    if rng.random() < 0.3 and dtype is not np.float32:
        given["p"] = "bf16" if dtype is bfloat16 else "f16"
    return given


def given_rmsnorm(rng):
    weight = kernels.rounded(1 + 0.1 * rng.standard_normal(80), bfloat16)
    return [{"x": normal(rng, 9, 80, scale=0.01), "weight": weight, "gate": normal(rng, 9, 80), "eps": 1e-5}]


def given_rope(rng):
    angles = rng.uniform(0, 6, (9, 8))
    return [{"x": normal(rng, 9, 3, 20), "cos": np.cos(angles), "sin": np.sin(angles)}]


def given_attention(rng):
    q, k, v = normal(rng, 2, 9, 6, 16), normal(rng, 2, 11, 3, 16), normal(rng, 2, 11, 3, 20)
    return [{"q": q, "k": k, "v": v, "causal": True, "window": 4, "sinks": normal(rng, 6)}]


# Inputs at random, of a type.
OPERATIONS = {
    "rmsnorm": draw_rmsnorm,
    "silu_and_mul": draw_silu_and_mul,
    "softmax": draw_softmax,
    "matmul": matmul.draw,
    "rope": draw_rope,
    "attention": draw_attention,
}
# What computes each as kernels do.
KERNELS = {
    "rmsnorm": kernels.rmsnorm,
    "silu_and_mul": kernels.silu_and_mul,
    "softmax": kernels.softmax,
    "matmul": matmul.kernel,
    "rope": kernels.rope,
    "attention": kernels.attention,
}
# Inputs that tell all faults of an operation apart: no two sizes are equal, and everything optional is given in one of them.
GIVEN = {
    "rmsnorm": given_rmsnorm,
    "silu_and_mul": lambda rng: [{"x": normal(rng, 9, 160)}],
    "softmax": lambda rng: [{"x": normal(rng, 9, 50), "scale": 0.5}],
    "matmul": matmul.given,
    "rope": given_rope,
    "attention": given_attention,
}
