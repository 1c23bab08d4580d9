"""What must not pass: assertions with nothing behind them, and results that were never looked at.

Each case names what it hands over, and the check that would have let it pass: another function, or a word of the same one. Further
cases of these kinds: other formats, layouts and operations; limits at the other end of a metric's range; other libraries' arrays.
"""

import warnings

import ml_dtypes
import numpy as np
import pytest
from directed import Calls

import ulplab

RNG = np.random.default_rng(0)
BF16 = ml_dtypes.bfloat16
X = RNG.standard_normal((16, 256)).astype(np.float32)
W = (1 + 0.1 * RNG.standard_normal(256)).astype(np.float32)
INF, NAN = float("inf"), float("nan")

CALLS = Calls()
case = CALLS.add


# Codes and scales that are not all there. Byte by byte, all that is there is right.
RULES = {"nvfp4": "vllm", "mxfp4": "floor", "mxfp8": "floor", "fp8_b128": None, "fp8_tensor": None, "fp8_token": None, "int8_token": None}
RULES |= {"bf16": None, "e4m3": None, "nvfp4_single": None, "nvfp4_token": None, "fp8_b128_f32": None, "fp8_out_channel": None,
    "mxfp6_e2m3": None}


def quantized(format, change, **options):
    def call():
        x = X.astype(BF16)
        q = ulplab.quantize(x, format, **{"rule": options["rule"]} if options.get("rule") else {})
        codes, scales, above = change(q.codes, q.scales, q.global_scale)
        ulplab.assert_quantized(codes, scales, x, format, above, **options)

    return call


def extended(x):
    return np.concatenate([x, x[-1:]])


for format, rule in RULES.items():
    for options in [{}] + [{"rule": rule}] * (rule is not None):
        named = f"{format}{' by ' + rule if options else ''}"
        instead = "byte by byte over the shorter"
        case(f"{named}: a row of codes is missing", instead, quantized(format, lambda c, s, g: (c[:-1], s, g), **options))
        case(f"{named}: no codes", instead, quantized(format, lambda c, s, g: (c[:0], s, g), **options))
        case(f"{named}: a row of codes too many", instead, quantized(format, lambda c, s, g: (extended(c), s, g), **options))
        if ulplab.quantize(X, format).scales is not None:
            case(f"{named}: no scales", instead, quantized(format, lambda c, s, g: (c, None, g), **options))
            case(f"{named}: half of the scales", instead, quantized(format, lambda c, s, g: (c, s.ravel()[: s.size // 2], g), **options))
            case(f"{named}: a scale too many", instead, quantized(format, lambda c, s, g: (c, extended(s.ravel()), g), **options))
            case(f"{named}: nothing at all", instead, quantized(format, lambda c, s, g: (c[:0], s.ravel()[:0], g), **options))
        if ulplab.quantize(X, format).global_scale is None:
            case(f"{named}: a global scale that it has not", "ignoring it", quantized(format, lambda c, s, g: (c, s, [1e9]), **options))
        else:
            case(f"{named}: no global scale", "a scale of 1", quantized(format, lambda c, s, g: (c, s, None), **options))
            case(f"{named}: two global scales", "the first of them",
                quantized(format, lambda c, s, g: (c, s, [*g.ravel(), 1.0]), **options))


def placed(change):
    def call():
        q = ulplab.quantize(X, "nvfp4")
        codes, scales = change(q.codes, q.layout("128x4"))
        ulplab.assert_quantized(codes, scales, X, "nvfp4", q.global_scale, layout="128x4")

    return call


case("placed: a row of codes is missing", "a count of the scales alone", placed(lambda c, s: (c[:-1], s)))
case("placed: half of the scales", "byte by byte", placed(lambda c, s: (c, s[: s.size // 2])))
case("placed: a tile too many", "byte by byte", placed(lambda c, s: (c, np.concatenate([s, s]))))
case("no rows", "a format's rules, all of which agree", lambda: ulplab.assert_quantized(
    np.zeros((0, 128), np.uint8), np.zeros((0, 16), np.uint8), X[:0], "nvfp4", [1.0]))
case("parity of half of the codes", "Parity.explained", lambda: ulplab.parity(X, ulplab.quantize(X, "e4m3").codes[:8], format="e4m3"))

# Limits that nothing can break. numpy and torch take them.
NEAR = (X * np.float32(1.5), X)
for limit, values in {
    "rtol": [INF, NAN, -1.0, True, "1e-3", 1e300],
    "atol": [INF, NAN, -1.0, True, False, 1e300],
    "max_abs": [INF, NAN, True, 1e300],
    "diff": [INF, NAN, 2.0, 3.0, True],
    "relative_l2": [INF, NAN, True, 1e300],
    "nsr": [INF, NAN, True],
    "ulp": [INF, NAN, True],
    "kl": [INF, NAN, True],
    "sqnr": [-INF, NAN, True, -1e9],
    "cosine": [-1.0, -1, -5, -INF, NAN, False, True],
}.items():
    for value in values:
        match = "not judged" if isinstance(value, float | int) and not isinstance(value,
            bool) and (value >= 0 or limit in ("cosine", "sqnr")) else limit
        match = limit if value != value and limit in ("rtol", "atol") else match
        case(f"{limit} = {value!r}", "comparing with it", lambda limit=limit, value=value: ulplab.assert_close(*NEAR, **{limit: value}),
            match=match)
case("rtol = 0 and atol = inf", "torch.testing.assert_close", lambda: ulplab.assert_close(*NEAR, rtol=0, atol=INF))
case("cosine = -1 next to a bound that holds", "the other bound", lambda: ulplab.assert_close(X + 0, X, rtol=1, cosine=-1))
case("a limit of None", "leaving it out", lambda: ulplab.assert_close(*NEAR, cosine=None), match="cosine = None")

# No elements.
EMPTY = np.zeros((0, 8), np.float32)
for word, limit in {"rtol": 0, "atol": 1e-3, "cosine": 0.9, "sqnr": 20, "diff": 1e-3, "relative_l2": 1e-3, "max_abs": 1e-3,
    "ulp": 1}.items():
    case(f"no elements, {word}", "all() of nothing", lambda word=word,
        limit=limit: ulplab.assert_close(EMPTY, EMPTY.copy(), **{word: limit}))
case("no columns", "all() of nothing", lambda: ulplab.assert_close(EMPTY.T, EMPTY.T.copy(), rtol=0))
case("a list of nothing", "all() of nothing", lambda: ulplab.assert_close([], [], rtol=0))


def op(name, inputs, got, **options):
    return lambda: ulplab.assert_close(got, op=name, inputs=inputs, **options)


case("rmsnorm of no rows", "all() of nothing", op("rmsnorm", {"x": X[:0], "weight": W}, X[:0].copy()))
case("softmax of no rows", "all() of nothing", op("softmax", {"x": X[:0]}, X[:0].copy()))
case("silu_and_mul of no rows", "all() of nothing", op("silu_and_mul", {"x": X[:0]}, X[:0, :128].copy()))
case("layernorm of no rows", "all() of nothing", op("layernorm", {"x": X[:0], "weight": W, "bias": W}, X[:0].copy()))
case("matmul, M = 0", "all() of nothing", op("matmul", {"a": X[:0], "b": X.T}, np.zeros((0, 16), np.float32)))
case("matmul, K = 0", "zeros, which are right", op("matmul", {"a": X[:, :0], "b": X[:, :0].T}, np.zeros((16, 16), np.float32)))
case("matmul, N = 0", "all() of nothing", op("matmul", {"a": X, "b": X[:0].T}, np.zeros((16, 0), np.float32)))
case("state_transpose of nothing", "all() of nothing",
    op("state_transpose", {"x": np.zeros((0, 3, 8, 8), np.float32)}, np.zeros((0, 3, 8, 8), np.float32)))
case("attention of no tokens", "all() of nothing", op(
    "attention", {name: np.zeros((1, 0, 2, 8), np.float32) for name in "qkv"}, np.zeros((1, 0, 2, 8), np.float32), output="o"))

# NaN that any NaN meets.
NANS = np.full((4, 8), np.nan, np.float32)
case("all NaN under equal_nan, rtol", "numpy's equal_nan", lambda: ulplab.assert_close(NANS.copy(), NANS, rtol=0, equal_nan=True))
case("all NaN under equal_nan, ulp", "numpy's equal_nan", lambda: ulplab.assert_close(NANS.copy(), NANS, ulp=0, equal_nan=True))
case("rmsnorm of NaN", "NaN meets NaN", op("rmsnorm", {"x": NANS}, NANS.copy()))
case("softmax of NaN", "NaN meets NaN", op("softmax", {"x": NANS}, NANS.copy()))
case("matmul of NaN", "NaN meets NaN", op("matmul", {"a": NANS, "b": NANS.T}, np.full((4, 4), np.nan, np.float32)))
for metric in ("cosine", "sqnr", "relative_l2", "max_abs"):
    case(f"all NaN under equal_nan, {metric}", "a metric of the rest", lambda metric=metric: ulplab.assert_close(
        NANS.copy(), NANS, **{metric: 0.5}, equal_nan=True))

# A tensor that is compared with itself.
SHARED = X.copy()
case("got is want", "equal bits", lambda: ulplab.assert_close(SHARED, SHARED, rtol=0))
case("got is a view of want", "equal bits", lambda: ulplab.assert_close(SHARED[:], SHARED, rtol=0))
case("got is a reshaped view of want", "is", lambda: ulplab.assert_close(SHARED.reshape(-1), SHARED.ravel(), rtol=0))
case("got overlaps want", "the same address", lambda: ulplab.assert_close(SHARED[1:], SHARED[:-1], rtol=1e9))
# What is normed twice is what is normed once: what is wanted, computed from what is there now, is there.
NORMED = ulplab.reference.rmsnorm(x=X, eps=1e-30).value.astype(np.float32)
case("got is an input", "a bound from what it holds now", op("rmsnorm", {"x": NORMED, "eps": 1e-30}, NORMED))
case("got is a view of an input", "is", op("rmsnorm", {"x": NORMED, "eps": 1e-30}, NORMED[:]))
case("got is a reshaped input", "is", op("rmsnorm", {"x": NORMED, "eps": 1e-30}, NORMED.reshape(16, 256)))
case("a transposed input is its own result", "equal numbers", op(
    "state_transpose", {"x": SHARED.reshape(1, 1, 64, 64)}, SHARED.reshape(1, 1, 64, 64)), AssertionError, "outside")

# Another type than the one that is wanted: its own spacing widens the bound.
RIGHT = ulplab.reference.rmsnorm(x=X, weight=W).value
for dtype in (BF16, np.float16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
    name = np.dtype(dtype).name
    case(f"{name} for f32, rmsnorm", "the spacing of got", op("rmsnorm", {"x": X, "weight": W}, RIGHT.astype(dtype)), AssertionError,
        f"{name}.*expected float32")
    case(f"{name} for f32, plain", "rtol", lambda dtype=dtype: ulplab.assert_close(X.astype(dtype), X, rtol=0.2, atol=0.2), AssertionError,
        f"{name}.*expected float32")


def normed(dtype):
    return ulplab.reference.softmax(x=X.astype(dtype)).value


for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.float16):
    name = np.dtype(dtype).name
    case(f"{name} for bf16, softmax", "the spacing of got", op("softmax", {"x": X.astype(BF16)}, normed(BF16).astype(dtype)),
        AssertionError, f"{name}.*expected bfloat16")
case("bf16 for f16, softmax", "the spacing of got", op("softmax", {"x": X.astype(np.float16)}, normed(np.float16).astype(BF16)),
    AssertionError, "expected float16")
case("bool for f32", "numbers", lambda: ulplab.assert_close(X > 0, (X > 0).astype(np.float32), rtol=0), AssertionError,
    "bool.*expected float32")
case("int for f32", "numbers", lambda: ulplab.assert_close(np.arange(8), np.arange(8, dtype=np.float32), rtol=0), AssertionError,
    "int64.*expected float32")
case("f32 where dtype says bf16", "want's type", lambda: ulplab.assert_close(X.copy(), X, rtol=0, dtype="bfloat16"), AssertionError,
    "expected bfloat16, as dtype")
case("f64 where dtype says f32", "a type with all numbers", op(
    "rmsnorm", {"x": X, "weight": W}, RIGHT.astype(np.float64), dtype=np.float32), AssertionError, "expected float32, as dtype")
case("a type that is none", "ignoring it", lambda: ulplab.assert_close(X.copy(), X, rtol=0, dtype="floaty"), match="dtype = 'floaty'")
STATE = {name: RNG.standard_normal((1, 3, 2, 8)).astype(np.float32) for name in "qkv"}
STATE |= {"g": -RNG.random((1, 3, 2)).astype(np.float32), "beta": RNG.random((1, 3, 2)).astype(np.float32)}
STATE |= {"state": RNG.standard_normal((1, 2, 8, 8)).astype(np.float32)}
case("a state in bf16 for f32", "the type of the first input", op(
    "gated_delta", {**STATE, "q": STATE["q"].astype(BF16)}, ulplab.reference.gated_delta(**STATE)["state"].value.astype(BF16),
    output="state"),
    AssertionError, "bfloat16.*expected float32, as 'state'")


# Kernels that overwrite their inputs: what is wanted would be computed from what they left.
def hack(x, weight, eps=1e-6):
    x.fill(1)
    return np.ones_like(x) * weight


def zeroed(x, weight, eps=1e-6):
    x.fill(0)
    return np.zeros_like(x)


def in_weight(x, weight, eps=1e-6):
    weight[:] = 1
    return (x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + eps)).astype(np.float32)


def one_element(x, weight, eps=1e-6):
    y = norm(x, weight, eps)
    x[-1, -1] = -0.0 if x[-1, -1] == 0 else -x[-1, -1]
    return y


def norm(x, weight, eps=1e-6):
    return (x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + eps) * weight).astype(np.float32)


def in_place(x, weight, eps=1e-6):
    x[:] = norm(x, weight, eps)
    return x


def given():
    return {"x": X.copy(), "weight": W.copy(), "eps": 1e-6}


def by_snapshot(kernel):
    inputs = given()
    before = ulplab.snapshot(inputs)
    ulplab.assert_close(kernel(**inputs), op="rmsnorm", inputs=before)


for kernel in (hack, zeroed, in_weight, one_element, in_place):
    for how, call in {
        "kernel=": lambda kernel=kernel: ulplab.assert_close(kernel=kernel, op="rmsnorm", inputs=given()),
        "snapshot": lambda kernel=kernel: by_snapshot(kernel),
        "plain": lambda kernel=kernel: ulplab.assert_close(kernel=kernel, want=norm(X, W), inputs=given(), rtol=1e9),
        "calibrate": lambda kernel=kernel: ulplab.calibrate(
            kernel, "rmsnorm", 2, inputs=lambda rng: {"x": rng.standard_normal((8, 64)).astype(np.float32),
                "weight": np.ones(64, np.float32) * 2, "eps": 1e-6}),
        "assert_invariant": lambda kernel=kernel: ulplab.assert_invariant(kernel, given(), rows=["x"]),
    }.items():
        case(f"{kernel.__name__} overwrites, {how}", "a reference of what it left", call, AssertionError, "overwrote its inputs")
case("only another input may be written to", "any name in writes", lambda: ulplab.assert_close(
    kernel=hack, op="rmsnorm", inputs=given(), writes="weight"), AssertionError, "overwrote its inputs.*'x'")
case("writes names no input", "ignoring it", lambda: ulplab.assert_close(kernel=norm, op="rmsnorm", inputs=given(), writes="y"),
    match="writes: 'y'")
case("a written input may be wrong", "its name in writes", lambda: ulplab.assert_close(
    kernel=zeroed, op="rmsnorm", inputs=given(), writes="x"), AssertionError, "outside")


# Rows that nobody looked at.
def invariant(kernel, x, **options):
    return lambda: ulplab.assert_invariant(kernel, {"x": x}, **options)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


case("one row", "batch of what there is", invariant(softmax, X[:1]))
case("no columns", "equal bits of nothing", invariant(lambda x: x[:, :0].copy(), X))
case("all NaN", "NaN is the same as NaN", invariant(lambda x: np.full_like(x, np.nan), X))
case("zeros for every input", "equal bits", invariant(lambda x: np.zeros_like(x), X))
case("ones for every input", "equal bits", invariant(lambda x: np.ones((len(x), 3), np.float32), X))
case("equal rows", "equal bits", invariant(softmax, np.ones((5, 8), np.float32)))
case("split into one", "a call on everything", invariant(lambda x: x.copy(), X, batch=(), place=False, neighbours=False, split=512))
case("split as long as it is", "a call on everything", invariant(lambda x: x.copy(), X, batch=(), place=False, neighbours=False, split=[256, 300]))
case("batch of all", "a call on everything", invariant(softmax, X, batch=(16, 64), place=False, neighbours=False))
case("nothing is asked", "no row that differs", invariant(softmax, X, batch=(), place=False, neighbours=False, repeat=1))
case("batches as large as all rows", "a batch that is never cut", invariant(softmax, X, batch=16, place=False, neighbours=False, repeat=1))
case("one row, repeated", "repeat", invariant(softmax, X[:1], repeat=5))
case("calibrate on nothing", "a ratio of 0", lambda: ulplab.calibrate(
    lambda x: x.copy(), "softmax", 2, inputs=lambda rng: {"x": np.zeros((0, 8), np.float32)}))
case("calibrate on NaN", "a ratio of 0", lambda: ulplab.calibrate(
    lambda x: x.copy(), "softmax", 2, inputs=lambda rng: {"x": np.full((2, 8), np.nan, np.float32)}))


test_it_does_not_pass = CALLS.test()


def test_there_are_enough_and_their_right_ones_pass():
    assert len(CALLS.all) >= 150
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for format, rule in RULES.items():
            if format == "mxfp8" or format == "mxfp4":
                continue
            q = ulplab.quantize(X, format, rule=rule)
            ulplab.assert_quantized(q.codes, q.scales, X, format, q.global_scale)
        ulplab.assert_close(X + np.float32(1e-7), X, rtol=1e-5, atol=1e-5, cosine=0.999, sqnr=80, ulp=1e8, max_abs=1)
        for kernel, writes in ((norm, ()), (in_place, "x"), (lambda x, weight, eps: x.__setitem__(..., norm(x, weight, eps)), ["x"])):
            ulplab.assert_close(kernel=kernel, op="rmsnorm", inputs=given(), writes=writes)
            ulplab.assert_invariant(kernel, given(), rows=["x"], writes=writes)
        by_snapshot(norm)
        ulplab.assert_close(RIGHT.astype(BF16), op="rmsnorm", inputs={"x": X, "weight": W}, dtype="bfloat16")
        ulplab.assert_close(RIGHT.astype(np.float32), op="rmsnorm", inputs={"x": X, "weight": W})
        ulplab.assert_close(X.astype(BF16), X, rtol=0.01, dtype="any")
        ulplab.assert_close(X.astype(BF16), X.astype(np.float64), rtol=0.01)


def test_inputs_that_are_constant_are_warned_of():
    inputs = given()
    with pytest.warns(ulplab.UlplabWarning, match="all elements of 'x' are 1: a kernel that ignores it, or has filled it"):
        ulplab.assert_close(hack(**inputs), op="rmsnorm", inputs=inputs)


def test_numbers_that_are_all_zero_are_warned_of():
    q = ulplab.quantize(np.zeros_like(X), "mxfp8")
    with pytest.warns(ulplab.UlplabWarning, match="a kernel that writes nothing passes"):
        ulplab.assert_quantized(q.codes, q.scales, np.zeros_like(X), "mxfp8")
