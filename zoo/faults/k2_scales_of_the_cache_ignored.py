import numpy as np
import ulplab
from entry import Entry
from ml_dtypes import float8_e4m3fn

ENTRY = Entry(
    id="K2",
    op="attention",
    format="fp8",
    of="attention over keys and values in FP8, with a scale for each",
    fault="both scales are swallowed by a list of arguments, and nothing is multiplied by them",
    symptom="outputs off by the scale of the values; 7.5 times for 0.25 and 0.5 in a sibling",
    threads=(
        "https://github.com/flashinfer-ai/flashinfer/issues/1023",
        "https://github.com/flashinfer-ai/flashinfer/issues/4979",
        "https://github.com/vllm-project/vllm/issues/42580",
    ),
    escaped="scales are 1 in tests",
)


def drawn(rng, k_scale, v_scale):
    k, v = (rng.standard_normal((2, 33, 3, size)) / scale for size, scale in ((24, k_scale), (40, v_scale)))
    q = rng.standard_normal((2, 7, 6, 24)).astype(np.float32)
    return dict(q=q, k=k.astype(float8_e4m3fn), v=v.astype(float8_e4m3fn), k_scale=k_scale, v_scale=v_scale)


def inputs(rng):
    return drawn(rng, *rng.uniform(0.2, 0.6, 2))


def usual(rng):
    return drawn(rng, 1.0, 1.0)


def kernel(inputs, fault):
    scales = dict(k_scale=1.0, v_scale=1.0) if fault else {}
    return ulplab.reference.attention(**{**inputs, **scales})["o"].value.astype(np.float32)


def gate(inputs, got):
    ulplab.assert_close(got, op="attention", inputs=inputs, output="o")
