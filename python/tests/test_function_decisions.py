"""assert_close with functions that decide by comparing numbers, and with rows that are undefined."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
import ulplab  # noqa: E402

RNG = torch.Generator().manual_seed(0)
X = torch.randn(32, 256, generator=RNG)


def best(x, w):
    return F.linear(x, w).argmax(-1)


def of_two_best(rng):
    """Inputs of `best` whose row 0 has two largest sums, which differ by less than their errors."""
    w = torch.randn(8, 256, generator=rng)
    w[1] = w[0].flip(0)
    x = torch.randn(4, 256, generator=rng)
    x[0] = 10 * (w[0] + w[1])
    return x, w


def test_decisions_within_their_errors():
    x, w = of_two_best(RNG)
    right = best(x.double(), w.double())
    for first in (0, 1):
        got = right.clone()
        got[0] = first
        ulplab.assert_close(got, op=best, inputs=(x, w))
    got[0] = 5
    with pytest.raises((AssertionError, ValueError), match="not determined|outside"):
        ulplab.assert_close(got, op=best, inputs=(x, w))
    got = right.clone()
    got[1] = (got[1] + 1) % 8
    with pytest.raises(AssertionError):
        ulplab.assert_close(got, op=best, inputs=(x, w))


@pytest.mark.parametrize("seed", [0, 5, 7])
def test_a_decision_within_its_errors_has_two_sides(seed):
    x, w = of_two_best(torch.Generator().manual_seed(seed))
    got = best(x.double(), w.double())
    for first in (0, 1):
        got[0] = first
        ulplab.assert_close(got, op=best, inputs=(x, w))
    got[0] = 2
    with pytest.raises((AssertionError, ValueError), match="not determined|outside"):
        ulplab.assert_close(got, op=best, inputs=(x, w))


TURNS = torch.randn(256, 8, generator=RNG)
TURNS[:, 3] = TURNS[:, 5]


def turned(x, w):
    y = x @ w
    return torch.where(y[:, 3:4] > y[:, 5:6], x, -x)


def test_a_flip_allows_what_either_side_gives_and_nothing_else():
    for right in (X.clone(), -X, torch.where(torch.arange(32)[:, None] % 2 == 0, X, -X)):
        ulplab.assert_close(right, op=turned, inputs=(X, TURNS))
    for wrong in (3 * X, 0.5 * X, 1.001 * X, 0 * X):
        with pytest.raises(ValueError, match="not determined: .*hang on a decision"):
            ulplab.assert_close(wrong, op=turned, inputs=(X, TURNS))


def kept(x):
    """The largest of each row, to a share of 0.9 of their softmax."""
    order, at = x.sort(-1, descending=True)
    share = order.softmax(-1)
    keep = torch.zeros_like(x, dtype=torch.bool).scatter(-1, at, (share.cumsum(-1) - share) < 0.9)
    return x.masked_fill(~keep, -torch.inf)


def test_either_of_equal_scores_may_be_kept():
    scores = torch.randint(-4, 4, (4, 32), generator=RNG).float()
    ulplab.assert_close(kept(scores), op=kept, inputs=(scores,))
    other = kept(scores.flip(-1)).flip(-1)
    assert not torch.equal(other, kept(scores))
    ulplab.assert_close(other, op=kept, inputs=(scores,))
    less = other.clone()
    less[0, int(other[0].argmax())] = -torch.inf
    with pytest.raises(AssertionError):
        ulplab.assert_close(less, op=kept, inputs=(scores,))


def test_rows_that_are_undefined_do_not_hide_others():
    mask = torch.where(torch.arange(32) == 3, -torch.inf, 0.0)[:, None]

    def attention(x, w):
        return (x @ x.T + mask).softmax(-1) @ (x @ w)

    got = attention(X, TURNS)
    assert bool(got[3].isnan().all())
    ulplab.assert_close(got, op=attention, inputs=(X, TURNS))
    with pytest.raises(AssertionError, match="are outside"):
        ulplab.assert_close(got * 1.001, op=attention, inputs=(X, TURNS))


def test_a_side_that_is_taken_is_not_exchanged_for_another():
    # Two elements are the largest, and one of them has the gradient of the maximum; another one's gradient is as near as its bound.
    rng = torch.Generator().manual_seed(13)
    x = (torch.randn(5, 33, generator=rng) * 0.1 + 3).bfloat16()
    grad = torch.randn(5, 33, generator=torch.Generator().manual_seed(20)).bfloat16()

    def function(x):
        return (x - x.max(-1, keepdim=True).values).exp()

    leaf = x.clone().requires_grad_()
    out = function(leaf)
    (dx,) = torch.autograd.grad(out, leaf, grad)
    words = dict(op=function, inputs=(x,), grads={"dx": 0}, grad_output=grad, rounds="every_step")
    ulplab.assert_close({"dx": dx}, **words)
    wrong = dx.clone()
    wrong[3, 31] += 0.25
    with pytest.raises((AssertionError, ValueError)):
        ulplab.assert_close({"dx": wrong}, **words)


def test_an_exponential_whose_argument_is_off_by_more_than_its_derivative_tells():
    # The logarithm is stored in bf16 near 1000, where it is off by up to 2.
    x = (torch.randn(8, 96, generator=torch.Generator().manual_seed(3)) + 1000).bfloat16()

    def function(x):
        return (x - x.logsumexp(-1, keepdim=True)).exp()

    words = dict(op=function, inputs=(x,), rounds="as_written", dtype="any")
    exact = x.double().logsumexp(-1, keepdim=True)
    for off in (-1.9, -1.0, 1.9):
        ulplab.assert_close((x.double() - exact - off).exp(), **words)
    with pytest.raises(AssertionError):
        ulplab.assert_close((x.double() - exact + 9).exp(), **words)


KINKED = {
    "relu": (F.relu, [0.0]),
    "hardtanh": (F.hardtanh, [-1.0, 1.0]),
    "leaky_relu": (F.leaky_relu, [0.0]),
    "elu": (lambda x: F.elu(x, 2.0), [0.0]),
    "abs": (torch.abs, [0.0]),
    "clamp": (lambda x: x.clamp(-1, 1), [-1.0, 1.0]),
    "softshrink": (F.softshrink, [-0.5, 0.5]),
    "hardswish": (F.hardswish, [-3.0, 3.0]),
}


@pytest.mark.parametrize("name", KINKED)
def test_either_side_of_an_exact_kink_is_right(name):
    function, edges = KINKED[name]
    x = torch.randn(6, 40, generator=torch.Generator().manual_seed(1))
    for at, edge in enumerate(edges):
        x[:, at::4] = edge
    grad = torch.randn(6, 40, generator=torch.Generator().manual_seed(2))

    def derivative(x):
        leaf = x.clone().requires_grad_()
        return torch.autograd.grad(function(leaf), leaf, grad)[0]

    words = dict(op=function, inputs=(x,), grads={"dx": 0}, grad_output=grad)
    for side in (-1e-6, 0.0, 1e-6):
        moved = torch.where(torch.isin(x, torch.tensor(edges)), x + side, x)
        ulplab.assert_close({"dx": derivative(moved)}, **words)
    with pytest.raises((AssertionError, ValueError), match="not determined|outside"):
        ulplab.assert_close({"dx": derivative(x) + grad * 0.37 * (x == edges[0])}, **words)
    with pytest.raises(AssertionError, match="outside"):
        ulplab.assert_close({"dx": derivative(x) + grad * 0.01 * (x != edges[0]) * (x != edges[-1])}, **words)


def test_all_kinks_may_be_on_one_side_in_a_sum():
    x, w, grad = (torch.randn(shape, generator=torch.Generator().manual_seed(4)) for shape in ((6, 40), (40,), (6, 40)))
    x[:, ::3] = 0
    for open_ in (x * w > 0, x * w >= 0):
        got = {"dx": grad * open_ * w, "dw": (grad * open_ * x).sum(0)}
        ulplab.assert_close(got, op=lambda x, w: F.relu(x * w), inputs=(x, w), grads={"dx": 0, "dw": 1}, grad_output=grad)
