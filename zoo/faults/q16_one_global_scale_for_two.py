import numpy as np
import ulplab
from entry import Entry
from ml_dtypes import float8_e4m3fn

ENTRY = Entry(
    id="Q16",
    op="matmul",
    format="nvfp4",
    of="NVFP4 products of gate and up, each with a scale above its scales",
    fault="that of gate is used for both, after a warning",
    symptom="text that repeats without sense",
    threads=(
        "https://github.com/vllm-project/vllm/issues/54974",
        "https://github.com/NVIDIA/Model-Optimizer/pull/1411",
    ),
    escaped="the two differ only for experts that no token of the calibration met",
)


def drawn(rng, *largest):
    x = rng.standard_normal((9, 176)).astype(np.float32)
    weights = [(rng.standard_normal((52, 176)) / 13).astype(np.float32) for _ in range(2)]
    return x, [ulplab.quantize(w, "nvfp4", "vllm", amax=amax) for w, amax in zip(weights, largest)]


def inputs(rng):
    return drawn(rng, 0.5, rng.uniform(0.6, 0.9))


def usual(rng):
    return drawn(rng, 0.5, 0.5)


def kernel(inputs, fault):
    x, (first, second) = inputs
    factor = second.global_scale / first.global_scale if fault else 1
    return np.stack([x @ first.dequantize().T, factor * (x @ second.dequantize().T)])


def gate(inputs, got):
    x, weights = inputs
    for y, w in zip(got, weights):
        b = dict(b=w.codes, b_codes="e2m1", b_rows="n", b_scale=w.scales.view(float8_e4m3fn))
        ulplab.assert_close(y, op="matmul", inputs=dict(b, a=x, alpha=1 / float(w.global_scale[0])))
