import numpy as np
import ulplab
from blocks import blocks, e2m1, largest
from entry import Entry, decoded
from ml_dtypes import float8_e4m3fn

ENTRY = Entry(
    id="Q12",
    op="quantize",
    format="nvfp4",
    of="NVFP4 activations with a scale above the scales",
    fault="values are multiplied by 6 over the largest of their block, and not by what is stored",
    symptom="products 90 % off, 9 % after the fix",
    threads=("https://github.com/pytorch/FBGEMM/pull/4884",),
    escaped="where E4M3 holds the scale to 6 %, the two factors are nearly the same",
)


def inputs(rng):
    """Rows of different sizes: small scales are coarse in E4M3."""
    return usual(rng) * np.exp2(rng.uniform(-16, 0, (38, 1))).astype(np.float32)


def usual(rng):
    return rng.standard_normal((38, 176)).astype(np.float32)


def kernel(x, fault):
    right = ulplab.quantize(x, "nvfp4", "fouroversix")
    scales = right.scales.view(float8_e4m3fn).astype(np.float32)
    with np.errstate(divide="ignore"):
        factors = 6 / largest(x, 16) if fault else 1 / (scales * (1 / right.global_scale))
    factors[scales == 0] = 0
    return e2m1(blocks(x, 16) * factors[..., None]), right.scales, right.global_scale


def gate(x, got):
    codes, scales, g = got
    ulplab.assert_quantized(codes, scales, x, "nvfp4", g, rule="fouroversix")


def numbers(x, got):
    return decoded(ulplab.quantize(x, "nvfp4", "fouroversix"), codes=got[0])
