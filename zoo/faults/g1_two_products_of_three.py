import numpy as np
import ulplab
from entry import Entry

ENTRY = Entry(
    id="G1",
    op="matmul",
    of="product in TF32 with compensated errors (3xTF32)",
    fault="one of the three products is left out",
    symptom="26 times the error at 256 terms",
    threads=("https://github.com/triton-lang/triton/issues/4603",),
    escaped="1e-9 instead of 5e-11 is far within usual tolerances",
    planted=("diagonal_ssm.low_lost",),
)


def inputs(rng):
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((19, 256), (256, 23)))
    return dict(a=a, b=b)


def tf32(x):
    """The nearest numbers with 10 bits of fraction, ties to even."""
    bits = x.view(np.uint32)
    return ((bits + 0xFFF + (bits >> 13 & 1)) & ~np.uint32(0x1FFF)).view(np.float32)


def kernel(inputs, fault):
    (a, a_rest), (b, b_rest) = ((tf32(x), tf32(x - tf32(x))) for x in (inputs["a"], inputs["b"]))
    small = a @ b_rest if fault else a @ b_rest + a_rest @ b
    return a @ b + small


def gate(inputs, got):
    ulplab.assert_close(got, op="matmul", inputs=inputs)
