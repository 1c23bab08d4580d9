"""Inputs of operations, drawn at random, and such that tell their faults apart."""

from __future__ import annotations

import kernels
import kernels_attention as attention
import kernels_compressor as compressing
import kernels_conv1d as conv1d
import kernels_gated_delta as gated_delta
import kernels_matmul as matmul
import kernels_moe as moe
import kernels_sample as sampling
import kernels_sparse as sparse
import kernels_states as states
import kernels_streams as streams
import kernels_swap as swap
import numpy as np
import ulplab
from kernels import F32, normal
from ml_dtypes import bfloat16
from ulplab import _draws


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
    given = {"x": normal(rng, 6, 2 * int(rng.choice([1, 9, 512])), dtype=dtype, scale=float(rng.choice([1.0, 20.0])))}
    if rng.random() < 0.3:
        given["cast"] = "before_up"
    return given


def draw_softmax(rng, dtype):
    x = normal(rng, 6, int(rng.choice([1, 3, 100, 4096])), dtype=dtype, scale=float(rng.choice([1.0, 10.0])))
    return {"x": x, "scale": float(rng.choice([1.0, 0.125]))}


def draw_layernorm(rng, dtype):
    cols = int(rng.choice([1, 7, 64, 1000, 4096]))
    far = float(rng.choice([0.0, 1.0, 100.0]))
    x = kernels.rounded(far + rng.standard_normal((5, cols)) * rng.choice([0.01, 1.0, 30.0]), dtype)
    given = {"x": x, "eps": float(rng.choice([1e-5, 1e-12])), "variance": str(rng.choice(["of_differences", "of_squares"]))}
    if rng.random() < 0.7:
        given["weight"] = kernels.rounded(1 + 0.1 * rng.standard_normal(cols), dtype)
    if rng.random() < 0.7:
        given["bias"] = normal(rng, cols, dtype=dtype)
    return given


def draw_top_k(rng, dtype):
    cols = int(rng.choice([1, 10, 100]))
    x = rng.integers(-4, 5, (6, cols)) / 4 if rng.random() < 0.5 else rng.standard_normal((6, cols))
    k = int(rng.integers(0, min(cols, 12) + 1))
    return {"x": kernels.rounded(x, dtype), "k": k, "ties": str(rng.choice(["lower_index", "any"]))}


def draw_rope(rng, dtype):
    pairs, batch = int(rng.choice([1, 16])), int(rng.choice([1, 3]))
    angles = rng.uniform(0, 6, (batch, 5, pairs) if rng.random() < 0.5 else (5, pairs))
    given = {"pairing": str(rng.choice(["half", "interleaved"])), "layout": str(rng.choice(["bthd", "bhtd"]))}
    if rng.random() < 0.5:
        given["width"] = "full"
        angles = np.concatenate([angles, angles], -1) if given["pairing"] == "half" else np.repeat(angles, 2, -1)
    order = (5, 2) if given["layout"] == "bthd" else (2, 5)
    batches = (batch,) if angles.ndim == 3 or rng.random() < 0.5 else ()
    given |= {
        "x": normal(rng, *batches, *order, 2 * pairs + int(rng.choice([0, 6])), dtype=dtype),
        "cos": np.cos(angles).astype(np.float32),
        "sin": np.sin(angles).astype(np.float32),
    }
    if rng.random() < 0.3:
        given["inverse"] = True
    return given


def given_rmsnorm(rng):
    weight = kernels.rounded(1 + 0.1 * rng.standard_normal(80), bfloat16)
    return [{"x": normal(rng, 9, 80, scale=0.01), "weight": weight, "gate": normal(rng, 9, 80), "eps": 1e-5}]


def given_rope(rng):
    angles = rng.uniform(0, 6, (3, 9, 8))
    plain = {"x": normal(rng, 9, 3, 20), "cos": np.cos(angles[0]), "sin": np.sin(angles[0])}
    angles = np.concatenate([angles, angles], -1)
    full = {"x": normal(rng, 3, 2, 9, 20), "cos": np.cos(angles), "sin": np.sin(angles), "layout": "bhtd", "width": "full"}
    return [plain, full]


def given_layernorm(rng):
    weight = kernels.rounded(1 + 0.1 * rng.standard_normal(80), bfloat16)
    return [{"x": kernels.rounded(rng.normal(0.02, 0.01, (9, 80)), bfloat16), "weight": weight, "bias": normal(rng, 80)}]


def given_top_k(rng):
    return [{"x": kernels.rounded(rng.integers(-99, 100, (30, 60)) / 32, bfloat16), "k": 6}]


# What kernels decide by, or look up, and what says how many there are: equal numbers there would make several outputs right.
KEPT = {"router", "router_bias", "map", "noise", "temperature", "position", "count", "counts", "cos", "sin", "logits", "selection_bias"}


def repeated(rng, given):
    """The same inputs with tensors that have few distinct numbers: constant, periodic, of few values in any order or in runs, with all
    slices of some dimension equal, as long as ramps, or as bf16 has them. Of the same kind: masks, padding, images, one-hot rows."""
    given = dict(given)
    for name, x in given.items():
        if name in KEPT or not isinstance(x, np.ndarray) or x.dtype.kind in "iub" or x.size < 2 or rng.random() < 0.3:
            continue
        flat, few = x.astype(F32).ravel(), int(rng.choice([1, 2, 3, 7, 16]))
        finite = np.isfinite(x.astype(F32))
        flat = np.where(finite.ravel(), flat, F32(0))
        values = flat[rng.integers(0, x.size, few)]
        kind = int(rng.integers(7))
        if kind == 0:
            filled = np.full(x.shape, values[0])
        elif kind == 1:
            filled = np.resize(values, x.shape)
        elif kind == 2:
            filled = values[rng.integers(0, few, x.shape)]
        elif kind == 3:
            filled = values[np.arange(x.size) * few // x.size].reshape(x.shape)
        elif kind == 4:
            axis = int(rng.integers(x.ndim))
            filled = np.broadcast_to(x.astype(F32).take([0], axis), x.shape)
        elif kind == 5:
            # The same ramp in every row.
            filled = np.broadcast_to(np.linspace(flat.min(), flat.max(), x.shape[-1]), x.shape)
        else:
            filled = x.astype(bfloat16)
        # What is NaN or infinite stays the only one.
        given[name] = np.where(finite, np.asarray(filled, F32).astype(x.dtype), x)
    return given


# Inputs at random, of a type.
OPERATIONS = {
    "rmsnorm": draw_rmsnorm,
    "silu_and_mul": draw_silu_and_mul,
    "softmax": draw_softmax,
    "compressor": compressing.draw_compressor,
    "diagonal_ssm": states.draw_diagonal_ssm,
    "gated_delta": gated_delta.draw,
    "matmul": matmul.draw,
    "moe": moe.draw,
    "rope": draw_rope,
    "attention": attention.draw,
    "causal_conv1d": conv1d.draw,
    "hyper_head": streams.draw_hyper_head,
    "index_scores": streams.draw_index_scores,
    "layernorm": draw_layernorm,
    "mhc_post": streams.draw_mhc_post,
    "mhc_pre": streams.draw_mhc_pre,
    "sample": sampling.draw_sample,
    "sparse_attention": sparse.draw_sparse_attention,
    "state_transpose": states.draw_state_transpose,
    "swap_ffn": swap.draw_swap_ffn,
    "top_k": draw_top_k,
}
# What computes each as kernels do.
KERNELS = {
    "rmsnorm": kernels.rmsnorm,
    "silu_and_mul": kernels.silu_and_mul,
    "softmax": kernels.softmax,
    "compressor": compressing.compressor,
    "diagonal_ssm": states.diagonal_ssm,
    "gated_delta": gated_delta.kernel,
    "matmul": matmul.kernel,
    "moe": moe.kernel,
    "rope": kernels.rope,
    "attention": attention.kernel,
    "causal_conv1d": conv1d.kernel,
    "hyper_head": streams.hyper_head,
    "index_scores": streams.index_scores,
    "layernorm": kernels.layernorm,
    "mhc_post": streams.mhc_post,
    "mhc_pre": streams.mhc_pre,
    "sample": sampling.sample,
    "sparse_attention": sparse.sparse_attention,
    "state_transpose": states.state_transpose,
    "swap_ffn": swap.swap_ffn,
    "top_k": kernels.top_k,
}
# Inputs that tell all faults of an operation apart: no two sizes are equal, and everything optional is given in one of them.
GIVEN = {
    "rmsnorm": given_rmsnorm,
    "silu_and_mul": lambda rng: [{"x": normal(rng, 9, 160)}],
    "softmax": lambda rng: [{"x": normal(rng, 9, 50), "scale": 0.5}],
    "compressor": compressing.given_compressor,
    "diagonal_ssm": states.given_diagonal_ssm,
    "gated_delta": gated_delta.given,
    "matmul": matmul.given,
    "moe": moe.given,
    "rope": given_rope,
    "attention": attention.given,
    "causal_conv1d": conv1d.given,
    "hyper_head": streams.given_hyper_head,
    "index_scores": streams.given_index_scores,
    "layernorm": given_layernorm,
    "mhc_post": lambda rng: [streams.given_mhc_post(rng)],
    "mhc_pre": streams.given_mhc_pre,
    "sample": sampling.given_sample,
    "sparse_attention": sparse.given_sparse_attention,
    "state_transpose": states.given_state_transpose,
    "swap_ffn": swap.given_swap_ffn,
    "top_k": given_top_k,
}


def ones(*shape):
    return np.ones(shape, np.float32)


# Inputs of a size that may be small, or 0.
SMALL = {
    "rmsnorm": lambda size: {"x": ones(3, size)},
    "silu_and_mul": lambda size: {"x": ones(3, 2 * size)},
    "softmax": lambda size: {"x": ones(3, size)},
    "layernorm": lambda size: {"x": ones(3, size)},
    "top_k": lambda size: {"x": np.arange(3 * size, dtype=np.float32).reshape(3, size), "k": min(size, 3)},
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
    "diagonal_ssm": lambda size: {"u": ones(2, 3, size), "a": 0.5 * ones(3, 2), "b": ones(3, 2), "c": ones(3, 2)},
    "index_scores": lambda size: {"q": ones(3, 2, 4), "k": ones(size, 4), "weights": ones(3, 2)},
    "mhc_post": lambda size: {"x": ones(3, 2, size), "y": ones(3, size), "post": ones(3, 2), "comb": ones(3, 2, 2)},
    "sample": lambda size: {"logits": ones(size, 3), "temperature": ones(size)},
    "hyper_head": lambda size: {"x": ones(size, 2, 3), "fn": ones(2, 6), "base": ones(2), "scale": ones(1)},
    "sparse_attention": lambda size: {
        "q": ones(2, 2, 3),
        "window": ones(2, 4, 3),
        "position": 5 * ones(2),
        "entries": ones(2, size, 3),
    },
    "state_transpose": lambda size: {"x": ones(2, size, 3)},
    "swap_ffn": lambda size: {
        **{"x": ones(size, 2, 3), "ram": ones(size, 2, 4, 3), "map": 228 * ones(size, 2), "router": ones(5, 3), "router_bias": ones(5)},
        **{"ffn_g": ones(3), "w1": ones(4, 3), "w3": ones(4, 3), "w2": ones(3, 4)},
    },
    "mhc_pre": lambda size: {"x": ones(size, 2, 3), "fn": ones(8, 6), "base": ones(8), "scale": ones(3)},
    "compressor": lambda size: {
        **{"kv": ones(size, 4), "gate": ones(size, 4), "ape": ones(2, 4), "cos": ones(6, 1), "sin": ones(6, 1)},
        **{"position": 3 * ones(size), "ring_kv": ones(size, 2, 4), "ring_gate": ones(size, 2, 4), "entries": ones(size, 3, 4)},
    },
    "causal_conv1d": lambda size: {"x": ones(2, 3, size), "weight": ones(3, 4), "bias": ones(3)},
}


def draw_of_cases(op):
    """Inputs of the cases of an operation, in a type."""

    def draw(rng, dtype):
        return {name: kernels.rounded(x, dtype) if getattr(x, "dtype", None) == F32 else x for name, x in _draws.of(op)(rng).items()}

    return draw


def moved_reference(op):
    """What the operation gives, moved within its errors: the kernel of an operation that has none here."""

    def kernel(rng, dtype=bfloat16, **given):
        found = ulplab.reference.compute(op, dtype=np.dtype(dtype).name, **given)
        named = found if isinstance(found, dict) else {"": found}
        moved = {name: rounded_within(rng, one, dtype) for name, one in named.items()}
        return moved if isinstance(found, dict) else moved[""]

    return kernel


def rounded_within(rng, found, dtype):
    return kernels.rounded(found.value + found.error * rng.uniform(-0.9, 0.9, found.value.shape), dtype)


# An operation that has cases needs nothing here.
for operation in ulplab.reference.operations():
    if (op := operation["name"]) not in OPERATIONS:
        OPERATIONS[op], KERNELS[op] = draw_of_cases(op), moved_reference(op)
        GIVEN[op] = lambda rng, op=op: [OPERATIONS[op](rng, bfloat16)]
