import numpy as np
import ulplab
from layers import attend, normal
from entry import Entry

ENTRY = Entry(
    id="A16",
    op="attention",
    of="attention whose thread blocks go through heads of one group after another",
    fault="the size of a group is taken for the number of key heads",
    symptom="several blocks write one head, and others are never written",
    threads=("https://github.com/HazyResearch/HipKittens/pull/22", "https://github.com/PSAL-POSTECH/ONNXim/issues/33"),
    escaped="the two sizes are equal in tests",
)


def inputs(rng, heads=3, group=2):
    k, v = normal(rng, 1, 19, heads, 28), normal(rng, 1, 19, heads, 20)
    return dict(q=normal(rng, 1, 7, heads * group, 28), k=k, v=v)


def usual(rng):
    return inputs(rng, 3, 3)


def kernel(inputs, fault):
    q, k, v = (inputs[name][0] for name in "qkv")
    heads, group = k.shape[1], q.shape[1] // k.shape[1]
    o = np.zeros((*q.shape[:2], v.shape[-1]), np.float32)
    for block in range(q.shape[1]):
        head = block % (group if fault else heads) * group + block // (group if fault else heads)
        o[:, head] = attend(q[:, head : head + 1], k[:, [head // group]], v[:, [head // group]])[0][:, 0]
    return o[None]


def gate(inputs, got):
    ulplab.assert_close(got, op="attention", inputs=inputs, output="o")
