import numpy as np
import ulplab
from entry import Entry

ENTRY = Entry(
    id="L2",
    op="quantize",
    format="mxfp8",
    of="MXFP8 weights with scales in the order of tensor cores, 128x4",
    fault="scales are padded to whole tiles, and their rows are not interleaved",
    symptom="looks like noise of one step here and there",
    threads=("https://github.com/flashinfer-ai/flashinfer/issues/4087",),
    escaped="blocks at random share their power of two, and a wrong address holds the right scale",
)


def inputs(rng):
    """Blocks of different sizes."""
    return usual(rng) * np.exp2(rng.integers(-8, 9, (300, 11))).repeat(32, -1).astype(np.float32)


def usual(rng):
    return rng.standard_normal((300, 352)).astype(np.float32)


def kernel(x, fault):
    right = ulplab.quantize(x, "mxfp8")
    rows, blocks = right.scales.shape
    padded = np.zeros((-(-rows // 128) * 128, -(-blocks // 4) * 4), np.uint8)
    padded[:rows, :blocks] = right.scales
    tiles = padded.reshape(-1, 4, 32, padded.shape[1] // 4, 4).transpose(0, 3, 2, 1, 4)
    return right.codes, np.ravel(padded if fault else tiles)


def gate(x, got):
    ulplab.assert_quantized(*got, x, "mxfp8", layout="128x4")


def numbers(x, got):
    """The numbers by the scales that tensor cores find."""
    codes, placed = got
    rows, blocks = x.shape[0], x.shape[1] // 32
    across = -(-blocks // 4)
    scales = placed.reshape(-1, across, 32, 4, 4).transpose(0, 3, 2, 1, 4).reshape(-1, 4 * across)[:rows, :blocks]
    return ulplab.dequantize(codes, scales.copy(), format="mxfp8", shape=x.shape)
