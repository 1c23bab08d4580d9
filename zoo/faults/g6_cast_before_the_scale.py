import numpy as np
import ulplab
from entry import Entry

ENTRY = Entry(
    id="G6",
    op="matmul",
    format="nvfp4",
    of="FP4 product with f16 outputs, epilogue",
    fault="sums are cast to f16 before they are multiplied by the global scale",
    symptom="infinities and NaN; 3 times the error where a scale is dropped",
    threads=("https://github.com/vllm-project/vllm/pull/37135",),
    escaped="sums of data of unit size fit in f16",
    planted=("fp4_gemm.tensor_scale_late",),
)


def inputs(rng, size=600):
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((9, 96), (96, 21)))
    return dict(a=a * np.float32(size), b=b * np.float32(size), alpha=1 / size**2)


def usual(rng):
    return inputs(rng, 1)


def kernel(inputs, fault):
    sums, alpha = inputs["a"] @ inputs["b"], np.float32(inputs["alpha"])
    with np.errstate(over="ignore"):
        return sums.astype(np.float16) * np.float16(alpha) if fault else (sums * alpha).astype(np.float16)


def gate(inputs, got):
    ulplab.assert_close(got, op="matmul", inputs=inputs, dtype="float16")
