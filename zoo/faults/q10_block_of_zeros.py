import numpy as np
import ulplab
from blocks import blocks, e4m3, largest
from entry import Entry

ENTRY = Entry(
    id="Q10",
    op="quantize",
    format="fp8",
    of="FP8 activations in blocks of 128",
    fault="a block of zeros has the scale 0, and its codes are those of 0/0",
    symptom="NaN in the block",
    threads=("https://github.com/huggingface/kernels-community/pull/680",),
    escaped="no block at random is all zeros",
)


def inputs(rng):
    x = usual(rng)
    x[rng.integers(29), 128:256] = 0
    return x


def usual(rng):
    return rng.standard_normal((29, 384)).astype(np.float32)


def kernel(x, fault):
    amax = largest(x, 128)
    scales = (amax if fault else np.maximum(amax, np.float32(1e-4))) / np.float32(448)
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = e4m3(blocks(x, 128) * (1 / scales)[..., None])
    return codes.reshape(x.shape), scales


def gate(x, got):
    ulplab.assert_quantized(*got, x, "fp8_b128_f32")


def numbers(x, got):
    return ulplab.dequantize(*got, format="fp8_b128_f32", shape=x.shape)
