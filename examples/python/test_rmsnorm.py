"""A kernel gated in three lines, without a tolerance. Run with: pytest examples/python"""

import ml_dtypes
import numpy as np
import pytest

import ulplab


def rmsnorm(x, weight, eps=1e-6):
    """The kernel that is tested: float32 inside, rounded once. A Triton or CUDA kernel goes here."""
    x32 = x.astype(np.float32)
    scale = 1 / np.sqrt((x32 * x32).mean(-1, keepdims=True) + np.float32(eps))
    return (x32 * scale * weight.astype(np.float32)).astype(x.dtype)


def faulty_rmsnorm(x, weight, eps=1e-6):
    """The same with a fault that `rtol = atol = 1e-2` lets pass: the next row's mean of squares."""
    x32 = x.astype(np.float32)
    scale = 1 / np.sqrt((x32 * x32).mean(-1, keepdims=True) + np.float32(eps))
    return (x32 * np.roll(scale, -1, 0) * weight.astype(np.float32)).astype(x.dtype)


@pytest.fixture
def inputs():
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((64, 5120)) / 10240).astype(ml_dtypes.bfloat16)
    weight = (1 + 0.1 * rng.standard_normal(5120)).astype(ml_dtypes.bfloat16)
    return {"x": x, "weight": weight}


def test_rmsnorm(inputs):
    got = rmsnorm(**inputs)
    ulplab.assert_close(got, op="rmsnorm", inputs=inputs)


def test_a_fault_is_found_and_named(inputs):
    got, want = faulty_rmsnorm(**inputs), rmsnorm(**inputs)
    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=1e-2, atol=1e-2)
    with pytest.raises(AssertionError, match="looks like neighbour_row: the mean of squares is that of the next row"):
        ulplab.assert_close(got, op="rmsnorm", inputs=inputs)
