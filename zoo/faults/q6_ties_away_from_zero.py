import numpy as np
import ulplab
from blocks import blocks, nibbles
from entry import Entry
from ml_dtypes import bfloat16

ENTRY = Entry(
    id="Q6",
    op="quantize",
    format="mxfp4",
    of="MXFP4 quantize of bf16",
    fault="ties of E2M1 are rounded away from zero, not to even",
    symptom="a code is one step off where a value lies between two",
    threads=("https://github.com/ROCm/aiter/pull/3992",),
    escaped="the reference had the same rule, and f32 numbers at random are no ties",
    planted=("quantize.ties_up",),
)
#: Between two codes; the upper one is even for every second.
MIDDLES = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5], np.float32)
EVEN_ABOVE = np.arange(7) % 2 == 1


def inputs(rng):
    return usual(rng).astype(bfloat16).astype(np.float32)


def usual(rng):
    return rng.standard_normal((43, 288)).astype(np.float32)


def kernel(x, fault):
    scales = ulplab.quantize(x, "mxfp4", "even").scales
    values = blocks(x, 32) / np.ldexp(np.float32(1), scales.astype(np.int32) - 127)[..., None]
    magnitude = np.abs(values)[..., None]
    upper = (magnitude > MIDDLES) | (magnitude == MIDDLES) & (EVEN_ABOVE | fault)
    return nibbles(upper.sum(-1) | np.signbit(values) << 3), scales


def gate(x, got):
    ulplab.assert_quantized(*got, x, "mxfp4", rule="even")


def numbers(x, got):
    return ulplab.dequantize(*got, format="mxfp4", shape=x.shape)
