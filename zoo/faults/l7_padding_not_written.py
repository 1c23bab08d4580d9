import numpy as np
import ulplab
from entry import Entry

ENTRY = Entry(
    id="L7",
    op="scale_layout",
    format="nvfp4",
    of="NVFP4 activations of few rows, scales in tiles of 128 rows",
    fault="the buffer of the scales is not cleared, and rows of padding keep what was there",
    symptom="now and then NaN: the product for up to 32 rows reads padding",
    threads=(
        "https://github.com/vllm-project/vllm/pull/38148",
        "https://github.com/vllm-project/vllm/pull/45739",
        "https://github.com/flashinfer-ai/flashinfer/issues/2861",
    ),
    escaped="fresh memory is zero; a later change for speed took the clearing away again",
    planted=("scale_layout.tail_kept",),
    silent="windows of 512 rows fill their tiles",
)
ROWS, BLOCKS = 23, 7


def inputs(rng):
    """Rows, and what is in the memory that the buffer gets."""
    return usual(rng)[0], rng.integers(0, 256, (128, 8), np.uint8)


def usual(rng):
    return rng.standard_normal((ROWS, 16 * BLOCKS)).astype(np.float32), np.zeros((128, 8), np.uint8)


def kernel(inputs, fault):
    x, memory = inputs
    buffer = memory.copy() if fault else np.zeros_like(memory)
    buffer[:ROWS, :BLOCKS] = ulplab.quantize(x, "nvfp4").scales
    return buffer.reshape(4, 32, 2, 4).transpose(2, 1, 0, 3).reshape(-1)


def gate(inputs, got):
    right = ulplab.quantize(inputs[0], "nvfp4").layout("128x4").reshape(-1)
    differ = (got != right).sum()
    assert not differ, f"{differ} of {right.size} bytes differ from those of the layout, whose padding is 0"
