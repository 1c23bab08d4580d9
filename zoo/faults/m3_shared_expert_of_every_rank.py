import numpy as np
import ulplab
from layers import experts, mixture, normal, routed
from entry import Entry

ENTRY = Entry(
    id="M3",
    op="moe",
    of="mixture of experts over several ranks, with one that is shared",
    fault="every rank adds the shared expert before ranks are summed up",
    symptom="GSM8K 94.2, then 10.8 with two ranks and 0.9 with four",
    threads=("https://github.com/sgl-project/sglang/pull/26845",),
    escaped="two features that no test combined; one rank is right",
    absent="a shared expert",
)


def inputs(rng, ranks=3):
    given = mixture(rng, 12, top_k=4)
    return ranks, {**given, "shared_w13": normal(rng, 2 * 13, 28) / 5, "shared_w2": normal(rng, 28, 13) / 5}


def usual(rng):
    return inputs(rng, 1)


def kernel(inputs, fault):
    ranks, given = inputs
    x, logits = given["x"], given["logits"]
    chosen, weights = routed(np.exp(logits), given["top_k"])
    w13, w2 = given["shared_w13"][None], given["shared_w2"][None]
    shared = experts(x, np.zeros((len(x), 1), int), np.ones((len(x), 1), np.float32), w13, w2)
    total = np.zeros_like(x)
    for rank in range(ranks):
        own = chosen * ranks // logits.shape[1] == rank
        total += experts(x, chosen, weights * own, given["w13"], given["w2"])
        total += shared if fault or rank == 0 else 0
    return total


def gate(inputs, got):
    ulplab.assert_close(got, op="moe", inputs=inputs[1])
