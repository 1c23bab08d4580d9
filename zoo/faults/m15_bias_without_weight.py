import numpy as np
import ulplab
from layers import normal, routed
from entry import Entry

ENTRY = Entry(
    id="M15",
    op="moe",
    of="second product of experts, with a bias of each",
    fault="biases of chosen experts are added as they are, not by the router's weights",
    symptom="training starts with a loss of 8.2 instead of 4.5",
    threads=("https://github.com/NVIDIA-NeMo/Automodel/pull/2591",),
    escaped="biases are 0 in tests, and other back ends were right",
)
TOKENS, EXPERTS, K, INNER, OUTER = 29, 7, 3, 21, 28


def inputs(rng, size=1):
    chosen, weights = routed(np.exp(normal(rng, TOKENS, EXPERTS)), K)
    given = dict(chosen=chosen, weights=weights, hidden=normal(rng, TOKENS, K, INNER))
    return {**given, "w2": normal(rng, EXPERTS, INNER, OUTER), "bias": size * normal(rng, EXPERTS, OUTER)}


def usual(rng):
    return inputs(rng, 0)


def kernel(inputs, fault):
    chosen, weights = inputs["chosen"], inputs["weights"]
    rows = np.einsum("tki,tkic->tkc", inputs["hidden"], inputs["w2"][chosen])
    biases = inputs["bias"][chosen] * (1 if fault else weights[..., None])
    return (rows * weights[..., None] + biases).sum(1)


def gate(inputs, got):
    # all terms of a token in one product: weight times hidden number by w2, and weight by bias
    chosen, weights = inputs["chosen"], inputs["weights"].astype(np.float64)[..., None]
    a = np.concatenate([weights * inputs["hidden"], weights], -1).reshape(TOKENS, 1, -1)
    b = np.concatenate([inputs["w2"], inputs["bias"][:, None]], 1)[chosen].reshape(TOKENS, -1, OUTER)
    ulplab.assert_close(got[:, None], op="matmul", inputs=dict(a=a, b=b))
