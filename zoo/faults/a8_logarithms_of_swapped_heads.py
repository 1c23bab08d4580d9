import ulplab
from layers import attend, normal
from entry import Entry

ENTRY = Entry(
    id="A8",
    op="attention",
    of="decode attention that takes the queries of a group for rows, keys in parts",
    fault="outputs are put back in the order of heads, logarithms are not",
    symptom="cascade attention is wrong, though outputs alone are right",
    threads=("https://github.com/vllm-project/flash-attention/pull/87",),
    escaped="tests compare outputs, and logarithms of another path",
    silent="logarithms are read where parts are merged, and nothing is merged",
)
GROUPS, HEADS = 3, 2


def inputs(rng):
    k, v = normal(rng, 1, 37, HEADS, 28), normal(rng, 1, 37, HEADS, 20)
    return dict(q=normal(rng, 1, 1, HEADS * GROUPS, 28), k=k, v=v)


def kernel(inputs, fault):
    q, k, v = (inputs[name][0] for name in "qkv")
    rows = q.reshape(HEADS, GROUPS, -1).swapaxes(0, 1)
    o, lse = attend(rows, k, v)
    lse = lse if fault else lse.T
    return dict(o=o.swapaxes(0, 1).reshape(1, 1, HEADS * GROUPS, -1), lse=lse.reshape(1, 1, -1))


def gate(inputs, got):
    ulplab.assert_close(got, op="attention", inputs=inputs)


def numbers(inputs, got):
    return got["o"]
