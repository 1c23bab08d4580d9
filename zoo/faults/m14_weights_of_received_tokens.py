import numpy as np
import ulplab
from layers import experts, mixture, routed
from entry import Entry

ENTRY = Entry(
    id="M14",
    op="moe",
    of="mixture of experts, results of other ranks combined",
    fault="weights are looked up in the order of tokens as received, not as sent",
    symptom="garbled text with 32 ranks, none with 8 or 16",
    threads=("https://github.com/vllm-project/vllm/pull/52639",),
    escaped="with few ranks both orders are the same",
)


def inputs(rng, ranks=4):
    return ranks, mixture(rng, 12)


def usual(rng):
    return inputs(rng, 1)


def kernel(inputs, fault):
    ranks, given = inputs
    chosen, weights = routed(np.exp(given["logits"]), given["top_k"])
    received = np.argsort(chosen.ravel() * ranks // given["logits"].shape[1], kind="stable")
    token, expert = received // given["top_k"], chosen.ravel()[received]
    rows = experts(given["x"][token], expert[:, None], np.ones((len(token), 1)), given["w13"], given["w2"])
    total = np.zeros_like(given["x"])
    np.add.at(total, token, rows * (weights.ravel() if fault else weights.ravel()[received])[:, None])
    return total


def gate(inputs, got):
    ulplab.assert_close(got, op="moe", inputs=inputs[1])
