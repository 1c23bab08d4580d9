import numpy as np
import ulplab
from layers import experts, mixture, routed
from entry import Entry

ENTRY = Entry(
    id="M10",
    op="moe",
    of="mixture of experts whose rows of gate and up alternate in the file",
    fault="the kernel takes the first half of the rows for the gate",
    symptom="garbage: GSM8K about 0, and 0.87 with the fix; 136 % relative error elsewhere",
    threads=(
        "https://github.com/vllm-project/vllm/pull/29273",
        "https://github.com/ROCm/ATOM/pull/885",
        "https://github.com/ROCm/aiter/pull/5760",
    ),
    escaped="random rows are alike, and a test that makes them itself has them in the kernel's order",
    planted=("experts.gate_up_interleaved",),
)


def inputs(rng):
    return mixture(rng)


def kernel(inputs, fault):
    gate, up = np.split(inputs["w13"], 2, axis=1)
    stored = np.stack([gate, up], 2).reshape(inputs["w13"].shape)
    w13 = stored if fault else np.concatenate([stored[:, 0::2], stored[:, 1::2]], 1)
    chosen, weights = routed(np.exp(inputs["logits"]), inputs["top_k"])
    return experts(inputs["x"], chosen, weights, w13, inputs["w2"])


def gate(inputs, got):
    ulplab.assert_close(got, op="moe", inputs=inputs)
