import numpy as np
import ulplab
from layers import attend, merged, normal
from entry import Entry

ENTRY = Entry(
    id="A3",
    op="attention",
    of="prefill in chunks, merged with attention over the context before",
    fault="the logarithm of an empty context is +inf, where the merge reads -inf as nothing",
    symptom="bad results on one generation of GPUs, whose attention has the other sign",
    threads=("https://github.com/vllm-project/vllm/pull/15492",),
    escaped="it takes a request with context and one without in a batch, on the other backend",
    silent="no request has a context before it",
)
TOKENS = 7


def inputs(rng, contexts=(0, 13, 21)):
    def given(context):
        q, k, v = normal(rng, TOKENS, 6, 28), normal(rng, context + TOKENS, 2, 28), normal(rng, context + TOKENS, 2, 20)
        return dict(q=q[None], k=k[None], v=v[None], causal=1)

    return [given(context) for context in contexts]


def usual(rng):
    return inputs(rng, (13, 21))


def kernel(requests, fault):
    outputs = []
    for q, k, v in (tuple(request[name][0] for name in "qkv") for request in requests):
        context = len(k) - TOKENS
        o, lse = attend(q, k[:context], v[:context])
        lse = np.where(np.isneginf(lse), np.inf if fault else -np.inf, lse)
        with np.errstate(invalid="ignore"):
            outputs.append(merged([(o, lse), attend(q, k[context:], v[context:], np.tri(TOKENS, dtype=bool))])[0])
    return np.stack(outputs)


def gate(requests, got):
    for request, o in zip(requests, got):
        ulplab.assert_close(o[None], op="attention", inputs=request, output="o")
