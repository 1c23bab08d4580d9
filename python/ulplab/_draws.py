"""Inputs of operations, drawn at random, for those that a caller has none for: by a function here, or those of the registry's cases."""

from __future__ import annotations

from types import FunctionType
from typing import Any, Callable

import numpy

from . import _native

# As text: numpy.random takes longer to import than all of this module.
Draw = Callable[["numpy.random.Generator"], dict[str, Any]]


def _rmsnorm(rng: numpy.random.Generator) -> dict[str, Any]:
    scale = 10.0 ** rng.uniform(-3, 1)
    return {"x": rng.standard_normal((32, 512)) * scale, "weight": 1 + 0.1 * rng.standard_normal(512), "eps": 1e-6}


def _silu_and_mul(rng: numpy.random.Generator) -> dict[str, Any]:
    return {"x": rng.standard_normal((32, 512)) * rng.uniform(0.5, 5)}


def _softmax(rng: numpy.random.Generator) -> dict[str, Any]:
    return {"x": rng.standard_normal((32, 256)) * rng.uniform(0.5, 8), "scale": 1.0}


def _matmul(rng: numpy.random.Generator) -> dict[str, Any]:
    return {"a": rng.standard_normal((24, 256)), "b": rng.standard_normal((256, 32))}


def _rope(rng: numpy.random.Generator) -> dict[str, Any]:
    angles = rng.integers(0, 4096, (32, 1)) * 10_000.0 ** -(numpy.arange(16) / 16)
    return {"x": rng.standard_normal((32, 4, 32)), "cos": numpy.cos(angles), "sin": numpy.sin(angles)}


def _attention(rng: numpy.random.Generator) -> dict[str, Any]:
    q, kv = (1, 8, 4, 32), (1, 40, 2, 32)
    return {"q": rng.standard_normal(q), "k": rng.standard_normal(kv), "v": rng.standard_normal(kv), "causal": True}


def _layernorm(rng: numpy.random.Generator) -> dict[str, Any]:
    x = rng.uniform(-3, 3) + rng.standard_normal((32, 512))
    return {"x": x, "weight": 1 + 0.1 * rng.standard_normal(512), "bias": rng.standard_normal(512), "eps": 1e-5}


def _top_k(rng: numpy.random.Generator) -> dict[str, Any]:
    return {"x": rng.standard_normal((32, 256)), "k": 8}


def _causal_conv1d(rng: numpy.random.Generator) -> dict[str, Any]:
    shapes = {"x": (3, 32, 24), "weight": (32, 4), "bias": (32,), "state": (3, 32, 3)}
    return {**{name: rng.standard_normal(shape) for name, shape in shapes.items()}, "activation": "silu"}


def _gated_delta(rng: numpy.random.Generator) -> dict[str, Any]:
    given = {name: rng.standard_normal((2, 6, 4, dim)) for name, dim in (("q", 16), ("k", 16), ("v", 24))}
    gates = {"g": -rng.uniform(0, 1, (2, 6, 4)), "beta": rng.uniform(0, 1, (2, 6, 4))}
    return {**given, **gates, "state": rng.standard_normal((2, 4, 16, 24)), "l2norm": True}


def _moe(rng: numpy.random.Generator) -> dict[str, Any]:
    shapes = {"x": (24, 32), "w13": (4, 48, 32), "w2": (4, 32, 24), "logits": (24, 4)}
    return {**{name: rng.standard_normal(shape) / shape[-1] ** 0.5 for name, shape in shapes.items()}, "top_k": 2}


def _index_scores(rng: numpy.random.Generator) -> dict[str, Any]:
    shapes = {"q": (16, 8, 64), "k": (48, 64), "weights": (16, 8)}
    return {**{name: rng.standard_normal(shape) for name, shape in shapes.items()}, "scale": 512**-0.5}


def _diagonal_ssm(rng: numpy.random.Generator) -> dict[str, Any]:
    given = {"u": rng.standard_normal((4, 96)), "a": rng.uniform(0.7, 1, (4, 16)), "state": rng.standard_normal((4, 16))}
    return {**given, "b": rng.standard_normal((4, 16)), "c": rng.standard_normal((4, 16))}


def _sample(rng: numpy.random.Generator) -> dict[str, Any]:
    rows = {"temperature": rng.choice([0, 0.7, 1.3], 32), "position": rng.integers(0, 4000, 32), "sequence": rng.permutation(32)}
    return {"logits": 4 * rng.standard_normal((32, 600)), **rows, "seed": int(rng.integers(2**53))}


def _state_transpose(rng: numpy.random.Generator) -> dict[str, Any]:
    return {"x": rng.standard_normal((2, 3, 48, 80))}


def _sparse_attention(rng: numpy.random.Generator) -> dict[str, Any]:
    shapes = {"q": (6, 4, 32), "window": (6, 8, 32), "entries": (6, 40, 32), "sinks": (4,)}
    rows = {"position": rng.integers(0, 50, 6), "indices": rng.integers(-1, 40, (6, 16))}
    return {**{name: rng.standard_normal(shape) for name, shape in shapes.items()}, **rows}


def _hyper_head(rng: numpy.random.Generator) -> dict[str, Any]:
    shapes = {"x": (16, 4, 64), "base": (4,)}
    weights = {"fn": rng.standard_normal((4, 256)) / 16, "scale": numpy.ones(1), "weight": 1 + 0.1 * rng.standard_normal(64)}
    return {**{name: rng.standard_normal(shape) for name, shape in shapes.items()}, **weights}


def _compressor(rng: numpy.random.Generator) -> dict[str, Any]:
    shapes = {"kv": (6, 64), "gate": (6, 64), "ape": (4, 64), "ring_kv": (6, 8, 64), "ring_gate": (6, 8, 64), "entries": (6, 9, 32)}
    angles = numpy.arange(36)[:, None] * 10_000.0 ** -(numpy.arange(4) / 4)
    turns = {"cos": numpy.cos(angles), "sin": numpy.sin(angles), "position": 4 * rng.integers(0, 9, 6) + 3}
    return {**{name: rng.standard_normal(shape) for name, shape in shapes.items()}, **turns}


def _mhc_pre(rng: numpy.random.Generator) -> dict[str, Any]:
    shapes = {"x": (16, 4, 64), "base": (24,)}
    weights = {"fn": rng.standard_normal((24, 256)) / 16, "scale": numpy.ones(3), "weight": 1 + 0.1 * rng.standard_normal(64)}
    return {**{name: rng.standard_normal(shape) for name, shape in shapes.items()}, **weights}


def _swap_ffn(rng: numpy.random.Generator) -> dict[str, Any]:
    shapes = {"w1": (96, 48), "w3": (96, 48), "w2": (48, 96), "router": (5, 48), "router_bias": (5,)}
    given = {name: rng.standard_normal(shape) / shape[-1] ** 0.5 for name, shape in shapes.items()}
    state = {"x": rng.standard_normal((2, 8, 48)), "ram": rng.standard_normal((2, 8, 4, 48)), "map": rng.choice([0xE4, 0x1B], (2, 8))}
    return {**given, **state, "ffn_g": 1 + 0.1 * rng.standard_normal(48), "banks": "f32"}


def _mhc_post(rng: numpy.random.Generator) -> dict[str, Any]:
    shapes = {"x": (16, 4, 64), "y": (16, 64)}
    weights = {"post": rng.uniform(0, 2, (16, 4)), "comb": rng.uniform(0, 1, (16, 4, 4))}
    return {**{name: rng.standard_normal(shape) for name, shape in shapes.items()}, **weights}


# Each function above draws inputs of the operation of its name.
_DRAWS: dict[str, Draw] = {name[1:]: draw for name, draw in list(globals().items()) if isinstance(draw, FunctionType)}


def of(op: str) -> Draw:
    """The function that draws inputs of an operation: numbers in float32, and integers. ValueError if there is none."""
    names = [operation["name"] for operation in _native.operations()]
    if op not in names or op not in _DRAWS and _native.drawn(op, 0) is None:
        drawn = ", ".join(name for name in names if name in _DRAWS or _native.drawn(name, 0) is not None)
        raise ValueError(f"inputs of '{op}' are not drawn, expected inputs=FUNCTION of a random generator; drawn are {drawn}")

    def draw(rng: numpy.random.Generator) -> dict[str, Any]:
        given = _DRAWS[op](rng) if op in _DRAWS else _native.drawn(op, int(rng.integers(2**63))) or {}
        return {name: x.astype(numpy.float32) if getattr(x, "dtype", None) == numpy.float64 else x for name, x in given.items()}

    return draw
