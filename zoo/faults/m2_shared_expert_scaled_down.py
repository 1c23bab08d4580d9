import numpy as np
import ulplab
from layers import experts, normal, routed
from entry import Entry

ENTRY = Entry(
    id="M2",
    op="moe",
    of="mixture of experts with one that is shared by all tokens",
    fault="the shared expert is divided by the routed ones' factor, for a product that never comes",
    symptom="long texts degenerate; GSM8K 0.950, and 0.960 with the fix",
    threads=("https://github.com/sgl-project/sglang/pull/28237",),
    escaped="answers to short questions hardly change",
    absent="a shared expert",
)
FACTOR = 2.5


def inputs(rng):
    weights = dict(w13=normal(rng, 11, 2 * 21, 28) / 5, w2=normal(rng, 11, 28, 21) / 5)
    shared = dict(shared_w13=normal(rng, 2 * 13, 28) / 5, shared_w2=normal(rng, 28, 13) / 5)
    return dict(x=normal(rng, 37, 28), logits=normal(rng, 37, 11), **weights, **shared, top_k=3, scaling_factor=FACTOR)


def kernel(inputs, fault):
    x, logits = inputs["x"], inputs["logits"]
    chosen, weights = routed(np.exp(logits - logits.max(-1, keepdims=True)), inputs["top_k"])
    y = experts(x, chosen, weights * np.float32(FACTOR), inputs["w13"], inputs["w2"])
    weights = np.full((len(x), 1), 1 / FACTOR if fault else 1, np.float32)
    return y + experts(x, np.zeros((len(x), 1), int), weights, inputs["shared_w13"][None], inputs["shared_w2"][None])


def gate(inputs, got):
    ulplab.assert_close(got, op="moe", inputs=inputs)
