import numpy as np
import ulplab
from blocks import blocks, e2m1, e4m3, largest
from entry import Entry, decoded
from ml_dtypes import float8_e4m3fn

ENTRY = Entry(
    id="Q8",
    op="quantize",
    format="nvfp4",
    of="NVFP4 weights with a scale above the scales",
    fault="a scale is held against 0 before it is cast to E4M3, and the cast makes 0 of it",
    symptom="scales of 0 in the checkpoint, where weights are small beside the largest",
    threads=("https://github.com/NVIDIA/Model-Optimizer/pull/1382",),
    escaped="no block at random is that much smaller than another",
)
LEAST = np.float32(2**-6)


def inputs(rng):
    x = usual(rng)
    x[5:9, 16:48] *= 1e-7
    return x


def usual(rng):
    return rng.standard_normal((27, 144)).astype(np.float32)


def kernel(x, fault):
    g = np.abs(x).max() / np.float32(2688)
    scales = largest(x, 16) / np.float32(6) / g
    scales = np.where(scales == 0, LEAST, scales) if fault else np.maximum(scales, LEAST)
    stored = e4m3(scales)
    with np.errstate(divide="ignore"):
        factors = (1 / g) / stored.view(float8_e4m3fn).astype(np.float32)
    return e2m1(blocks(x, 16) * factors[..., None]), stored, g


def gate(x, got):
    codes, scales, g = got
    ulplab.assert_quantized(codes, scales, x, "nvfp4", g, rule="torchao")


def numbers(x, got):
    codes, scales, g = got
    return decoded(ulplab.quantize(x, "nvfp4", "torchao"), codes=codes, scales=scales, global_scale=np.reshape(g, 1))
