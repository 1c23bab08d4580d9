"""A stretch of a token of Swap-FFN as kernels compute it: float32, operands rounded, sums in any order."""

from __future__ import annotations

import numpy as np
from kernels import F32, normal, rounded, summed
from kernels_streams import normed, sigmoid
from ml_dtypes import bfloat16

TYPES = {"bf16": bfloat16, "f16": np.float16, "f32": F32, None: F32}


def lanes_after(lanes, selected, rule):
    lanes = list(lanes)
    if rule == "move":
        return [lanes[selected], *lanes[:selected], *lanes[selected + 1 :]]
    if rule == "literal":
        return [lanes[selected], *lanes[1:]]
    lanes[0], lanes[selected] = lanes[selected], lanes[0]
    return lanes


def exchange(rng, x, ram, maps, given, rule, eps):
    """Decides for every core, and exchanges in place."""
    logits = summed(x[..., None, :] * given["router"], rng)
    logits = logits / np.sqrt(summed(x * x, rng) / F32(x.shape[-1]) + F32(eps))[..., None] + given["router_bias"]
    gates, lanes = logits[..., 0] > 0, logits[..., 1:].argmax(-1)
    for at in np.argwhere(gates):
        at = tuple(at)
        held = [int(maps[at]) >> bit & 3 for bit in (0, 2, 4, 6)]
        bank = held[lanes[at]]
        leaving, x[at] = x[at].copy(), ram[at][bank].astype(F32)
        ram[at][bank] = rounded(leaving, ram.dtype)
        maps[at] = sum(lane << 2 * i for i, lane in enumerate(lanes_after(held, lanes[at], rule)))
    return (4 * gates + lanes).astype(np.uint8)


def swap_ffn(
    rng, ram, map, x=None, x_in=None, events=1, steps=2, eps=1e-6, residual=False, lane_rule=None, operands=None, banks=None,
    decisions=None, dtype=bfloat16, **given,
):  # fmt: skip
    given = {name: value.astype(F32) for name, value in given.items()}
    ram, maps, operand = ram.copy(), map.copy(), TYPES[operands]
    if x is None:
        x = x_in.astype(F32)[:, None] * given["film_scale"] + given["film_shift"]
    x, codes = x.astype(F32).copy(), []

    def product(a, w):
        return summed(a[..., None, :] * w, rng)

    for _ in range(events):
        codes.append(exchange(rng, x, ram, maps, given, lane_rule, eps))
        for _ in range(steps):
            n = rounded(normed(rng, x, given["ffn_g"], eps), operand).astype(F32)
            gate, up = product(n, given["w1"]), product(n, given["w3"])
            h = rounded(gate * sigmoid(gate) * up, operand).astype(F32)
            x = product(h, given["w2"]) + (x if residual else F32(0))
    found = {"x": rounded(x, F32), "ram": ram, "map": maps, "decisions": np.array(codes).reshape(events, *maps.shape)}
    if "basis" in given:
        pooled = summed(np.einsum("bcd,cp->bpdc", x, given["film_alpha"]), rng)
        z = summed(pooled.reshape(len(x), 1, -1) * given["basis"].swapaxes(0, 1).reshape(given["basis"].shape[1], -1), rng)
        found["delta"] = product(z * sigmoid(z), given["decoder"])
    return found


def drawn(rng, sizes, spread=False, ends=False):
    """Weights with which gates, n and x are about as large as each other."""
    batch, cores, width, inner, ways, rank = sizes
    maps = [sum(int(bank) << 2 * lane for lane, bank in enumerate(rng.permutation(4))) for _ in range(batch * cores)]
    shapes = {"w1": (inner, width), "w3": (inner, width), "w2": (width, inner), "router": (5, width)}
    given = {name: rounded(rng.standard_normal(shape) * shape[-1] ** -0.5, bfloat16) for name, shape in shapes.items()}
    given |= {
        "ram": normal(rng, batch, cores, 4, width),
        "map": np.array(maps, np.uint8).reshape(batch, cores),
        "router_bias": (0.1 * rng.standard_normal(5)).astype(F32),
        "ffn_g": (1 + 0.2 * rng.standard_normal(width)).astype(F32),
    }
    film = {"film_scale": (cores, width), "film_shift": (cores, width)}
    if spread:
        given |= {"x_in": normal(rng, batch, width), **{name: rng.standard_normal(shape).astype(F32) for name, shape in film.items()}}
    else:
        given["x"] = rng.standard_normal((batch, cores, width)).astype(F32)
    if ends:
        ends = {"film_alpha": (cores, ways), "basis": (ways, rank, width), "decoder": (width, rank)}
        given |= {name: (rng.standard_normal(shape) * shape[-1] ** -0.5).astype(F32) for name, shape in ends.items()}
    return given


def draw_swap_ffn(rng, dtype):
    width, inner = int(rng.choice([8, 40])), int(rng.choice([12, 96]))
    given = drawn(rng, [int(rng.choice([1, 2])), int(rng.choice([1, 5])), width, inner, 3, 7], rng.random() < 0.5, rng.random() < 0.5)
    given |= {"steps": int(rng.choice([0, 1, 2])), "residual": bool(rng.random() < 0.5),
        "operands": str(rng.choice(["f32", "bf16", "f16"]))}
    return given | {"lane_rule": str(rng.choice(["transpose", "move", "literal"]))}


def given_swap_ffn(rng):
    """Logits are the first channels, so that some are 0 and some equal, without an error."""
    given = drawn(rng, [3, 7, 40, 24, 3, 5])
    given |= {"router": np.eye(5, 40, dtype=F32), "router_bias": np.zeros(5, F32), "steps": 1}
    x = given["x"]
    x[..., 0] = rng.choice([-1, 0, 1], (3, 7))
    x[..., 1:5] = rng.choice([-1, 0], (3, 7, 4))
    return [given, given | {"residual": True}]
