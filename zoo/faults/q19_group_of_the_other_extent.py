import numpy as np
import ulplab
from blocks import blocks
from entry import Entry
from ml_dtypes import float8_e4m3fn

ENTRY = Entry(
    id="Q19",
    op="matmul",
    format="fp8",
    of="FP8 product with scales for tiles of a weight, [n, k]",
    fault="activations are quantized in groups as long as a tile is high, n, and not as it is wide, k",
    symptom="wrong products for tiles that are no squares",
    threads=("https://github.com/vllm-project/vllm/pull/46593",),
    escaped="tiles are 128 × 128 in all tests",
)


def drawn(rng, tile):
    x = rng.standard_normal((19, 384)) * np.exp2(rng.integers(-3, 4, (19, 6))).repeat(64, -1)
    w = ulplab.quantize(rng.standard_normal((256, 384)).astype(np.float32), f"e4m3/b{tile[0]}x{tile[1]}:f32(div)")
    return x.astype(np.float32), w, tile


def inputs(rng):
    return drawn(rng, (64, 128))


def usual(rng):
    return drawn(rng, (128, 128))


def kernel(inputs, fault):
    x, w, tile = inputs
    a = ulplab.quantize(x, f"e4m3/b{tile[0 if fault else 1]}:f32(div)")
    scales = a.scales[:, : x.shape[1] // tile[1]]
    numbers = blocks(a.codes.view(float8_e4m3fn).astype(np.float32), tile[1]) * scales[..., None]
    return numbers.reshape(x.shape) @ w.dequantize().T


def gate(inputs, got):
    x, w, tile = inputs
    a = ulplab.quantize(x, f"e4m3/b{tile[1]}:f32(div)")
    operands = dict(a=a.codes.view(float8_e4m3fn), b=w.codes.view(float8_e4m3fn), a_scale=a.scales, b_scale=w.scales)
    ulplab.assert_close(got, op="matmul", inputs=dict(operands, b_rows="n"))
