"""assert_close with numbers: it passes and fails as numpy's does, on every type, and warns of what shows nothing."""

import re
import warnings

import ml_dtypes
import numpy as np
import pytest

import ulplab

TYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]


@pytest.fixture(autouse=True)
def strict():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def closes(*given, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ulplab.assert_close(*given, **options)
        except AssertionError:
            return False
        return True


@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_it_agrees_with_numpy(dtype):
    rng = np.random.default_rng(0)
    verdicts = set()
    for _ in range(300):
        want = rng.standard_normal(int(rng.choice([1, 3, 700]))).astype(dtype)
        got = (want.astype(np.float64) * (1 + rng.choice([0, 1e-4, 0.1]) * rng.standard_normal(want.shape))).astype(dtype)
        rtol, atol = rng.choice([0, 1e-3, 0.3]), rng.choice([0, 1e-4, 0.2])
        for special in (None, np.nan, np.inf, -np.inf):
            if special is not None and (dtype is not ml_dtypes.float8_e4m3fn or np.isnan(special)):
                got[rng.integers(len(got))] = special
            equal_nan = bool(rng.integers(2))
            a, b = got.astype(np.float64), want.astype(np.float64)
            expected = np.allclose(a, b, rtol=rtol, atol=atol, equal_nan=equal_nan)
            assert closes(got, want, rtol=rtol, atol=atol, equal_nan=equal_nan) == expected
            verdicts.add(expected)
    assert verdicts == {True, False}


def test_types_may_differ_and_integers_are_exact():
    x = np.array([1.0, 2.5, -3.0], np.float32)
    ulplab.assert_close(x, x.astype(np.float64), rtol=0)
    ulplab.assert_close(x.astype(ml_dtypes.bfloat16), x, rtol=0, dtype="any")
    with pytest.raises(AssertionError, match=r"got is bfloat16\[3\], expected float32, as want is, .* say dtype='bfloat16'"):
        ulplab.assert_close(x.astype(ml_dtypes.bfloat16), x, rtol=0)
    ulplab.assert_close([1, 2, 3], np.array([1.0, 2.0, 3.0]), rtol=0)
    with pytest.raises(AssertionError):
        ulplab.assert_close(np.array([2**53, 1]), np.array([2**53 - 1, 1]), rtol=0)
    with pytest.raises(ValueError, match="2\\^53"):
        ulplab.assert_close(np.array([2**53 + 1, 0]), np.array([2**53, 0]), rtol=0)


def test_what_is_said():
    want = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    got = want.copy()
    got[1, 2] = 9.0
    got[2, 3] = np.nan
    with pytest.raises(AssertionError) as error:
        ulplab.assert_close(got, want, rtol=1e-2, atol=1e-3)
    assert str(error.value) == (
        "got (float32[3, 4]): 2 of 12 elements are outside |got - want| <= 0.001 + 0.01 * |want|\n"
        "  1 of them are NaN on one side, or on both without equal_nan\n"
        "  worst at [2, 3]: got nan, want 12\n"
        "  outside: all in rows 1 to 2, columns 2 to 3, one in each row"
    )
    got[2, 3] = 12.0
    with pytest.raises(AssertionError, match=r"worst at \[1, 2\]: got 9, want 7, off by 2 where 0.071 is allowed, 28.2 times as much"):
        ulplab.assert_close(got, want, rtol=1e-2, atol=1e-3)
    with pytest.raises(AssertionError, match=r"got is float32\[3, 4\], want is float32\[4, 3\]"):
        ulplab.assert_close(got, want.T, rtol=1)


def test_metrics():
    rng = np.random.default_rng(0)
    want = rng.standard_normal((50, 40)).astype(np.float32)
    got = want + np.float32(0.01) * rng.standard_normal((50, 40)).astype(np.float32)
    a, b = got.astype(np.float64).ravel(), want.astype(np.float64).ravel()
    values = {
        "cosine": a @ b / np.sqrt((a @ a) * (b @ b)),
        "sqnr": 10 * np.log10((b @ b) / ((a - b) @ (a - b))),
        "diff": 1 - 2 * (a @ b) / (a @ a + b @ b),
        "relative_l2": np.linalg.norm(a - b) / np.linalg.norm(b),
        "nsr": ((a - b) @ (a - b)) / (b @ b),
        "max_abs": np.abs(a - b).max(),
    }
    for metric, value in values.items():
        higher = metric in ("cosine", "sqnr")
        for factor in (1 - 1e-9, 1 + 1e-9):
            passes = (factor < 1) == higher
            assert closes(got, want, **{metric: value * factor}) == passes, (metric, factor)
    with pytest.raises(AssertionError, match="sqnr of got .* is 40.0.*, expected at least 60"):
        ulplab.assert_close(got, want, sqnr=60)
    got[0, 0] = np.nan
    for metric, limit in {"cosine": -0.99, "sqnr": -1e3, "diff": 1.9, "max_abs": 1e9}.items():
        assert not closes(got, want, **{metric: limit}), metric


def test_assertions_that_show_little_are_warned_of():
    small = np.array([1e-4, -2e-4, 3e-4], np.float32)
    with pytest.warns(ulplab.UlplabWarning, match="zeros in the place of all 3 elements would be within"):
        ulplab.assert_close(small.copy(), small, atol=1e-2)
    with pytest.warns(ulplab.UlplabWarning, match="all elements that are wanted are equal"):
        ulplab.assert_close(np.ones(4), np.ones(4), rtol=1e-3)


def test_messages_say_what_is_assumed_of_sums():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 64)), rng.standard_normal((64, 2))
    errors = {}
    for accumulate, clause in {"f64": "sums in f64, in any order", "bf16": "sums in bf16, in any order", "i32": "exact sums of integers"}.items():
        with pytest.raises(AssertionError, match=f"outside the bound of 'y', {clause}") as failed:
            ulplab.assert_close(a @ b + 100, op="matmul", inputs={"a": a, "b": b}, accumulate=accumulate)
        errors[accumulate] = float(re.search(r"where (\S+) is allowed", str(failed.value))[1])
    assert errors["i32"] < errors["f64"] < errors["bf16"]


def test_calls_that_assert_nothing_are_refused():
    x = np.ones(3)
    with pytest.raises(ulplab.NoGate):
        ulplab.assert_close(x, x.copy())
    with pytest.raises(TypeError, match="'want' is missing"):
        ulplab.assert_close(x, rtol=1)
    with pytest.raises(TypeError, match="assert_close takes no 'cosin'; did you mean 'cosine'"):
        ulplab.assert_close(x, x.copy(), cosin=1)
    with pytest.raises(TypeError, match="either op and inputs, or want"):
        ulplab.assert_close(x, x.copy(), op="rmsnorm", inputs={"x": x})
    with pytest.raises(ValueError, match="rtol = nan"):
        ulplab.assert_close(x, x.copy(), rtol=float("nan"))
    with pytest.raises(ValueError, match="accumulate = 'f31'"):
        ulplab.assert_close(x, op="rmsnorm", inputs={"x": x + 0}, accumulate="f31")


def test_empty_tensors_must_have_one_shape():
    with pytest.raises(AssertionError):
        ulplab.assert_close(np.ones((0, 4)), np.ones((4, 0)), rtol=0)


def test_limits_in_ulps():
    for dtype in TYPES:
        name = np.dtype(dtype).name
        bits = {8: np.uint64, 4: np.uint32, 2: np.uint16, 1: np.uint8}[np.dtype(dtype).itemsize]
        # All numbers of a type with few bits, some of the others: from zero through the subnormal numbers.
        codes = np.arange(1, 100, dtype=bits) if bits is np.uint8 else np.linspace(0, np.array(1, dtype).view(bits), 999).astype(bits)
        for step in (1, 5):
            want, got = codes.view(dtype), (codes + bits(step)).view(dtype)
            ulplab.assert_close(got, want, ulp=step)
            ulplab.assert_close(-got, -want, ulp=step)
            with pytest.raises(AssertionError, match=f"ulp of got .{name}.* is {step}, expected at most {step - 1}"):
                ulplab.assert_close(got, want, ulp=step - 1)
    tiny = np.array([5e-324, 1.0])
    ulplab.assert_close(-tiny * [1, -1], tiny, ulp=2)
    assert not closes(-tiny * [1, -1], tiny, ulp=1)
    nan = np.array([np.nan, 1.0])
    assert closes(nan, nan.copy(), ulp=0, equal_nan=True) and not closes(nan, nan.copy(), ulp=99)
    assert not closes(np.array([np.inf, 1.0]), np.array([1e308, 1.0]), ulp=1e18)
    with pytest.raises(TypeError, match="ulp: got is float32, want is float64, expected the same type"):
        ulplab.assert_close(np.float32([1]), np.float64([1]), ulp=1)


def test_limits_of_divergence():
    rng = np.random.default_rng(0)
    want, got = rng.standard_normal((5, 7)), rng.standard_normal((5, 7))
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (want, got))
    kl = float((p * np.log(p / q)).sum(-1).mean())
    ulplab.assert_close(got, want, kl=kl * 1.000001)
    assert not closes(got, want, kl=kl * 0.999999)
    ulplab.assert_close(want + 100, want, kl=1e-12)
    got[2, 2] = np.nan
    assert not closes(got, want, kl=1e9)


def test_where_elements_outside_are():
    want = np.random.default_rng(0).standard_normal((8, 40))
    for index, value, said in [
        (np.s_[3], 9.0, "all of row 3"),
        (np.s_[:, 32:], 9.0, "all of columns 32 to 39, the tail beyond a multiple of 32"),
        (np.s_[:, 1::4], 9.0, "all of every 4th column, from 1 on"),
        (np.s_[:, 8:16], 0.0, "all of columns 8 to 15, where 0 was found: never written?"),
        (np.s_[0], np.nan, "all of row 0, where NaN was found"),
        (np.s_[5], -want[5], "all of row 5, with the sign flipped"),
    ]:
        got = want.copy()
        got[index] = value
        with pytest.raises(AssertionError) as error:
            ulplab.assert_close(got, want, rtol=1e-6)
        assert f"  outside: {said}" in str(error.value).splitlines()


def test_the_pattern_of_elements_far_outside_is_found_among_those_just_outside():
    """Also: columns, blocks, a bound of an operation."""
    rng = np.random.default_rng(0)
    want = rng.standard_normal((129, 64))
    got = want + np.where(rng.random(want.shape) < 0.01, 1.5e-3, 0)
    got[::32] += 0.1
    with pytest.raises(AssertionError) as error:
        ulplab.assert_close(got, want, rtol=0, atol=1e-3)
    said = str(error.value)
    assert "outside: scattered" in said
    assert "10 times outside or more: 320, all in" in said or "10 times outside or more: 320, " in said
    assert "times outside or more: 320, scattered" not in said
    # A tolerance is what its author wants: none is said to be too tight.
    assert "less than 2 times" not in said
    with pytest.raises(AssertionError) as error:
        ulplab.assert_close(want + 0.1, want, rtol=0, atol=1e-3)
    assert "times outside" not in str(error.value)
