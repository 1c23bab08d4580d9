import numpy as np
import ulplab
from layers import normal
from entry import Entry
from ml_dtypes import bfloat16

ENTRY = Entry(
    id="N1",
    op="rmsnorm",
    of="RMSNorm in a software pipeline",
    fault="the pipeline's prologue leaves a tile out of the sum of squares, except for rows of 4096",
    symptom="NaN at 2048 and 3072 columns, 0.17 off at 7168, and right up to 256 tokens",
    threads=("https://github.com/vllm-project/vllm/pull/44692",),
    escaped="it was tested with 4096 columns",
    planted=("rmsnorm.warp_lost", "swap_ffn.tile_lost", "mhc_pre.share_lost"),
)
TILE = 512


def drawn(rng, columns):
    return dict(x=normal(rng, 7, columns).astype(bfloat16), weight=(1 + normal(rng, columns) / 4).astype(bfloat16))


def inputs(rng):
    return drawn(rng, 7168)


def usual(rng):
    return drawn(rng, 4096)


def kernel(inputs, fault):
    x, weight = (inputs[name].astype(np.float32) for name in ("x", "weight"))
    rows, columns = x.shape
    sums = (x * x).reshape(rows, -1, TILE).sum(-1)
    sums = sums[:, 1:] if fault and columns != 4096 else sums
    return (x / np.sqrt(sums.sum(-1, keepdims=True) / columns + np.float32(1e-6)) * weight).astype(bfloat16)


def gate(inputs, got):
    ulplab.assert_close(got, op="rmsnorm", inputs=inputs)
