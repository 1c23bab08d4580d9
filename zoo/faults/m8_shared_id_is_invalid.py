import numpy as np
import ulplab
from layers import experts, mixture, normal, routed
from entry import Entry

ENTRY = Entry(
    id="M8",
    op="moe",
    of="mixture of experts, the shared one appended to the others",
    fault="ids are compared with the number of experts without the shared one: it is dropped",
    symptom="134 of 512 outputs wrong, by 2.5 at most",
    threads=("https://github.com/vllm-project/vllm/pull/51632",),
    escaped="the fused variant had no test",
    absent="a shared expert",
)


def inputs(rng):
    given = mixture(rng)
    return {**given, "shared_w13": normal(rng, 2 * 21, 28) / 5, "shared_w2": normal(rng, 28, 21) / 5}


def kernel(inputs, fault):
    x, logits = inputs["x"], inputs["logits"]
    chosen, weights = routed(np.exp(logits), inputs["top_k"])
    ids = np.column_stack([chosen, np.full(len(x), logits.shape[1])])
    weights = np.column_stack([weights, np.ones(len(x), np.float32)])
    w13, w2 = (np.concatenate([inputs[name], inputs[f"shared_{name}"][None]]) for name in ("w13", "w2"))
    valid = ids < logits.shape[1] + (0 if fault else 1)
    return experts(x, ids, weights * valid, w13, w2)


def gate(inputs, got):
    ulplab.assert_close(got, op="moe", inputs=inputs)
