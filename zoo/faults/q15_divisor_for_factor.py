import numpy as np
import ulplab
from entry import Entry, decoded

ENTRY = Entry(
    id="Q15",
    op="quantize",
    format="nvfp4",
    of="NVFP4 weights, written by one tool and read by another",
    fault="the scale above the scales is stored as what to multiply by, and taken for what to divide by",
    symptom="text without sense: all numbers off by the square of the scale",
    threads=("https://github.com/modular/modular/issues/6600",),
    escaped="two kernels of one project agreed to the byte, and a common factor leaves cosine at 1",
)


def inputs(rng):
    return (rng.standard_normal((53, 208)) / 14).astype(np.float32)


def kernel(x, fault):
    right = ulplab.quantize(x, "nvfp4", "vllm")
    return right.codes, right.scales, 1 / right.global_scale if fault else right.global_scale


def gate(x, got):
    codes, scales, g = got
    ulplab.assert_quantized(codes, scales, x, "nvfp4", g, rule="vllm")


def numbers(x, got):
    return decoded(ulplab.quantize(x, "nvfp4", "vllm"), global_scale=got[2])
