"""Rows that must have the same bits in every batch."""

import kernels
import numpy as np
import pytest
from ml_dtypes import bfloat16

import ulplab

RNG = np.random.default_rng(0)
X = RNG.standard_normal((9, 40, 16)).astype(np.float32)
W = RNG.standard_normal(16).astype(np.float32)


def right(x, weight):
    return kernels.rmsnorm(np.random.default_rng(0), x, weight, 1e-6, dtype=np.float32)


def by_batch(x, weight):
    """Sums in another order for one row, as a split-K kernel does."""
    rng = np.random.default_rng(1 if len(x) == 1 else 0)
    return kernels.rmsnorm(rng, x, weight, 1e-6, dtype=np.float32)


def by_place(x, weight):
    y = right(x, weight)
    y[0] = np.nextafter(y[0], np.float32(9))
    return y


def by_neighbour(x, weight):
    y = right(x, weight)
    return y * (1 + (np.roll(x, 1, 0).sum((1, 2)) == x.sum((1, 2))) * np.float32(2.0**-20))[:, None, None]


def by_length(x, weight):
    y = right(x, weight)
    y[:, -1, 3] = np.nan
    return y


def test_a_kernel_that_is():
    options = {"batch": [1, 2, 4, 9, 64], "split": [1, 7, 40], "repeat": 3}
    ulplab.assert_invariant(right, {"x": X, "weight": W}, **options)
    ulplab.assert_invariant(lambda x, weight: right(x, weight).astype(bfloat16), {"x": X.astype(bfloat16), "weight": W}, **options)


def test_inputs_by_position():
    options = {"batch": [1, 2], "split": [8], "rows": [0]}
    ulplab.assert_invariant(right, (X, W), **options)
    with pytest.raises(AssertionError, match=r"batch = 1 for 9: "):
        ulplab.assert_invariant(by_batch, (X, W), batch=[1])

    def overwrites(x, weight):
        y = right(x, weight)
        x[:] = y
        return y

    with pytest.raises(AssertionError, match="the kernel overwrote its inputs, .*'input 0'"):
        ulplab.assert_invariant(overwrites, (X.copy(), W))
    ulplab.assert_invariant(overwrites, (X.copy(), W), writes=0)
    with pytest.raises(TypeError, match="inputs is a tuple, expected a dictionary of tensors, numbers and words"):
        ulplab.assert_close(kernel=right, op="rmsnorm", inputs=(X, W))


@pytest.mark.parametrize(
    ("kernel", "said", "unsaid"),
    [
        (by_batch, r"batch = 1 for 9: .* elements differ, by \d ulp at most; rows ", "place"),
        (by_place, r"place, rows in the opposite order: .* rows 8, 0 \(2 of 9\)", "repeat"),
        (by_neighbour, r"neighbours, even rows next to copies of themselves: .*ulp at most", "repeat|place"),
        (
            by_length,
            r"split = 8 for 40: .* elements differ, none of them by numbers, 36 are NaN on one side only; positions 7, 15, 23, 31 ",
            "batch",
        ),
    ],
)
def test_what_it_depends_on_is_named(kernel, said, unsaid):
    import re

    with pytest.raises(AssertionError, match=said) as error:
        ulplab.assert_invariant(kernel, {"x": X, "weight": W}, batch=[1, 2], split=[8])
    assert not re.search(unsaid, str(error.value)), error.value


def test_zeros_nan_and_results_that_change():
    calls = []

    def zeros(x):
        calls.append(0)
        return x * (0.0 if len(calls) == 1 else -0.0)

    with pytest.raises(AssertionError, match=r"repeat \(call 2\): .*in the sign of a zero"):
        ulplab.assert_invariant(zeros, {"x": np.ones((3, 4), np.float32)}, place=False, neighbours=False, batch=[])

    payload = np.array([0x7FC00001, 0x7FC00000], np.uint32).view(np.float32)
    kernel = lambda x: np.where(x < 0, payload[len(x) % 2], x)  # noqa: E731
    ulplab.assert_invariant(kernel, {"x": RNG.standard_normal((5, 2)).astype(np.float32)})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch": 0}, "batch = 0"),
        ({"rows": ["weight"]}, r"'weight' is \[16\], expected \[9, ...\]"),
        ({"split": 4, "split_rows": ["weight"]}, r"'weight' is \[16\], expected 40 in dimension 1"),
        ({"repeat": 0}, "repeat = 0"),
        ({"output": "y"}, "output = 'y'"),
    ],
)
def test_mistakes(options, said):
    with pytest.raises(ValueError, match=said):
        ulplab.assert_invariant(right, {"x": X, "weight": W}, **options)
