import numpy as np
import ulplab
from blocks import power_above
from entry import Entry

ENTRY = Entry(
    id="Q2",
    op="quantize",
    format="fp8",
    of="FP8 weights in tiles of 128 × 128, loaded for a kernel that wants power-of-two scales",
    fault="the scales of the checkpoint are rounded up, and its codes stay",
    symptom="every tile is larger by a factor of its own below 2; finite, no warning",
    threads=("https://github.com/huggingface/transformers/issues/47030",),
    escaped="the loader is right for f32 scales, and the kernel for power-of-two scales",
)
FORMAT = "e4m3/b128x128:f32(act_quant)"


def inputs(rng):
    weight = (rng.standard_normal((130, 270)) / 18).astype(np.float32)
    return ulplab.quantize(weight, "fp8_b128x128")


def kernel(checkpoint, fault):
    if fault:
        return checkpoint.codes, power_above(checkpoint.scales)
    loaded = ulplab.quantize(checkpoint.dequantize(), FORMAT)
    return loaded.codes, loaded.scales


def gate(checkpoint, got):
    ulplab.assert_quantized(*got, checkpoint.dequantize(), FORMAT)


def want(checkpoint):
    return checkpoint.dequantize()


def numbers(checkpoint, got):
    return ulplab.dequantize(*got, format=FORMAT, shape=checkpoint.shape)


def source(checkpoint):
    return checkpoint.dequantize()
