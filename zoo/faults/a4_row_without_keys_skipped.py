import numpy as np
import ulplab
from layers import attend, merged, normal
from entry import Entry

ENTRY = Entry(
    id="A4",
    op="attention",
    of="attention of several prompts to their prefixes, in chunks of keys",
    fault="a prompt without keys in a chunk is skipped, and its output and logarithm are what the chunk before left",
    symptom="mean squared errors of 1.0 to 3.7, where less than 0.07 is usual",
    threads=("https://github.com/sgl-project/sglang/pull/22688", "https://github.com/vllm-project/vllm/pull/49294"),
    escaped="a chunk has prompts with and without keys only if several have prefixes of different lengths",
    silent="there is one prompt, without a prefix",
)
CHUNK = 18


def drawn(rng, new, prefixes):
    """Prompts of so many new tokens each, which see all keys of their prefix."""
    keys, starts = sum(prefixes), dict(cu_seqlens_q=np.cumsum([0, *new]), cu_seqlens_k=np.cumsum([0, *prefixes]))
    return dict(q=normal(rng, sum(new), 4, 28), k=normal(rng, keys, 2, 28), v=normal(rng, keys, 2, 20), **starts)


def inputs(rng):
    return drawn(rng, [5, 3, 7], [47, 11, 25])


def usual(rng):
    return drawn(rng, [13], [47])


def kernel(inputs, fault):
    q, k, v, from_q, from_k = inputs.values()
    o, lse = np.zeros((*q.shape[:2], v.shape[-1]), np.float32), np.full(q.shape[:2], -np.inf, np.float32)
    parts = []
    for chunk in range(0, max(np.diff(from_k)), CHUNK):
        for i in range(len(from_q) - 1):
            rows, begin = slice(from_q[i], from_q[i + 1]), from_k[i] + chunk
            keys = slice(begin, min(begin + CHUNK, from_k[i + 1]))
            if keys.start < keys.stop or not fault:
                o[rows], lse[rows] = attend(q[rows], k[keys], v[keys])
        parts.append((o.copy(), lse.copy()))
    return merged(parts)[0]


def gate(inputs, got):
    ulplab.assert_close(got, op="attention", inputs=inputs, output="o")
