import numpy as np
import ulplab
from layers import experts, mixture, routed
from entry import Entry

ENTRY = Entry(
    id="M13",
    op="moe",
    of="mixture of experts over several ranks",
    fault="a rank looks up ids of all experts in the list of its own",
    symptom="experts of all ranks but the first are lost",
    threads=("https://github.com/vllm-project/vllm-gaudi/pull/1796",),
    escaped="on the first rank both numbers are the same",
)


def inputs(rng, ranks=3):
    return ranks, mixture(rng, 12, top_k=4)


def usual(rng):
    return inputs(rng, 1)


def kernel(inputs, fault):
    ranks, given = inputs
    chosen, weights = routed(np.exp(given["logits"]), given["top_k"])
    held = given["logits"].shape[1] // ranks
    total = np.zeros_like(given["x"])
    for rank in range(ranks):
        w13, w2 = (given[name][rank * held : (rank + 1) * held] for name in ("w13", "w2"))
        own = chosen // held == rank
        local = np.where(own, chosen - (0 if fault else rank * held), 0)
        total += experts(given["x"], local % held, weights * (own & (local < held)), w13, w2)
    return total


def gate(inputs, got):
    ulplab.assert_close(got, op="moe", inputs=inputs[1])
