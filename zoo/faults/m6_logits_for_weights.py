import numpy as np
import ulplab
from layers import experts, mixture
from entry import Entry

ENTRY = Entry(
    id="M6",
    op="moe",
    of="choice of experts from logits, weights not renormalised",
    fault="the softmax is in the branch that renormalises: without it, logits are weights",
    symptom="every layer is scaled by logits, with their signs",
    threads=("https://github.com/sgl-project/sglang/pull/35160",),
    escaped="no test asked for weights that are not renormalised",
    absent="a router that does not renormalise",
)


def inputs(rng, renormalize=0):
    return mixture(rng, renormalize=renormalize)


def usual(rng):
    return inputs(rng, 1)


def kernel(inputs, fault):
    logits = inputs["logits"]
    chosen = np.argsort(-logits, -1, kind="stable")[:, : inputs["top_k"]]
    scores = np.exp(logits - logits.max(-1, keepdims=True))
    weights = np.take_along_axis(scores / scores.sum(-1, keepdims=True), chosen, -1)
    if inputs["renormalize"]:
        weights = weights / weights.sum(-1, keepdims=True)
    elif fault:
        weights = np.take_along_axis(logits, chosen, -1)
    return experts(inputs["x"], chosen, weights, inputs["w13"], inputs["w2"])


def gate(inputs, got):
    ulplab.assert_close(got, op="moe", inputs=inputs)
