"""Bounds hold for right kernels, and planted faults are outside them and are named."""

import os
import re
import threading
import time

import kernels
import numpy as np
import pytest
from draws import GIVEN, KERNELS, OPERATIONS, SMALL, repeated
from kernels import normal
from ml_dtypes import bfloat16

import ulplab

TYPES = [bfloat16, np.float16, np.float32]
# Draws for each operation; ULPLAB_DRAWS=2000 makes about ten thousand of them.
DRAWS = int(os.environ.get("ULPLAB_DRAWS", "30"))


@pytest.mark.filterwarnings("ignore::ulplab.UlplabWarning")
@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("op", OPERATIONS)
def test_no_right_kernel_is_outside(op, dtype):
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        given = OPERATIONS[op](rng, dtype)
        if seed % 2:
            given = repeated(rng, given)
        got = KERNELS[op](rng, **given, dtype=dtype)
        try:
            ulplab.assert_close(got, op=op, inputs=given, mean_error="fail")
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from None
        except ValueError as error:
            # Draws without tokens, or of no elements.
            nothing = any(np.size(one) == 0 or name == "k" and one == 0 for name, one in given.items())
            assert "not judged" in str(error) and nothing, f"seed {seed}: {error}"


FAULTS = [
    (operation["name"], fault) for operation in ulplab.reference.operations() for fault, _ in operation["faults"]
]


@pytest.mark.parametrize(("op", "fault"), FAULTS)
def test_every_fault_is_outside_and_named(op, fault):
    named = 0
    for given in GIVEN[op](np.random.default_rng(7)):
        right, wrong = (
            ulplab.reference.compute(op, dtype="bfloat16", fault=planted, **given) for planted in (None, fault)
        )
        if not isinstance(right, dict):
            right, wrong = {None: right}, {None: wrong}
        for output in right:
            # What is exact may need more digits, such as a large index.
            dtype = np.float32 if right[output].exact else bfloat16
            rounded = [kernels.rounded(found[output].value, dtype) for found in (right, wrong)]
            ulplab.assert_close(rounded[0], op=op, inputs=given, output=output, dtype="any")
            if rounded[0].tobytes() == rounded[1].tobytes():
                continue
            with pytest.raises(AssertionError) as error:
                ulplab.assert_close(rounded[1], op=op, inputs=given, output=output, dtype="any")
            assert f"looks like {fault}: " in str(error.value)
            named += 1
    assert named > 0


@pytest.mark.parametrize("size", [5120, 8192])
def test_what_published_tolerances_let_pass(size):
    """vLLM's test_rms_norm: atol = rtol = 1e-2, x of N(0, 1) / (2 H), bf16."""
    rng = np.random.default_rng(0)
    x = normal(rng, 64, size, scale=1 / (2 * size))
    weight = kernels.rounded(1 + 0.1 * rng.standard_normal(size), bfloat16)
    given = {"x": x, "weight": weight, "eps": 1e-6}
    want = kernels.rmsnorm(rng, x, weight, 1e-6)
    for fault in ("no_variance", "half_of_row", "neighbour_row"):
        wrong = kernels.rounded(ulplab.reference.rmsnorm(**given, fault=fault).value, bfloat16)
        ulplab.assert_close(wrong, want, rtol=1e-2, atol=1e-2)
        with pytest.raises(AssertionError, match=f"looks like {fault}"):
            ulplab.assert_close(wrong, op="rmsnorm", inputs=given)


def test_a_cast_before_the_weight_is_told_apart():
    rng = np.random.default_rng(1)
    given = {"x": normal(rng, 64, 4096), "weight": kernels.rounded(1 + 0.1 * rng.standard_normal(4096), bfloat16)}
    got = kernels.rmsnorm(rng, **given, eps=1e-6, cast="before_weight")
    with pytest.raises(AssertionError, match='with cast = "before_weight", whose bound is wider, 0 elements') as told:
        ulplab.assert_close(got, op="rmsnorm", inputs=given)
    # A choice that only allows more names no fault.
    assert "looks like" not in str(told.value)
    ulplab.assert_close(got, op="rmsnorm", inputs=given, cast="before_weight")


def test_scaled_moved_and_unsigned_outputs_are_named():
    rng = np.random.default_rng(2)
    given = {"x": normal(rng, 20, 64)}
    got = kernels.softmax(rng, **given)
    for wrong, named in [
        (kernels.rounded(got.astype(np.float32) * 1.05, bfloat16), r"times 1\.05"),
        (np.roll(got, -1, 0), "the next row"),
        (np.zeros_like(got), "all zeros"),
        (-got, "the other sign"),
    ]:
        with pytest.raises(AssertionError, match=f"looks like .*{named}"):
            ulplab.assert_close(wrong, op="softmax", inputs=given)


def test_bounds_use_half_the_spacing():
    value = ulplab.reference.compute("rope", x=np.ones((1, 1, 2)), cos=np.ones((1, 1)), sin=np.zeros((1, 1)))
    assert value.value.tolist() == [[[1.0, 1.0]]]
    for name, digits in (("bfloat16", 8), ("float16", 11), ("float32", 24), ("float64", 53)):
        bound = value.bound(name)
        assert 2.0**-digits <= bound.min() <= bound.max() <= 2.0**-digits + 2.0**-22
    assert value.bound(np.float16).tolist() == value.bound("float16").tolist()


@pytest.mark.parametrize(
    ("op", "given", "said"),
    [
        ("rmsnrom", {}, "op = 'rmsnrom' is not an operation; expected one of .*; did you mean 'rmsnorm'"),
        ("rmsnorm", {}, r"'x' (\[..., C\]) is missing"),
        ("rmsnorm", {"x": np.ones((2, 3)), "wieght": np.ones(3)}, "takes no 'wieght'; did you mean 'weight'?"),
        ("rmsnorm", {"x": np.ones((2, 3)), "weight": np.ones(4)}, r"'weight' is \[4\], expected \[3\]"),
        ("rmsnorm", {"x": np.ones((2, 3)), "cast": "never"}, "'cast' is 'never', expected one of 'after_weight', 'before_weight'"),
        ("rmsnorm", {"x": np.ones((2, 3)), "eps": np.ones(3)}, "'eps' is a tensor, expected a finite number"),
        ("matmul", {"a": np.ones((2, 3)), "b": np.ones((4, 5))}, r"'a' is \[2, 3\] and 'b' is \[4, 5\]"),
        ("silu_and_mul", {"x": np.ones((2, 3))}, r"'x' is \[2, 3\], expected \[..., 2 C\]"),
        ("rmsnorm", {"x": np.ones((9, 9)), "eps": -1.0}, "eps = -1, expected 0 or more"),
        ("rmsnorm", {"x": np.ones((9, 9)), "eps": np.float32(np.nan)}, "'eps' is NaN, expected a finite number"),
    ],
)
def test_mistakes_are_named(op, given, said):
    with pytest.raises(ValueError, match=said.replace("(\\[", "\\(\\[").replace("\\])", "\\]\\)").replace("?", r"\?")):
        ulplab.assert_close(np.ones((2, 2), np.float32), op=op, inputs=given)


# Operations that judge at size 0: without entries, a token attends to its window. All others have no elements, or are a sum of nothing.
JUDGED_AT_ZERO = {"sparse_attention"}


@pytest.mark.filterwarnings("ignore::ulplab.UlplabWarning")
@pytest.mark.parametrize("size", [0, 1, 2, 32])
def test_sizes_that_are_small_or_zero(size):
    """Neither what is right nor what is wrong, by all faults, ends in anything but a verdict."""
    given = {op: make(size) for op, make in SMALL.items()}
    for op in given:
        found = ulplab.reference.compute(op, **given[op])
        right = (next(iter(found.values())) if isinstance(found, dict) else found).value.astype(np.float32)
        if size == 0 and op not in JUDGED_AT_ZERO:
            with pytest.raises(ValueError, match="not judged: .* which has no elements to com(pare|pute from)"):
                ulplab.assert_close(right, op=op, inputs=given[op])
        else:
            ulplab.assert_close(right, op=op, inputs=given[op])
            with pytest.raises(AssertionError, match="elements are outside"):
                ulplab.assert_close(right + 1, op=op, inputs=given[op])
        ulplab.audit(lambda got, want: True, op, given[op])
    with pytest.raises(AssertionError, match=r"rmsnorm gives 'y' of shape \[3, \d+\], got \[2, 2\]"):
        ulplab.assert_close(np.ones((2, 2)), op="rmsnorm", inputs=given["rmsnorm"])


def test_nan_in_a_query_is_nan_in_its_row():
    rng = np.random.default_rng(0)
    given = {name: rng.standard_normal((1, 5, 2, 8)).astype(np.float32) for name in "qkv"}
    given["q"][0, 1, 0, 3] = np.nan
    got = KERNELS["attention"](rng, **given, dtype=np.float32)["o"]
    got[0, 1, 0] = np.nan
    ulplab.assert_close(got, op="attention", inputs=given)
    got[0, 1, 0] = 0
    with pytest.raises(AssertionError, match="8 of 80 elements are outside"):
        ulplab.assert_close(got, op="attention", inputs=given)


def test_a_masked_element_leaves_a_bound():
    """Its logarithm is -inf, whose error would be infinite, and would be that of the whole row."""
    x = np.array([[1.0, -np.inf, 2.0, 0.5], [3.0, 1.0, -2.0, 0.0]], np.float32)
    got = kernels.softmax(np.random.default_rng(0), x, 0.5, np.float32)
    assert np.isfinite(ulplab.reference.softmax(x=x, scale=0.5).error).all()
    ulplab.assert_close(got, op="softmax", inputs={"x": x, "scale": 0.5})
    got[0, 2] *= 1.001
    with pytest.raises(AssertionError, match="1 of 8"):
        ulplab.assert_close(got, op="softmax", inputs={"x": x, "scale": 0.5})


def test_equal_elements_have_no_variance():
    """1/49 is not exact: their mean is, if it is a quotient. What is divided by nothing is NaN, not a number."""
    x = np.concatenate([np.ones((1, 49)), np.arange(49.0)[None]]).astype(np.float32)
    want = ulplab.reference.layernorm(x=x, eps=0.0)
    assert np.isnan(want.value[0]).all() and np.isfinite(want.value[1]).all()
    got = kernels.layernorm(np.random.default_rng(0), x, eps=0.0, dtype=np.float32)
    ulplab.assert_close(got, op="layernorm", inputs={"x": x, "eps": 0.0})
    with pytest.raises(AssertionError, match="49 of 98"):
        ulplab.assert_close(np.where(np.isnan(got), np.float32(0), got), op="layernorm", inputs={"x": x, "eps": 0.0})


@pytest.mark.parametrize("scores", ["sigmoid", "sqrtsoftplus", "softmax"])
def test_a_logit_far_below_zero_leaves_a_bound(scores):
    """e to the 10,000 is infinite, in f64, too: the score is 0, and what it may be off by is known."""
    rng = np.random.default_rng(0)
    given = {"x": normal(rng, 3, 8), "w13": normal(rng, 3, 12, 8), "w2": normal(rng, 3, 8, 6), "top_k": 2, "scores": scores}
    given["logits"] = np.array([[-1e4, 1.0, 0.5], [0.1, -1e4, 2.0], [1.0, 0.2, -1e4]], np.float32)
    with np.errstate(over="ignore"):
        got = KERNELS["moe"](rng, **given, dtype=np.float32)
    want = ulplab.reference.moe(**given)
    assert np.isfinite(want.error).all() and np.isfinite(want.value).all()
    ulplab.assert_close(got, op="moe", inputs=given)
    with pytest.raises(AssertionError, match="looks like the right numbers times 1.01"):
        ulplab.assert_close(got * np.float32(1.01), op="moe", inputs=given)


def test_what_a_type_cannot_hold_is_infinite():
    given = {"a": np.full((1, 64), 40.0), "b": np.full((64, 1), 40.0)}
    ulplab.assert_close(np.full((1, 1), np.inf, np.float16), op="matmul", inputs=given)
    with pytest.raises(AssertionError):
        ulplab.assert_close(np.full((1, 1), 65504, np.float16), op="matmul", inputs=given)


def test_scores_that_are_scaled_first_and_far_from_zero():
    rng = np.random.default_rng(3)
    for x, scale in [(3e4 + 3 * rng.standard_normal((16, 513)), 0.1), (3 * rng.standard_normal((16, 513)), 30.0)]:
        x, scale = x.astype(np.float32), float(np.float32(scale))
        ulplab.assert_close(kernels.softmax(rng, x, scale, np.float32), op="softmax", inputs={"x": x}, scale=scale)
        c = np.float32(scale * np.log2(np.e))
        powers = np.exp2(x * c - x.max(-1, keepdims=True) * c)
        ulplab.assert_close(powers / powers.sum(-1, keepdims=True), op="softmax", inputs={"x": x}, scale=scale)


def test_integer_sums_are_exact():
    given = {"a": np.full((2, 4096), 127, np.int8), "b": np.full((4096, 3), 127, np.int8)}
    right = np.full((2, 3), 127 * 127 * 4096, np.int32)
    ulplab.assert_close(right, op="matmul", inputs=given, accumulate="i32")
    right[1, 2] += 1
    with pytest.raises(AssertionError, match="1 of 6"):
        ulplab.assert_close(right, op="matmul", inputs=given, accumulate="i32")


def test_other_threads_run_meanwhile():
    x = np.random.default_rng(1).standard_normal((4096, 2048), dtype=np.float32)
    worker = threading.Thread(target=lambda: ulplab.reference.softmax(x=x).value)
    began = last = time.perf_counter()
    longest = 0.0
    worker.start()
    while worker.is_alive():
        time.sleep(0)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    # A thread that held the interpreter would hold it for as long as it computes.
    assert longest < 0.5 * (last - began), (longest, last - began)


# Of the kind: words in another case, words of another function, an argument of `reference.compute` next to tensors.
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: ulplab.assert_close(x, op="rmsnorm", inputs={"x": x}, acumulate="f32"), "takes no 'acumulate'; did you mean 'accumulate'?"),
        (lambda x: ulplab.assert_close(x, op="rmsnorm", inputs={"x": x}, cats="after_weight"), "takes no 'cats'; did you mean 'cast'?"),
        (lambda x: ulplab.assert_close(x, x.copy(), rtoll=1e-3), "takes no 'rtoll'; did you mean 'rtol'?"),
        (lambda x: ulplab.assert_close(x, x.copy(), rtol=1e-3, dtyp="float32"), "takes no 'dtyp'; did you mean 'dtype'?"),
        (lambda x: ulplab.assert_close(kernl=lambda x: x, op="rmsnorm", inputs={"x": x}), "takes no 'kernl'; did you mean 'kernel'?"),
        (lambda x: ulplab.reference.rmsnorm(x=x, acumulate="f32"), "takes no 'acumulate'; did you mean 'accumulate'?"),
        (lambda x: ulplab.quantize(x, "nvfp4", rul="te"), "quantize takes no 'rul'; did you mean 'rule'?"),
        (lambda x: ulplab.calibrate(lambda x: x, "rmsnorm", seds=3), "calibrate takes no 'seds'; did you mean 'seeds'?"),
        (lambda x: ulplab.assert_invariant(lambda x: x, {"x": x}, bach=1), "assert_invariant takes no 'bach'; did you mean 'batch'?"),
        (lambda x: ulplab.replay("calls", acumulate="f32"), "replay takes no 'acumulate'; did you mean 'accumulate'?"),
    ],
)
def test_misspelt_words_have_their_nearest(call, said):
    with pytest.raises(TypeError, match=re.escape(said)):
        call(np.ones((8, 16), np.float32))


def test_a_bound_that_is_only_wider_is_no_diagnosis():
    """f16 sums where f32 is promised: a word that allows more comes last, and is not what the output looks like."""
    rng = np.random.default_rng(5)
    given = {"x": normal(rng, 64, 512), "weight": kernels.rounded(1 + 0.1 * rng.standard_normal(512), bfloat16)}
    right = ulplab.reference.rmsnorm(**given).value
    off = kernels.rounded(right * (1 + 2.0**-9 * rng.choice([-1, 1], right.shape)), bfloat16)
    with pytest.raises(AssertionError) as told:
        ulplab.assert_close(off, op="rmsnorm", inputs=given)
    assert "looks like cast" not in str(told.value)
    # A fault is named before it.
    wrong = kernels.rounded(ulplab.reference.rmsnorm(**given, fault="neighbour_row").value, bfloat16)
    with pytest.raises(AssertionError, match="looks like neighbour_row"):
        ulplab.assert_close(wrong, op="rmsnorm", inputs=given)


def test_one_index_is_the_only_one():
    got = np.zeros((1, 4, 4, 8), np.float32)
    with pytest.raises(AssertionError) as told:
        ulplab.assert_close(got, got + 1, rtol=1e-3)
    assert "all 1 " not in str(told.value)
    want = np.ones((1, 8, 8), np.float32)
    got = np.where(np.random.default_rng(0).random(want.shape) < 0.5, 0, want).astype(np.float32)
    with pytest.raises(AssertionError, match="the only index of dimension 0"):
        ulplab.assert_close(got, want, rtol=1e-3)
