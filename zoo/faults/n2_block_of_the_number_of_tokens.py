import numpy as np
import ulplab
from entry import Entry

ENTRY = Entry(
    id="N2",
    op="rmsnorm",
    of="RMSNorm that promises the same bits in every batch",
    fault="the block, and so the order of the sum, depends on the number of tokens",
    symptom="last bits differ from batch to batch",
    threads=(
        "https://github.com/vllm-project/vllm/pull/48391",
        "https://github.com/NVIDIA/TransformerEngine/pull/2986",
    ),
    escaped="a difference in the last bit is below every tolerance",
)


def inputs(rng):
    x, weight = 3 * rng.standard_normal((21, 768)), rng.standard_normal(768)
    return dict(x=x.astype(np.float32), weight=weight.astype(np.float32))


def kernel(inputs, fault):
    def norm(x, weight):
        threads = 256 if fault and len(x) > 8 else 64
        lanes = (x * x).reshape(len(x), -1, threads)
        total = np.zeros((len(x), 1), np.float32)
        for lane in np.add.reduce(lanes, 1).T:
            total[:, 0] += lane
        return x / np.sqrt(total / np.float32(x.shape[1]) + np.float32(1e-6)) * weight

    return norm


def gate(inputs, got):
    ulplab.assert_close(got(**inputs), op="rmsnorm", inputs=inputs)
    ulplab.assert_invariant(got, inputs, rows=["x"])


def numbers(inputs, got):
    return got(**inputs)
