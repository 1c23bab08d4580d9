#!/usr/bin/env python3
"""Times torchao's eager path and ml_dtypes as they quantize and dequantize a tensor on one core.

Prints a list of figures as JSON; seconds are per call. `ulplab dev bench formats --peer FILE` reports them beside its own, so run
both on the same idle machine.

Needs: pip install numpy ml_dtypes torch torchao   (measured with ml_dtypes 0.6.0, torch 2.15.0, torchao 0.18.0)
Usage: quantize.py [--rows 1024] [--cols 4096] [--repeats 21]
"""
import argparse
import json
import statistics
import sys
import time

import ml_dtypes
import numpy as np
import torch
import torchao
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import MXTensor
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale


def cases(x):
    """Yields (peer, ulplab's name of the format, quantize, dequantize the result)."""
    name = f"torchao {torchao.__version__} eager"
    for form, dtype in [("mxfp8", torch.float8_e4m3fn), ("mxfp4", torch.float4_e2m1fn_x2)]:
        to_mx = lambda dtype=dtype: MXTensor.to_mx(x, dtype, 32, ScaleCalculationMode.RCEIL)
        yield name, form, to_mx, lambda mx: mx.dequantize(torch.float32)
    # Computing the global scale is part of the work.
    to_nvfp4 = lambda: NVFP4Tensor.to_nvfp4(x, per_tensor_scale=per_tensor_amax_to_scale(x.abs().max()))
    yield name, "nvfp4", to_nvfp4, lambda nvfp4: nvfp4.dequantize(torch.float32)
    yield f"torch {torch.__version__} eager", "fp8_b128_f32", lambda: blocks_of_128(x), lambda pair: (
        pair[0].float().unflatten(-1, (-1, 128)) * pair[1].unsqueeze(-1)
    ).flatten(-2)
    array = x.numpy()
    for form in ["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "bfloat16"]:
        dtype = getattr(ml_dtypes, form)
        short = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "float4_e2m1fn": "mxfp4", "bfloat16": "bf16"}[form]
        what = "ml_dtypes" if short != "mxfp4" else "ml_dtypes, cast alone"
        cast = lambda dtype=dtype: array.astype(dtype)
        yield f"{what} {ml_dtypes.__version__}", short, cast, lambda codes: codes.astype(np.float32)


def blocks_of_128(x):
    """FP8 with an f32 scale per 128 channels, as a torch user would write it."""
    blocks = x.unflatten(-1, (-1, 128))
    scale = blocks.abs().amax(-1).clamp(1e-4) / 448
    return (blocks * (1 / scale).unsqueeze(-1)).to(torch.float8_e4m3fn).flatten(-2), scale


def seconds(work, repeats):
    work()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return {"median": statistics.median(times), "min": min(times), "max": max(times)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--cols", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=21)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    x = torch.randn(args.rows, args.cols)
    figures = []
    with torch.no_grad():
        for name, form, quantize, dequantize in cases(x):
            stored = quantize()
            for what, work in [("quantize", quantize), ("dequantize", lambda: dequantize(stored))]:
                figure = {"name": name, "format": form, "what": what, "rows": args.rows, "cols": args.cols}
                figures.append(figure | {"time": seconds(work, args.repeats)})
    json.dump(figures, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
