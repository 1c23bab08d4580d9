import numpy as np
import ulplab
from blocks import blocks, e2m1, e4m3, largest
from entry import Entry, decoded
from ml_dtypes import float8_e4m3fn

ENTRY = Entry(
    id="Q7",
    op="quantize",
    format="nvfp4",
    of="NVFP4 weights, exported",
    fault="codes are of the scale before it is rounded to E4M3, and the rounded one is stored",
    symptom="small and of one direction within a block; the export differs from what was calibrated",
    threads=("https://github.com/NVIDIA/Model-Optimizer/pull/2243",),
    escaped="bytes of the two exporters were not compared",
)


def inputs(rng):
    return (rng.standard_normal((26, 208)) / 14).astype(np.float32)


def kernel(x, fault):
    g = np.abs(x).max() / np.float32(2688)
    exact = largest(x, 16) / (6 * g)
    stored = e4m3(exact)
    scales = exact if fault else stored.view(float8_e4m3fn).astype(np.float32)
    return e2m1(blocks(x, 16) / (scales * g)[..., None] + 0.0), stored, g


def gate(x, got):
    codes, scales, g = got
    ulplab.assert_quantized(codes, scales, x, "nvfp4", g, rule="modelopt")


def numbers(x, got):
    codes, scales, _ = got
    return decoded(ulplab.quantize(x, "nvfp4", "modelopt"), codes=codes, scales=scales)
