"""assert_close with a function of numpy: right kernels pass, wrong ones fail, and what is not followed is not judged."""

import functools
import math
import sys
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")
ml_dtypes = pytest.importorskip("ml_dtypes")

import functions_numpy as known  # noqa: E402
import ulplab  # noqa: E402
from functions_numpy import FUNCTIONS, X, normal, softmax  # noqa: E402
from ulplab import _functions, _judged  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::ulplab.UlplabWarning", "ignore:divide by zero", "ignore:invalid value")


def each(change, result):
    """An output, or all of several, changed. Integers stay as they are."""

    def one(x):
        return change(np.asarray(x)) if np.asarray(x).dtype.kind == "f" else x

    if isinstance(result, dict):
        return {name: one(x) for name, x in result.items()}
    return tuple(map(one, result)) if isinstance(result, tuple) else one(result)


def stored(result, dtype=np.float32):
    return each(lambda x: x.astype(dtype), result)


def widened(case):
    """What the best kernel gives: the function in f64, and one rounding."""
    return stored(case.function(*each(lambda x: x.astype(np.float64), case.inputs)))


def without_last(x):
    x = np.array(x)
    x[(-1,) * min(x.ndim, 1)] = 0
    return x


def without_a_term(case):
    """What a kernel gives that leaves the column of an input with the largest number out."""
    at = next(i for i, x in enumerate(case.inputs) if x.dtype.kind == "f")
    x = case.inputs[at].copy()
    x[..., np.argmax(np.abs(x)) % x.shape[-1]] = 0
    return stored(case.function(*case.inputs[:at], x, *case.inputs[at + 1 :]))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_right_kernels_pass_and_wrong_ones_fail(name, monkeypatch):
    case, bounds_of = FUNCTIONS[name], functools.cache(lambda accumulate, rounds: _functions.bounds_of(case.function, case.inputs, accumulate, rounds))
    # All results of a function are judged by the same bounds.
    monkeypatch.setattr(_judged, "bounds_of", lambda function, inputs, accumulate, rounds, *_: bounds_of(accumulate, rounds))
    right = stored(case.function(*case.inputs))
    narrow = stored(right, ml_dtypes.bfloat16)
    for got, words in ((right, {}), (widened(case), {}), (narrow, {"dtype": "any"})):
        ulplab.assert_close(got, op=case.function, inputs=case.inputs, **words)
    gain = each(lambda x: (x * 1.01).astype(np.float32), right)
    for wrong in (gain, each(without_last, right), without_a_term(case)):
        with pytest.raises(AssertionError, match=r"elements are outside the bound"):
            ulplab.assert_close(wrong, op=case.function, inputs=case.inputs)


def in_order(x, axis=-1):
    """A sum in f32, term by term."""
    return np.add.accumulate(x.astype(np.float32), axis=axis, dtype=np.float32).take([-1], axis=axis)


def online_softmax(x):
    most, total = np.full(len(x), -np.inf, np.float32), np.zeros(len(x), np.float32)
    for column in x.T:
        new = np.maximum(most, column)
        total = total * np.exp(most - new) + np.exp(column - new)
        most = new
    return np.exp(x - most[:, None]) / total[:, None]


def one_pass_layer_norm(x, w, b):
    mean = in_order(x) / np.float32(x.shape[-1])
    var = in_order((x - mean) ** 2) / np.float32(x.shape[-1])
    return (x - mean) * (np.float32(1) / np.sqrt(var + np.float32(1e-5))) * w + b


def convolved_by_patches(x, w):
    kh, kw = w.shape[2:]
    patches = np.lib.stride_tricks.sliding_window_view(x, (kh, kw), axis=(1, 2)).transpose(1, 2, 0, 3, 4)
    found = in_order(patches.reshape(*patches.shape[:2], 1, -1) * w.reshape(len(w), -1))[..., 0]
    return found.transpose(2, 0, 1)


KERNELS = {
    "softmax": online_softmax,
    "softmax_f64": online_softmax,
    "softmax_of_rows": online_softmax,
    "layer_norm": one_pass_layer_norm,
    "layer_norm_by_rows": one_pass_layer_norm,
    "rms_norm": lambda x, w: x * (np.float32(1) / np.sqrt(in_order(x * x) / np.float32(x.shape[-1]) + np.float32(1e-6))) * w,
    "conv2d": convolved_by_patches,
    "moving_average": lambda x: sum(x[:, i : i + 92] for i in range(5)) * np.float32(0.2),
    "mlp": lambda x, w1, b1, w2: in_order(
        np.maximum(in_order(x[:, :, None] * w1, 1)[:, 0] + b1, 0)[:, :, None] * w2, 1
    )[:, 0],
    "rope": lambda x, at: known.rope(x, at.astype(np.float32)).astype(np.float32),
    "gelu_tanh": lambda x: x / (1 + np.exp(np.float32(-2 * 0.7978845608) * (x + np.float32(0.044715) * x * x * x))),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_of_another_order_pass(name):
    case = FUNCTIONS[name]
    got = KERNELS[name](*case.inputs)
    assert got.dtype == np.float32
    ulplab.assert_close(got, op=case.function, inputs=case.inputs)


# Expressions of two arrays.
PAIRS = """
a + b | a * b | a / b | a > b | a[0] + b[0, 0] | a + b[0, 0] | np.where(a > b, a, b) | np.maximum(a, b) | np.hypot(a, b) | a @ b.T
np.dot(a, b.T) | np.einsum('ij,kj->ik', a, b)
np.concatenate([a, b]) | np.stack([a, b]) | np.array([a[0], b[0]]) | np.multiply.outer(a[0], b[0])
"""
# Expressions of one.
SINGLE = """
a * 2.5 | a + np.float64(0.1) | a * np.float32(0.1) | a / 3 | a // 2 | a % 2 | 2 - a | 1 / a | -a | abs(a) | a**2 | 2**a | a >= a[0, 0]
np.sqrt(a) | a.sum() | a.sum(axis=(0, 1), keepdims=True) | a.sum(0, dtype=np.float64) | a.mean(-1) | a.var(0) | a.std(ddof=1)
a.prod(1) | a.max(1, keepdims=True) | a.min() | a.argmax(-1) | a.cumsum() | a.cumsum(1) | np.where(a > 1, a, 0)
np.where(a > 1, a, 0.1) | np.where(a > 1, a, np.float64(0.1)) | np.where(a > 1, 1, 0) | np.clip(a, 0.1, None) | a.clip(max=1)
np.maximum(0.1, a) | np.minimum(a, a.mean()) | a.astype("float16") | a.astype(int) | a.astype(bool) | np.zeros_like(a) + a
np.ones_like(a, dtype=np.float32) * a | np.full_like(a, 2.5) * a | a @ a[0] | a[0] @ a[1] | np.outer(a[0], a[1]) | np.inner(a, a)
np.tensordot(a, a, axes=([1], [1])) | np.concatenate([a, a * 1.5]) | np.vstack((a, a)) | np.append(a, a) | a.reshape(2, -1)
a.reshape(6, 4, order="F") | a.T.ravel() | np.moveaxis(a, 0, 1) | a[:, None, :] | a[..., 0] | a[1:, ::-1] | a[3:0:-1, 0] | a[::-2]
a[[0, 2]] | a[np.array([0, 2]), np.array([1, 1])] | a[a > 1] | a[0, [1, 2]] | a[np.ix_([0, 1], [2, 3])] | a[:, [1, 2]]
np.take(a, [0, 1], axis=1) | np.roll(a, 1, axis=0) | np.flip(a, 1) | np.repeat(a, 2, axis=0) | np.tile(a, (1, 2)) | np.tril(a)
np.diag(a[:, :4]) | np.pad(a, ((0, 0), (1, 1)), constant_values=0.5) | np.sort(a, axis=1) | np.linalg.norm(a, axis=1)
np.linalg.norm(a, np.inf, axis=1) | (a > 1).sum(0) | (a > 1).mean() | (a > 1) * a | ~(a > 1) & (a < 2) | np.round(a, 1) | np.rint(a)
np.sign(a) | np.diff(a, axis=1) | np.broadcast_to(a, (2, 4, 6)) | np.split(a, 2, axis=1)[1] | np.add.reduce(a)
np.maximum.reduce(a, axis=1) | np.arange(6) * a | np.linspace(0, 1, 6) * a | np.array([0.1, 2, 3, 4, 5, 6], dtype=np.float32) * a
np.array([a[0, 0], 1.5]) | np.float32(a) | np.float64(a[0, 0]) | np.max([a[0, 0], a[1, 1]]) | np.mean([a[0], a[1]], axis=0) | sum(a)
max(a[0]) | np.sum(a, -1, where=a > 0) | np.take_along_axis(a, np.argsort(-a, axis=1, kind="stable"), axis=1)
np.lib.stride_tricks.sliding_window_view(a, 3, axis=1).sum(-1) | np.select([a > 1, a < 0], [a, -a], 0.5) | np.polyval([0.1, 2, 3], a)
-np.inf * np.abs(a) | np.bool_(True) * a | np.trapezoid(a, axis=1)
"""
TYPES = ["float32", "float64", "float16", "int64", "uint8", "bfloat16"]


def of_type(dtype, seed=0):
    x = np.random.default_rng(seed).standard_normal((4, 6)) * 2
    return (np.abs(x) + 1).astype(dtype) if np.dtype(dtype).kind in "iu" else x.astype(dtype)


def unlike(expressions, *inputs):
    """How many expressions numpy has for these types, and which translations give other types or values."""
    found = {}
    for one in filter(None, map(str.strip, expressions.replace("\n", "|").split("|"))):
        function = eval(f"lambda a, b=None: {one}", {"np": np})
        try:
            if np.asarray(function(*inputs)).dtype != object:
                found[one] = function
        except Exception:  # noqa: BLE001, S110 -- numpy has no such operation
            pass
    bounds = _functions.bounds_of(lambda *given: {name: function(*given) for name, function in found.items()}, inputs, "f32")
    assert set(bounds) == set(found)
    return len(found), next(iter(bounds.values())).unknown


@pytest.mark.parametrize("dtype", TYPES[:4])
def test_types_and_values_are_those_of_numpy(dtype):
    count, why = unlike(SINGLE, of_type(dtype))
    assert count >= 100 and why == []


@pytest.mark.parametrize("dtype", TYPES)
def test_types_of_pairs_are_those_of_numpy(dtype):
    for other in TYPES:
        count, why = unlike(PAIRS, of_type(dtype), of_type(other, 1))
        # Of bf16, numpy compares types that it has no common type for, and numpy.dot gives another type than numpy.matmul.
        odd = ("np.dot(a, b.T): numpy's function gives bfloat16", "numpy.greater")
        assert count >= 8 and [one for one in why if "bfloat16" not in (dtype, other) or not one.startswith(odd)] == []


def test_a_table_of_the_function_has_rounding_errors():
    # A kernel has the sines of its own table, and π in f32.
    function = eval("lambda a: a * np.pi + np.array([0.1] * 6)", {"np": np})
    a = np.full((2, 6), 0.0, np.float32)
    bound = ulplab.bound_of(function, (a,))
    assert bound.of(0).bound >= 0.1 * 2.0**-25
    a = normal(64, 6)
    ulplab.assert_close(a * np.float32(np.pi) + np.float32(0.1), op=function, inputs=(a,))


def names():
    places = [np, math, np.linalg, np.vectorize, known, sys.modules[__name__]]
    places += [sys.modules[one] for one in ("scipy.special",) if one in sys.modules]
    return [dict(vars(place)) for place in places]


def same(before):
    # Libraries import some of their parts when they are used first.
    return all(old[name] is new[name] for old, new in zip(before, names()) for name in old)


def test_names_are_restored():
    before, cell = names(), known.made(1.0).__closure__
    for name in ("attention_by_heads", "gelu_erf", "closure", "decorated", "tanh_of_numbers", "softmax_of_numbers"):
        ulplab.bound_of(FUNCTIONS[name].function, FUNCTIONS[name].inputs)
    zeros = np.zeros

    def closed(x):
        return zeros(x.shape) + x

    ulplab.bound_of(closed, (X,))
    assert closed.__closure__[0].cell_contents is np.zeros and cell[0].cell_contents is np.maximum

    def fails(x):
        if type(x) is not np.ndarray:
            raise KeyError("only here")
        return x

    with pytest.raises(ValueError, match=r"not judged: .*translation to torch fails: KeyError: 'only here' \(test_functions_numpy.py:\d+"):
        ulplab.bound_of(fails, (X,))
    with pytest.raises(ZeroDivisionError):
        ulplab.bound_of(lambda x: 1 / 0, (X,))
    assert same(before)


def test_modules_that_are_imported_meanwhile_have_numpys_own(tmp_path, monkeypatch):
    (tmp_path / "imported_meanwhile.py").write_text("from numpy import float32, zeros\n")
    monkeypatch.syspath_prepend(tmp_path)

    def function(x):
        if type(x) is not np.ndarray:
            import imported_meanwhile

            assert imported_meanwhile.zeros is np.zeros
        return x * 2

    ulplab.assert_close(2 * X, op=function, inputs=(X,))
    assert sys.modules["imported_meanwhile"].zeros is np.zeros and sys.modules.pop("imported_meanwhile").float32 is np.float32


def test_inputs_stay_as_they_are():
    def overwrites(x):
        x *= 2
        return x

    x = X.copy()
    ulplab.assert_close(2 * X, op=overwrites, inputs=(x,))
    assert np.array_equal(x, X)


def test_other_threads_have_numpy_as_it_is():
    found = []

    def worker():
        found.append(type(np.zeros(3)) is np.ndarray and isinstance(np.float32(1), np.float32) and type(np.array([1.0])) is np.ndarray)

    def function(x):
        thread = threading.Thread(target=worker)
        thread.start()
        thread.join()
        return x * 2

    ulplab.bound_of(function, (X,))
    assert found == [True, True]


def test_types_are_those_of_numpy_inside():
    def function(x):
        assert isinstance(x, np.ndarray) and isinstance(np.float32(1), np.float32)
        assert x.dtype == np.float32 and {np.float32: 1}[x.dtype.type] == 1 and np.dtype(np.float64) == "float64"
        assert np.finfo(x.dtype).eps == 2.0**-23 and np.issubdtype(x.dtype, np.floating) and np.zeros(2, np.float16).dtype == np.float16
        return x * np.float32(0.5)

    ulplab.assert_close(X / 2, op=function, inputs=(X,))


def of_the_first_call(x, seen=[]):  # noqa: B006
    seen.append(1)
    return x * len(seen)


@pytest.mark.parametrize(
    "function, why",
    [
        (lambda x: np.interp(x, [0, 1], [0, 1]), r"numpy\.interp \(test_functions_numpy\.py:\d+\): a function that is not followed"),
        (lambda x: np.cbrt(x), r"numpy\.cbrt .*not followed"),
        (lambda x: np.max(x, axis=1, initial=0.0), r"numpy\.max .*not followed as it is called: NotImplementedError"),
        (lambda x: x * float(x.sum()), r"ndarray\.item .*: a number of Python"),
        (lambda x: x * float(x[0, 0]), r"ndarray\.item .*: a number of Python"),
        (lambda x: x * np.array(x.sum().tolist()), r"ndarray\.tolist .*leaves"),
        (lambda x: np.frompyfunc(lambda v: v * 2, 1, 1)(x).astype(np.float32), r"numpy\..*not followed"),
        (lambda x: np.asarray(memoryview(np.ascontiguousarray(x)).tolist()), r"translation to torch fails: TypeError"),
        (lambda x: np.ma.masked_less(x, 0).filled(0), r"leaves the functions of numpy"),
        (lambda x: np.fft.fft(x).real, r".*numpy's function gives float\d+.* and its translation complex"),
        (lambda x: np.linalg.svd(x)[1], r"aten\.\w*svd"),
        (lambda x: x + np.random.rand(), r"numpy's function gives .*, and its translation"),
        (of_the_first_call, r"numpy's function gives .*, and its translation"),
        (lambda x: x if type(x) is np.ndarray else x.astype(np.float64), r"gives float32\[8, 96\], and its translation float64\[8, 96\]"),
        (lambda x: x if type(x) is np.ndarray else x[1:], r"gives float32\[8, 96\], and its translation float32\[7, 96\]"),
        (lambda x: np.exp(x) if type(x) is np.ndarray else np.exp(x) * (1 + 1e-5), r"numpy's function gives .*, and its translation"),
        (lambda x: torch.exp(x) if type(x) is not np.ndarray else np.exp(x), r"translation to torch fails: TypeError"),
        (lambda x: np.vectorize(lambda v: v * 2.0)(np.tile(x, (9, 1))), r"numpy\.vectorize of 6,912 elements"),
        (lambda x: np.array([None, x], dtype=object)[1], r""),
    ],
)
def test_what_is_not_followed_is_not_judged(function, why):
    got = np.exp(X)
    for _ in range(2):
        with pytest.raises(ValueError, match=f"^not judged: .*{why}"):
            ulplab.assert_close(got, op=function, inputs=(X,), dtype="any")


def test_arrays_that_are_kept_are_arrays_of_numpy():
    kept = functools.cache(lambda n: np.arange(n) * 0.1)

    def function(x):
        return x + kept(96)

    ulplab.assert_close((X + np.arange(96, dtype=np.float32) * np.float32(0.1)), op=function, inputs=(X,))
    assert type(kept(96)) is np.ndarray


def test_gradients():
    w = normal(96)

    def function(x, w):
        out = np.zeros(x.shape)
        for i in range(len(x)):
            out[i] = x[i] / np.sqrt(np.mean(x[i] ** 2) + 1e-6)
        return out * w

    x, v, dy = (torch.from_numpy(one).double().requires_grad_() for one in (X, w, normal(8, 96)))
    y = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * v
    dx, dw = (one.float().numpy() for one in torch.autograd.grad(y, [x, v], dy))
    words = dict(op=function, inputs=(X, w), grads={"dx": 0, "dw": 1}, grad_output=dy.detach().float().numpy())
    ulplab.assert_close({"out": stored(function(X, w)), "dx": dx, "dw": dw}, **words)
    with pytest.raises(AssertionError, match=r"dw \(float32\[96\]\)"):
        ulplab.assert_close({"out": stored(function(X, w)), "dx": dx, "dw": dw * np.float32(1.001)}, **words)


def test_inputs_of_all_kinds():
    narrow = X.astype(ml_dtypes.bfloat16)

    def scaled(x, scale, by=2):
        return softmax(x.astype(np.float32) * scale) * by

    wide = narrow.astype(np.float32)
    inputs = dict(x=narrow, scale=np.float32(0.3), by=3)
    got = scaled(wide, np.float32(0.3), 3).astype(ml_dtypes.bfloat16)
    ulplab.assert_close(got, op=scaled, inputs=inputs, dtype="bfloat16")
    with pytest.raises(AssertionError, match="expected float32"):
        ulplab.assert_close(got, op=scaled, inputs=inputs)
    with pytest.raises(AssertionError, match="outside"):
        ulplab.assert_close((got.astype(np.float32) * 1.02).astype(ml_dtypes.bfloat16), op=scaled, inputs=inputs, dtype="bfloat16")
    ulplab.assert_close(torch.from_numpy(scaled(wide, np.float32(0.3))), op=scaled, inputs=(narrow, 0.3))
    ulplab.assert_close(kernel=scaled, op=scaled, inputs=dict(x=X, scale=0.5))
    codes = X.astype(ml_dtypes.float8_e4m3fn)
    ulplab.assert_close(codes.astype(np.float32) * 3, op=lambda x: x.astype(np.float32) * 3, inputs=(codes,))
    swapped = X.astype(">f4")
    ulplab.assert_close(softmax(X), op=softmax, inputs=(swapped[::-1][::-1],))
    with pytest.raises(TypeError, match="some are arrays of numpy, and some are tensors of torch"):
        ulplab.assert_close(np.exp(X), op=lambda x, y: x, inputs=(X, torch.from_numpy(X)))


def test_a_reference_in_f64_promises_no_type():
    right = known.softmax_f64(X)
    for dtype in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16):
        ulplab.assert_close(right.astype(dtype), op=known.softmax_f64, inputs=(X,))
    with pytest.raises(AssertionError, match="expected float64"):
        ulplab.assert_close(right.astype(np.int32), op=known.softmax_f64, inputs=(X,))
    with pytest.raises(AssertionError, match="expected bfloat16, as dtype= says"):
        ulplab.assert_close(stored(right), op=known.softmax_f64, inputs=(X,), dtype="bfloat16")


def test_audit_and_bound_of():
    said = ulplab.audit(lambda got, want: np.allclose(got, want, 1e-5, 1e-6), op=known.layer_norm, inputs=FUNCTIONS["layer_norm"].inputs)
    assert said.right_passes and "a missing term of sub (functions_numpy.py:" in str(said.noticed) and len(said.noticed) >= 8
    bound = ulplab.bound_of(known.attention, FUNCTIONS["attention"].inputs)
    assert np.abs(bound.value - known.attention(*FUNCTIONS["attention"].inputs)).max() < 1e-6 and bound.dtype == "float64"
    assert {line for _, line, _ in bound.largest_terms()} <= {f"functions_numpy.py:{at}" for at in range(20, 100)}
    assert set(ulplab.bound_of(known.lstm, FUNCTIONS["lstm"].inputs)) == {"out", "c"}


def test_scipy_special():
    special = pytest.importorskip("scipy.special")
    for function in (
        lambda x: x * special.expit(x),
        lambda x: 0.5 * x * (1 + special.erf(x / np.sqrt(2))),
        lambda x: special.softmax(x, axis=-1),
        lambda x: special.log_softmax(x.astype(np.float64), axis=-1),
        lambda x: special.logsumexp(x, axis=-1, keepdims=True),
        lambda x: special.softmax(x),
    ):
        right = stored(function(X.astype(np.float64)))
        ulplab.assert_close(right, op=function, inputs=(X,))
        with pytest.raises(AssertionError):
            ulplab.assert_close(right * np.float32(1.001), op=function, inputs=(X,))


def test_torch_is_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(TypeError, match="needs torch; install it"):
        ulplab.assert_close(X, op=softmax, inputs=(X,))


def test_inputs_of_torch_next_to_those_of_numpy_are_refused():
    with pytest.raises(TypeError, match="some are arrays of numpy, and some are tensors of torch"):
        ulplab.assert_close(2 * X, op=np.add, inputs=(X, torch.ones(X.shape)))


def test_a_function_without_arrays_is_no_function_of_numpy():
    with pytest.raises(TypeError, match="gives a ndarray, expected a tensor.*; a function of numpy needs an array of numpy among its inputs"):
        ulplab.assert_close(np.arange(3.0), op=lambda n: np.arange(float(n)), inputs=(3,))
