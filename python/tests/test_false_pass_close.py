"""Tensors that must not pass as close: what is no tensor, what a type or a size makes vacuous, and kernels that give nothing.

Each case names what it hands over and the check that would have let it pass: another function, or a word of the same one. Further cases of
these kinds: other libraries' tensors, other operations, types of other widths.
"""

import warnings

import ml_dtypes
import numpy as np
import pytest
from directed import Calls

import ulplab

RNG = np.random.default_rng(1)
X = RNG.standard_normal((16, 32)).astype(np.float32)
NAN, INF = np.float32(np.nan), np.float32(np.inf)
BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
CALLS = Calls()
case = CALLS.add


def close(got, want=None, **options):
    return lambda: ulplab.assert_close(got, want, **options)


# Limits that no numbers of the type can break, though others can.
IDLE = "no numbers of .* can break it"
for dtype, apart, steps in [
    (np.float32, None, 4278190078), (BF16, 6.8e38, 65278), (np.float16, 131008, 63486), (E4M3, 896, 252), (E5M2, 114688, 246),
]:
    x = np.abs(X).astype(dtype)
    named = np.dtype(dtype).name
    case(f"{named}: all codes apart", "the range of u64", close(-x, x, ulp=steps), match=IDLE)
    if apart:
        case(f"{named}: max_abs of all numbers", "the range of f32", close(-x, x, max_abs=apart), match=IDLE)
        case(f"{named}: atol of all numbers", "torch.testing.assert_close", close(-x, x, atol=apart), match=IDLE)
        case(f"{named}: atol of all numbers, and rtol", "numpy.allclose", close(-x, x, rtol=1e-3, atol=1.0005 * apart), match=IDLE)
for dtype, apart in [(np.bool_, 1), (np.int8, 255), (np.uint8, 255), (np.int16, 65535), (np.uint16, 1e5), (np.int32, 2**32)]:
    least, most = (False, True) if dtype == np.bool_ else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    got, want = np.full(4, most, dtype), np.full(4, least, dtype)
    case(f"{np.dtype(dtype).name}: atol of all numbers", "numpy.allclose", close(got, want, atol=apart), match=IDLE)
case("e4m3 for bf16: atol of both", "the range of one", close(-np.abs(X).astype(BF16), np.abs(X).astype(E4M3), atol=3.4e38 * 1.01),
    match=IDLE)

# What a size makes vacuous.
for value in (7.0, 1e-30, 1e30):
    case(f"cosine of one element, {value:g}", "the sign", close(np.full(1, value, np.float32), np.ones(1, np.float32), cosine=0.999))
case("cosine of a scalar", "the sign", close(np.full((), 9, np.float32), np.ones((), np.float32), cosine=0.999))
case("cosine of [1, 1]", "the sign", close(9 * X[:1, :1], X[:1, :1], cosine=0.999))
case("kl of one column", "a softmax of one, 1", close(99 * X[:, :1], X[:, :1], kl=1e-6), match="kl of one column is 0")
case("kl of one number", "a softmax of one, 1", close(X[0, :1] + 1, X[0, :1], kl=1e-6), match="kl of one column is 0")

# No finite number.
for name, x in {"infinite": np.full(4, INF), "of both signs": np.array([INF, -INF]), "one": np.array([-INF]),
    "a scalar": np.array(INF)}.items():
    case(f"all is infinite: {name}", "equal numbers", close(x.astype(np.float32), x.astype(np.float32), rtol=0), match="no finite number")
case("NaN and infinity", "numpy's equal_nan", close(np.array([NAN, INF]), np.array([NAN, INF]), rtol=0, equal_nan=True),
    match="no finite number")
case("NaN and infinity, by ulp", "numpy's equal_nan", close(np.array([NAN, INF]), np.array([NAN, INF]), ulp=0, equal_nan=True),
    match="no finite number")

# NaN, infinity and zeros that are not where they are wanted.
OUT = (AssertionError, "outside|expected")
SOME = X.copy()
SOME[3, 4] = NAN
LARGE = X.copy()
LARGE[3, 4] = INF
for limits in ({"rtol": 1e9}, {"atol": 1e30}, {"rtol": 0.5, "atol": 1e20}):
    case(f"NaN in got, {limits}", "a comparison that is False", close(SOME, X, **limits), *OUT)
    case(f"NaN in want, {limits}", "a comparison that is False", close(X, SOME, **limits), *OUT)
    case(f"NaN in want under equal_nan, {limits}", "numpy's equal_nan", close(X, SOME, **limits, equal_nan=True), *OUT)
    case(f"infinity in got, {limits}", "∞ ≤ ∞", close(LARGE, X, **limits), *OUT)
    case(f"infinity in want, {limits}", "rtol·∞", close(X, LARGE, **limits), *OUT)
    case(f"the other infinity, {limits}", "∞ ≤ ∞", close(-np.abs(LARGE), np.abs(LARGE), **limits), *OUT)
for metric, limit in {"cosine": 0.01, "sqnr": 0.1, "relative_l2": 1e6, "max_abs": 1e9, "ulp": 4e9, "nsr": 1e9, "diff": 1.9,
    "kl": 1e9}.items():
    case(f"NaN in got, {metric}", "nanmax()", close(SOME, X, **{metric: limit}), *OUT)
    case(f"infinity in got, {metric}", "a ratio that is NaN", close(LARGE, X, **{metric: limit}), *OUT)
for metric, limit in {"cosine": 0.01, "relative_l2": 1e6, "nsr": 1e6, "sqnr": -100}.items():
    case(f"numbers for zeros, {metric}", "0/0", close(X, 0 * X, **{metric: limit}), *OUT)
case("zeros for numbers, cosine", "0/0", close(0 * X, X, cosine=0.01), *OUT)

# Shapes that are not equal, though they can be made so.
for name, x in {
    "one row for all": X[:1], "a column for all": X[:, :1], "a scalar for all": X[0, 0], "a leading 1": X[None], "flat": X.ravel(),
    "turned over": X.T.copy(), "a row less": X[:-1], "a row more": np.concatenate([X, X[:1]]), "no rows": X[:0],
}.items():
    case(name, "broadcasting", close(x, X.copy(), rtol=1e-3), AssertionError, "want is")

# What is no tensor of numbers.
MASKED = np.ma.array(9 * X, mask=True)
for name, x in {
    "a masked array": MASKED, "a list of tensors": [X, X], "a tuple of tensors": (X,
        ), "a dictionary": {"y": X}, "a text": "1.0", "texts": np.array(["1.0"]),
    "objects": np.array([1.0, None], object), "complex numbers": X + 1j, "dates": np.array(["2026"],
        "M8[Y]"), "a generator": (i for i in range(3)),
    "a set": {1.0}, "a type": np.float32, "a function": np.sum, "nothing": None,
}.items():
    case(f"{name} on both sides", "==", lambda x=x: ulplab.assert_close(x, x, rtol=0), (TypeError, ValueError), "")
case("a masked array on one side", "numpy.testing", close(MASKED, X, rtol=0), TypeError, "masked array")
case("integers that f64 cannot tell apart", "f64", close(np.array([2**53 + 1]), np.array([2**53]), rtol=0), ValueError, "2\\^53")
case("integers of 64 bits that f64 cannot tell apart", "f64", close(np.array([2**63 + 1], np.uint64), np.array([2**63], np.uint64), rtol=0),
    ValueError, "2\\^53")


# Kernels that give nothing, or something else.
def kernel(call, **options):
    return lambda: ulplab.assert_close(kernel=call, op="rmsnorm", inputs={"x": X.copy()}, **options)


WANT = ulplab.reference.rmsnorm(x=X).value.astype(np.float32)
case("a kernel that gives None", "no output that is wrong", kernel(lambda x: None), TypeError, "gives None")
case("a kernel that gives a tuple", "its first", kernel(lambda x: (WANT, WANT)), TypeError, "tuple")
case("a kernel that gives its input", "a result that is there", kernel(lambda x: x), AssertionError, "outside")
case("a kernel that gives True", "truth", kernel(lambda x: True), (AssertionError, TypeError, ValueError), "")
case("a kernel that gives no rows", "all() of nothing", kernel(lambda x: WANT[:0]), (AssertionError, ValueError), "")
case("a kernel that gives a row for all", "broadcasting", kernel(lambda x: WANT[:1]), AssertionError, "shape")
case("a kernel that gives what it gave before", "a cache", kernel(lambda x: np.roll(WANT, 1, 0)), AssertionError, "outside")
case("a kernel that gives uninitialised memory", "finite numbers", kernel(lambda x: np.full_like(x, NAN)), AssertionError, "outside")
case("a kernel that gives no output by that name", "those it gives", kernel(lambda x: {"z": WANT}), (TypeError, ValueError), "z")
case("a kernel that gives no outputs", "all() of nothing", kernel(lambda x: {}), (TypeError, ValueError), "")
case("a kernel, and got", "got", lambda: ulplab.assert_close(WANT, kernel=lambda x: 0 * x, op="rmsnorm", inputs={"x": X}), TypeError,
    "either got or kernel")
case("an operation, and want", "want", lambda: ulplab.assert_close(X, X.copy(), op="rmsnorm", inputs={"x": X}), TypeError, "either op")
case("an operation, and rtol", "rtol", lambda: ulplab.assert_close(0 * X, op="rmsnorm", inputs={"x": X}, rtol=1), TypeError, "either op")
case("an operation without inputs", "got alone", lambda: ulplab.assert_close(X, op="rmsnorm"), ValueError, "is missing")
case("an operation with inputs of nothing", "got alone", lambda: ulplab.assert_close(X, op="rmsnorm", inputs={}), ValueError, "is missing")
case("an output that there is not", "the first", lambda: ulplab.assert_close(WANT, op="rmsnorm", inputs={"x": X}, output="z"), ValueError,
    "no output 'z'")
case("a word that there is not", "ignoring it", lambda: ulplab.assert_close(WANT, op="rmsnorm", inputs={"x": X, "epsilon": 9.0}),
    ValueError, "epsilon")
case("a mean error that is not known", "ignoring it", lambda: ulplab.assert_close(WANT, op="rmsnorm", inputs={"x": X}, mean_error="error"),
    ValueError, "mean_error")
case("an accumulator that is not known", "f32", lambda: ulplab.assert_close(WANT, op="rmsnorm", inputs={"x": X}, accumulate="f8"),
    ValueError, "accumulate")
case("nothing that is asked", "a comparison without a limit", close(9 * X, X), ulplab.NoGate, "give rtol")
case("a metric that there is not", "ignoring it", close(9 * X, X, cosin=0.9), TypeError, "takes no .cosin.; did you mean .cosine.")


test_it_does_not_pass = CALLS.test()


def test_there_are_enough_and_their_right_ones_pass():
    assert len(CALLS.all) >= 120
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        half = X.astype(np.float16)
        ulplab.assert_close(half + 0, half, max_abs=131007, ulp=63485)
        ulplab.assert_close(X[:, :2] + 0, X[:, :2], kl=1e-6, cosine=0.999)
        ulplab.assert_close(np.array([1, 100], np.int8), np.array([2, 100], np.int8), atol=2)
        ulplab.assert_close(np.array([1, -INF]), np.array([1, -INF]), rtol=0)
        ulplab.assert_close(kernel=lambda x: WANT, op="rmsnorm", inputs={"x": X})


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_zeros_of_both_signs_are_warned_of(zero):
    zeros = np.full_like(X, zero)
    zeros[0, 0] = 0
    q = ulplab.quantize(zeros, "mxfp8")
    for call in (
        lambda: ulplab.assert_quantized(q.codes, q.scales, zeros, "mxfp8"),
        lambda: ulplab.assert_close(zeros, 1e-9 * X, max_abs=1),
        lambda: ulplab.assert_close(zeros, zeros.copy(), cosine=0.9),
        lambda: ulplab.assert_close(zeros, 1e-9 * X, atol=1),
    ):
        with pytest.warns(ulplab.UlplabWarning, match="zeros in the place of all|a kernel that writes nothing passes"):
            call()
