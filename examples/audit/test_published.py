"""Tests in the form of published suites: all are green. `pytest --ulplab-audit` says what they would let pass."""

import numpy as np
import published
import pytest


@pytest.mark.parametrize("size", [768, 5120, 8192])
def test_rms_norm(size):
    got, _ = published.rms_norm(size)
    np.testing.assert_allclose(got.astype(np.float32), got.astype(np.float32), rtol=1e-2, atol=1e-2)


def test_gated_delta():
    got, _ = published.gated_delta()
    assert published.share(got, got)


@pytest.mark.parametrize("scale", [0.01, 1.0, 10.0])
def test_norm_quant(scale):
    got, _ = published.norm_quant(scale)
    published.kernel_is_wanted(got.astype(np.float32), got.astype(np.float32))


def test_scaled_mm():
    got, _ = published.scaled_mm()
    np.testing.assert_allclose(got.astype(np.float32), got.astype(np.float32), rtol=0.1, atol=0.1)
