"""Causal convolutions as kernels compute them: taps in any order, the bias first or last."""

from __future__ import annotations

import numpy as np
from kernels import F32, normal, rounded
from ml_dtypes import bfloat16


def kernel(rng, x, weight, bias=None, state=None, activation="none", layout="bct", cast="at_end", dtype=bfloat16):
    batch, channels = x.shape[0], weight.shape[0]
    whole = x[..., None] if x.ndim == 2 else x.swapaxes(1, 2) if layout == "btc" else x
    tokens, taps = whole.shape[-1], weight.shape[1]
    if state is None:
        state = np.zeros((batch, channels, taps - 1), x.dtype)
    before = state.shape[-1]
    inputs = np.concatenate([state.astype(F32), whole.astype(F32)], -1)
    bias = np.zeros(channels, F32) if bias is None else bias.astype(F32)
    first = rng.random() < 0.5
    y = np.zeros((batch, channels, tokens), F32) + (bias[:, None] if first else F32(0))
    for tap in rng.permutation(taps):
        start = before - taps + 1 + tap
        y += inputs[..., start : start + tokens] * weight.astype(F32)[:, tap, None]
    y = y if first else y + bias[:, None]
    if cast == "before_activation":
        y = rounded(y, dtype).astype(F32)
    if activation == "silu":
        with np.errstate(over="ignore"):
            y = y / (F32(1) + np.exp(-y)) if rng.random() < 0.5 else y * (F32(1) / (F32(1) + np.exp(-y)))
    left = inputs[..., inputs.shape[-1] - before :].astype(state.dtype)
    y = y[..., 0] if x.ndim == 2 else y.swapaxes(1, 2) if layout == "btc" else y
    return {"y": rounded(y, dtype), "state": left}


def draw(rng, dtype):
    batch, channels, taps = 2, int(rng.choice([1, 12])), int(rng.choice([1, 2, 3, 4]))
    tokens, layout = int(rng.choice([0, 1, 2, 9])), str(rng.choice(["bct", "btc"]))
    shape = (batch, channels, tokens) if layout == "bct" else (batch, tokens, channels)
    size = float(rng.choice([0.01, 1.0, 30.0]))
    given = {
        "x": normal(rng, *shape if rng.random() < 0.6 else (batch, channels), dtype=dtype, scale=size),
        "weight": normal(rng, channels, taps, dtype=dtype),
        "layout": layout,
        "activation": str(rng.choice(["none", "silu"])),
    }
    if rng.random() < 0.5:
        given["bias"] = normal(rng, channels, dtype=dtype)
    if rng.random() < 0.7:
        kept = taps - 1 + int(rng.choice([0, 0, 3]))
        given["state"] = normal(rng, batch, channels, kept, dtype=dtype, scale=size)
    if rng.random() < 0.3:
        given["cast"] = "before_activation"
    return given


def given(rng):
    common = {"weight": normal(rng, 20, 4), "bias": normal(rng, 20), "activation": "silu"}
    step = {"x": normal(rng, 9, 20), "state": normal(rng, 9, 20, 3), **common}
    return [step, {"x": normal(rng, 2, 20, 7), "state": normal(rng, 2, 20, 3), **common}]
