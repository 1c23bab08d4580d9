import numpy as np
import ulplab
from layers import experts, normal, routed
from entry import Entry
from ml_dtypes import bfloat16

ENTRY = Entry(
    id="M4",
    op="moe",
    of="mixture of experts, chosen by score and bias",
    fault="the bias of the selection is rounded to bf16, whose spacing is 0.031 at 7",
    symptom="98.5 % of tokens go to other experts: 238 values of the bias become 8",
    threads=("https://github.com/sgl-project/sglang/pull/37133", "https://github.com/NVIDIA/Megatron-LM/issues/1482"),
    escaped="the bias of tests was around 0",
    absent="a bias of the selection",
)
EXPERTS, TOP_K = 151, 7


def drawn(rng, bias):
    weights = dict(w13=normal(rng, EXPERTS, 2 * 11, 13) / 3, w2=normal(rng, EXPERTS, 13, 11) / 3)
    given = dict(x=normal(rng, 37, 13), logits=normal(rng, 37, EXPERTS), selection_bias=bias.astype(np.float32))
    return dict(given, **weights, top_k=TOP_K, scores="sigmoid")


def inputs(rng):
    return drawn(rng, rng.uniform(6.817, 7.063, EXPERTS))


def usual(rng):
    return drawn(rng, rng.standard_normal(EXPERTS) / 100)


def kernel(inputs, fault):
    bias = inputs["selection_bias"]
    bias = bias.astype(bfloat16).astype(np.float32) if fault else bias
    chosen, weights = routed(1 / (1 + np.exp(-inputs["logits"])), TOP_K, bias)
    return experts(inputs["x"], chosen, weights, inputs["w13"], inputs["w2"])


def gate(inputs, got):
    ulplab.assert_close(got, op="moe", inputs=inputs)
