import numpy as np
import ulplab
from entry import Entry, decoded

ENTRY = Entry(
    id="L1",
    op="quantize",
    format="nvfp4",
    of="NVFP4 KV cache: values with scales for 16 channels",
    fault="scales of 4 tokens × 4 blocks are stored transposed, for one reader, and another reads rows",
    symptom="values off by 0.76 to 0.79 of their norm, where 0.095 is right; three needles of three are found",
    threads=("https://github.com/vllm-project/vllm/issues/50084",),
    escaped="tests ran on the device whose reader agrees; needles are found all the same",
)


def inputs(rng):
    """Tokens of different sizes."""
    return usual(rng) * np.exp2(rng.uniform(-3, 3, (52, 1))).astype(np.float32)


def usual(rng):
    return rng.standard_normal((52, 192)).astype(np.float32)


def kernel(v, fault):
    right = ulplab.quantize(v, "nvfp4", "vllm")
    scales = right.scales
    if fault:
        scales = scales.reshape(len(scales) // 4, 4, -1, 4).transpose(0, 3, 2, 1).reshape(scales.shape)
    return right.codes, scales, right.global_scale


def gate(v, got):
    codes, scales, g = got
    ulplab.assert_quantized(codes, scales, v, "nvfp4", g)


def numbers(v, got):
    return decoded(ulplab.quantize(v, "nvfp4", "vllm"), scales=got[1])
