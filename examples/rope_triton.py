#!/usr/bin/env python3
"""The operation `rope` in Triton, as a variant that ulplab checks: `ulplab kernels check experiments/outside.toml`.

The program is started once and gets the paths of two safetensors files for each run. The first file holds x [T, H, D], the tables
cos and sin [T, R/2], and, in its metadata, sizes and direction. The program writes x, with the last R channels of every head
rotated, to the second.

Needs: torch, triton and safetensors   (Triton runs on a GPU, or anywhere with TRITON_INTERPRET=1)
"""
import os
import statistics

import torch
import triton
import triton.language as tl
from safetensors import safe_open
from safetensors.torch import save_file
from serve import serve


@triton.jit
def rope(x, cos, sin, sign, pairs, H, D, R, BLOCK: tl.constexpr):
    pair = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = pair < pairs
    row, i = pair // (R // 2), pair % (R // 2)
    even = x + row * D + D - R + 2 * i
    angle = row // H * (R // 2) + i
    a = tl.load(even, inside, other=0.0).to(tl.float32)
    b = tl.load(even + 1, inside, other=0.0).to(tl.float32)
    c = tl.load(cos + angle, inside, other=0.0)
    s = tl.load(sin + angle, inside, other=0.0) * sign
    tl.store(even, (a * c - b * s).to(x.dtype.element_ty), inside)
    tl.store(even + 1, (b * c + a * s).to(x.dtype.element_ty), inside)


def compute(inputs, outputs):
    device = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
    with safe_open(inputs, "pt", device=device) as file:
        x, cos, sin = (file.get_tensor(name) for name in ("x", "cos", "sin"))
        given = file.metadata()
    h, d, r = (int(given[size]) for size in ("H", "D", "R"))
    sign = -1.0 if given["direction"] == "inverse" else 1.0
    pairs = x.numel() // d * (r // 2)

    def turn(x):
        # Every product is rounded before the sum; one that is fused with it would be right, too.
        rope[(triton.cdiv(pairs, 1024),)](x, cos, sin, sign, pairs, h, d, r, BLOCK=1024, enable_fp_fusion=False)

    turn(x)
    metadata = {}
    if device == "cuda":
        metadata["us"] = str(microseconds(turn, x.clone()))
    save_file({"x": x}, outputs, metadata)


def microseconds(turn, x):
    """Median of 50 runs."""
    times = []
    for _ in range(51):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        turn(x)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times[1:])


if __name__ == "__main__":
    serve(compute)
