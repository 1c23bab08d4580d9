import numpy as np
import ulplab
from layers import experts, mixture, routed
from entry import Entry

ENTRY = Entry(
    id="M7",
    op="moe",
    of="mixture of experts with a scaling factor of the routed ones",
    fault="the factor is an argument of the kernel, which uses 1",
    symptom="models with another factor are wrong",
    threads=(
        "https://github.com/flashinfer-ai/flashinfer/pull/3499",
        "https://github.com/sgl-project/sglang/pull/8511",
    ),
    escaped="the factor is 1 in tests",
    planted=("router.scale_lost",),
)


def inputs(rng, factor=2.5):
    return mixture(rng, scores="sigmoid", scaling_factor=factor)


def usual(rng):
    return inputs(rng, 1.0)


def kernel(inputs, fault):
    factor = np.float32(1 if fault else inputs["scaling_factor"])
    chosen, weights = routed(1 / (1 + np.exp(-inputs["logits"])), inputs["top_k"])
    return experts(inputs["x"], chosen, weights * factor, inputs["w13"], inputs["w2"])


def gate(inputs, got):
    ulplab.assert_close(got, op="moe", inputs=inputs)
