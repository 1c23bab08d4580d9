"""Messages to a user of functions: on single elements, on outputs without a bound, on names that no operation has."""

import re
import sys

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import ulplab  # noqa: E402

RNG = torch.Generator().manual_seed(0)
X = torch.randn(8, 6, generator=RNG)


@pytest.mark.parametrize("elements", [[0, 1], [(0, 0)], -1, 2.5, True, "3", None])
def test_elements_are_a_count(elements):
    said = f"bound_of: elements = {elements!r} does not say how many; expected an integer of at least 0; the bound of a single"
    with pytest.raises(ValueError, match=re.escape(said)):
        ulplab.bound_of(torch.exp, (X,), elements=elements)


def test_an_element_has_a_number_or_indices():
    bound = ulplab.bound_of(torch.exp, (X,), elements=np.int64(0))
    for element in ((0,), (0, 0, 0), (8, 0), (0, -7), 48, -49, [0, 1], 2.5, (0, 1.5), "0", True, None):
        said = f"out: {element!r} names no element of [8, 6]; expected a number below 48, or a tuple of 2 indices; for several"
        asked = [lambda: bound.of(element), lambda: bound.ask([0, element])]
        for ask in asked + [lambda: bound.largest_terms(1, element)] * (element is not None):
            with pytest.raises(ValueError, match=re.escape(said)):
                ask()
    same = [bound.of(element) for element in (47, -1, (7, 5), (-1, -1), np.int64(47), (np.int32(7), 5))]
    assert all(one is same[0] for one in same) and same[0].bound > 0
    with pytest.raises(ValueError, match="out: 0 names no element of .0, 6.; expected a number below 0"):
        ulplab.bound_of(torch.exp, (X[:0],)).largest_terms()
    assert ulplab.bound_of(torch.sum, (X,)).of(()) == ulplab.bound_of(torch.sum, (X,)).of(0)


@pytest.mark.parametrize(
    "function, kind, why",
    [
        (torch.fft.fft, "complex64", "output 'out' is complex; expected real numbers, as of torch.view_as_real"),
        (lambda x: torch.linalg.svd(x)[1], "f64", "ulplab does not know its rounding error"),
        (lambda x: x * torch.rand(6), "f64", "random numbers"),
        (lambda x: x * x.sum().item(), "f64", ".item() of a computed number"),
    ],
)
def test_what_has_no_bound_has_no_deviation(function, kind, why):
    bound = ulplab.bound_of(function, (X,), elements=3)
    assert repr(bound).startswith(f"out: {kind}[") and "not judged: " in repr(bound) and "deviation" not in repr(bound)
    assert np.isnan(bound.sigma).all()
    for ask in (lambda: bound.of(0), lambda: bound.ask([0]), bound.largest_terms):
        with pytest.raises(ValueError, match=f"not judged: out: .*{re.escape(why)}"):
            ask()


def test_a_deviation_that_was_derived_is_stated():
    assert re.search(r"out: f64\[8, 6\], deviations of right kernels up to [1-9]\S*, sums in f32, in any order$", repr(ulplab.bound_of(torch.exp, (X,))))
    assert repr(ulplab.bound_of(lambda x: x.argmax(-1), (X,))) == "out: int64[8]"


TIGHT = "all of them are less than 2 times outside, and nothing known explains them: the bound may be too tight"


def test_a_bound_is_doubted_only_where_nothing_explains_what_is_just_outside():
    signs = np.random.default_rng(0).choice([-1, 1], X.shape)
    bound, named = ulplab.bound_of(torch.exp, (X,)), ulplab.reference.softmax(x=X)
    of_exp = np.array([bound.of(at).bound for at in range(X.numel())]).reshape(X.shape)

    def said(got, op=torch.exp, inputs=(X,)):
        with pytest.raises(AssertionError) as failed:
            ulplab.assert_close(torch.tensor(got), op=op, inputs=inputs, accumulate="f32")
        return str(failed.value)

    just = bound.value + 1.5 * signs * of_exp
    assert TIGHT in said(just) and TIGHT in said(named.value + 1.5 * signs * named.error, "softmax", {"x": X})
    # One element far outside, or NaN, is a fault; so are all of them, three times outside.
    for wrong in (1e-3, np.nan):
        far = just.copy()
        far[3, 3] += wrong
        assert "times outside, and nothing" not in said(far)
    assert "times outside, and nothing" not in said(bound.value + 3 * signs * of_exp)
    # A missing term explains them, and so do the roundings of another word.
    x = (1 + X.abs() / 8).bfloat16()
    with pytest.raises(AssertionError, match="48 of 48 (.|\n)* 1.5. times as much(.|\n)*looks like a missing term of add") as failed:
        ulplab.assert_close(x.clone(), op=lambda x: x + 0.006, inputs=(x,))
    assert "nothing known" not in str(failed.value)
    with pytest.raises(AssertionError, match="1.[0-9]* times as much(.|\n)*with rounds = as_written, whose bound is wider, 0 ") as failed:
        ulplab.assert_close(x * x + x, op=lambda x: x * x + x, inputs=(x,))
    assert "nothing known" not in str(failed.value)


@pytest.mark.parametrize(
    "name, near",
    [
        ("gellu", "; did you mean op=torch.nn.functional.gelu?"),
        ("softmx", "; did you mean 'softmax' or op=torch.nn.functional.softmax?"),
        ("RMSNorm", "; did you mean 'rmsnorm'"),
        ("zzzz", ""),
    ],
)
def test_a_misspelt_operation_has_its_nearest_names(name, near):
    asked = [
        lambda: ulplab.assert_close(X, op=name, inputs={"x": X}),
        lambda: ulplab.assert_close(X, op=name, inputs={"x": X}, causal=True),
        lambda: ulplab.assert_grad(torch.exp, op=name, inputs={"x": X}),
        lambda: ulplab.calibrate(torch.exp, name),
        lambda: ulplab.audit(lambda got, want: True, name, {"x": X}),
    ]
    said = rf"op = '{name}' is not an operation; expected one of attention, .*, or a function of torch, numpy or jax{re.escape(near)}"
    for ask in asked:
        with pytest.raises(ValueError, match=f"^{said}{'' if near.endswith(chr(39)) else '$'}"):
            ask()


def test_names_of_functions_are_those_of_an_imported_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch.nn.functional")
    with pytest.raises(ValueError, match="or a function of torch, numpy or jax$"):
        ulplab.assert_close(X, op="gellu", inputs={"x": X})


def _causal(mask):
    def attention(q, k, v):
        weights = (q @ k.mT / 4).masked_fill(mask, float("-inf")).softmax(-1)
        return weights @ v

    return attention


@pytest.mark.parametrize("by", [1, -1])
@pytest.mark.parametrize("made", ["masked_fill", "where", "attention"])
def test_a_mask_that_is_off_by_one_is_named(made, by):
    q, k, v = (torch.randn(2, 24, 16, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2, 3))
    mask = torch.ones(24, 24, dtype=torch.bool).triu(1)
    wrong = torch.ones(24, 24, dtype=torch.bool).triu(1 + by)
    of = {
        "masked_fill": _causal(mask),
        "where": lambda q, k, v: torch.where(mask, float("-inf"), q @ k.mT / 4).softmax(-1) @ v,
        "attention": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    }
    with pytest.raises(AssertionError, match="looks like the mask of .* off by one"):
        ulplab.assert_close(_causal(wrong)(q, k, v), op=of[made], inputs=(q, k, v))


def test_a_message_names_what_its_inputs_do_not_show():
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(1))

    def norm(x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-12)

    with pytest.raises(AssertionError, match="these inputs do not show: a missing term of add .test_function_messages.py:"):
        ulplab.assert_close(norm(x) * 1.01, op=norm, inputs=(x,))
    with pytest.raises(AssertionError) as said:
        ulplab.assert_close(norm(x * 1e-6) * 1.01, op=norm, inputs=(x * 1e-6,))
    assert "a missing term" not in str(said.value)
