import numpy as np
import ulplab
from entry import Entry

ENTRY = Entry(
    id="G2",
    op="matmul",
    of="product whose operands are read in vectors of 8",
    fault="terms after the last whole vector are lost, and the sizes are accepted",
    symptom="0.5 off at 4,097 terms",
    threads=("https://github.com/ROCm/composable_kernel/issues/225",),
    escaped="numbers of terms in tests are multiples of the vector",
    planted=("fp8_gemm.tail_skipped", "fp4_gemm.tail_skipped", "linear.tail_skipped"),
)


def inputs(rng, terms=133):
    return dict(
        a=rng.standard_normal((9, terms)).astype(np.float32),
        b=rng.standard_normal((13, terms)).astype(np.float32),
        b_rows="n",
    )


def usual(rng):
    return inputs(rng, 128)


def kernel(inputs, fault):
    terms = inputs["a"].shape[1]
    end = terms // 8 * 8 if fault else terms
    return inputs["a"][:, :end] @ inputs["b"][:, :end].T


def gate(inputs, got):
    ulplab.assert_close(got, op="matmul", inputs=inputs)
