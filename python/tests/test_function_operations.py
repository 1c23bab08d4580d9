"""assert_close with functions of torch that few use: right results pass, and results off by 1e-4 fail."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
import ulplab  # noqa: E402

RNG = torch.Generator().manual_seed(0)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def draw(*shape):
    return torch.randn(*shape, generator=RNG)


A, B, X = draw(6, 6), draw(6, 3), draw(4, 50)
SYMMETRIC = A @ A.T + torch.eye(6)
IDS = torch.randint(0, 20, (15,), generator=RNG)
AT = torch.randint(0, 4, (6, 5), generator=RNG)
OFFSETS = torch.tensor([0, 4, 4, 9])
TARGETS = torch.randint(1, 4, (2, 2), generator=RNG)
IMAGE, GRID = draw(2, 3, 8, 8), torch.rand(2, 5, 5, 2, generator=RNG) * 2 - 1
FREQUENCIES = torch.outer(torch.arange(5.0), torch.rand(4, generator=RNG))


def rotated(x, frequencies):
    """Rotary position embedding, as Llama has it."""
    turns = torch.polar(torch.ones_like(frequencies), frequencies)
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns.view(1, x.shape[1], 1, -1)).flatten(3).type_as(x)


def long_convolution(u, k):
    n = 2 * u.shape[-1]
    return torch.fft.irfft(torch.fft.rfft(u, n=n) * torch.fft.rfft(k, n=n), n=n)[..., : u.shape[-1]]


def spectrum(x):
    return torch.stft(x.reshape(2, -1), 16, return_complex=True, window=torch.hann_window(16)).abs()


def ctc(scores):
    return F.ctc_loss(scores.log_softmax(-1), TARGETS, torch.tensor([6, 5]), torch.tensor([2, 1]), reduction="none")


def state_space(a, c, u):
    return (c * torch.exp(a * (0.3 + 1j)) ** 2).real.sum(-1) + u.sum(-1)


def resized(mode, align=False):
    return lambda x: F.interpolate(x, scale_factor=1.7, mode=mode, align_corners=align)


def sampled(mode, padding):
    return lambda image, grid: F.grid_sample(image, grid, mode, padding, align_corners=False)


def scattered(kind, own):
    return lambda x: torch.ones(4, 5).scatter_reduce(0, AT, x, kind, include_self=own)


def bagged(mode):
    return lambda weight: F.embedding_bag(IDS, weight, OFFSETS, mode=mode)


def distances(p):
    return lambda a, b: torch.cdist(a, b, p)


# Function, inputs, and whether its gradients are judged, too.
OPERATIONS = {
    "rotary, complex": (rotated, (draw(2, 5, 3, 8), FREQUENCIES), True),
    "long convolution": (long_convolution, (draw(3, 100), draw(3, 100)), True),
    "spectrum": (spectrum, (draw(2, 64),), True),
    "Fourier mixing": (lambda x: torch.fft.fft(torch.fft.fft(x), dim=-2).real, (draw(3, 7, 8),), True),
    "shifted": (lambda x: torch.fft.fftshift(torch.fft.ifft(x)).imag, (draw(3, 9),), False),
    "complex state space": (state_space, (draw(3, 8), draw(3, 8), draw(3, 8)), True),
    "complex product": (lambda a, b: torch.view_as_real(torch.complex(a, b) @ torch.complex(b, a).mT), (draw(3, 5), draw(3, 5)), True),
    "complex angle": (lambda a, b: (torch.complex(a, b) / torch.complex(b, a + 3)).angle(), (draw(3, 5), draw(3, 5)), False),
    "inverse": (torch.linalg.inv, (A,), True),
    "inverses": (torch.linalg.inv, (draw(3, 5, 5),), False),
    "solve": (torch.linalg.solve, (A, B), True),
    "solve, right": (lambda a, b: torch.linalg.solve(a, b, left=False), (A, B.T), False),
    "determinant": (torch.linalg.det, (A,), True),
    "log determinant": (lambda a: torch.linalg.slogdet(a)[1], (A,), True),
    "cholesky": (torch.linalg.cholesky, (SYMMETRIC,), True),
    "triangular": (lambda a, b: torch.linalg.solve_triangular(a.tril(), b, upper=False), (A, B), True),
    "logcumsumexp": (lambda x: x.logcumsumexp(1), (5 * X,), False),
    "ctc": (ctc, (draw(6, 2, 4),), True),
    "bilinear form": (F.bilinear, (draw(5, 4), draw(5, 3), draw(6, 4, 3), draw(6)), True),
    "softplus, early": (lambda x: F.softplus(x, 2, 3), (3 * X,), True),
    "logaddexp": (lambda a, b: torch.logaddexp(a.masked_fill(a > 1, -torch.inf), b.masked_fill(a > 1, -torch.inf)), (X, X.flip(1)), False),
    "renorm": (lambda x: x.renorm(2, 0, 1.0), (X,), True),
    "quantile": (lambda x: x.quantile(0.3, dim=1), (X,), False),
    "nansum": (lambda x: x.where(x < 1, torch.nan).nansum(1), (X,), False),
    "correlation": (torch.corrcoef, (X,), True),
    "cumulative trapezoid": (lambda x: torch.cumulative_trapezoid(x, dim=1), (X,), True),
    "unfold": (lambda x: x.unfold(1, 5, 3).mean(-1), (X,), True),
    "triplet": (F.triplet_margin_loss, (X, draw(4, 50), draw(4, 50)), False),
    "gaussian": (F.gaussian_nll_loss, (X, draw(4, 50), draw(4, 50).abs() + 0.1), False),
    "masked select": (lambda x: x.masked_select(x > 0.3).exp(), (X,), True),
    "heaviside, copysign": (lambda x: torch.copysign(x.exp(), x) * torch.heaviside(x, x), (X,), False),
    "sinc": (lambda x: torch.special.entr(x.abs()) + x.sinc(), (X,), False),
    "max unpool": (lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), (IMAGE,), True),
    **{f"distance {p}": (distances(p), (draw(7, 4), draw(9, 4)), True) for p in (1.0, 2.0, 3.0, float("inf"))},
    "distance, many rows": (distances(2.0), (draw(40, 4), draw(30, 4)), False),
    **{f"bag {mode}": (bagged(mode), (draw(20, 8),), True) for mode in ("sum", "mean", "max")},
    **{f"scatter {kind}, {own}": (scattered(kind, own), (draw(6, 5),), False) for kind in ("sum", "mean", "amax", "prod") for own in (True, False)},
    **{f"sample {mode}, {pad}": (sampled(mode, pad), (IMAGE, GRID), True) for mode, pad in (("bilinear", "zeros"), ("bicubic", "reflection"))},
    **{f"resize {mode}": (resized(mode), (draw(*shape),), True) for mode, shape in (("linear", (1, 2, 9)), ("bicubic", (1, 2, 9, 7)))},
    "resize aligned": (resized("trilinear", True), (draw(1, 2, 5, 4, 6),), True),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_right_results_pass_and_others_fail(name):
    function, inputs, has_gradients = OPERATIONS[name]
    out = function(*inputs)
    ulplab.assert_close(out, op=function, inputs=inputs)
    with pytest.raises(AssertionError, match="a gain of 1.0001|outside"):
        ulplab.assert_close(out * 1.0001, op=function, inputs=inputs)
    if has_gradients:
        ulplab.assert_grad(function, op=function, inputs=inputs)
        with pytest.raises(AssertionError, match="d0"):
            ulplab.assert_grad(lambda x, *rest: function((x * 1.0 + x.detach() * 0.001 - 0.001 * x), *rest), op=function, inputs=inputs)


TIES = torch.tensor([[3.0, 1, 3, 2], [1, 1, 1, 1]])


def test_equal_scores_may_be_chosen_in_any_order():
    def top(x):
        return tuple(x.topk(2))

    values = TIES.topk(2).values
    for right in ([[0, 2], [0, 1]], [[2, 0], [3, 1]]):
        ulplab.assert_close((values, torch.tensor(right)), op=top, inputs=(TIES,))
    for wrong in ([[2, 1], [3, 1]], [[2, 2], [3, 1]], [[0, 2], [0, 4]], [[0, 2], [-1, 1]]):
        with pytest.raises(AssertionError, match=r"out1 .*\n.*where 0 is allowed"):
            ulplab.assert_close((values, torch.tensor(wrong)), op=top, inputs=(TIES,))
    order = torch.tensor([[1, 3, 2, 0], [3, 2, 1, 0]])
    ulplab.assert_close((TIES.sort(-1).values, order), op=lambda x: tuple(x.sort(-1)), inputs=(TIES,))
    ulplab.assert_close(torch.tensor([2, 3]), op=lambda x: x.argmax(-1), inputs=(TIES,))
    ulplab.assert_close(torch.tensor([[2], [3]]), op=lambda x: (x * 1.1).max(-1, keepdim=True).indices.long(), inputs=(TIES,))
    with pytest.raises(AssertionError):
        ulplab.assert_close(torch.tensor([1, 3]), op=lambda x: x.argmax(-1), inputs=(TIES,))


def test_outputs_in_tuples_are_flattened():
    cell = torch.nn.LSTM(16, 8, batch_first=True)
    x = draw(2, 5, 16)
    with torch.no_grad():
        y, (h, c) = cell(x)
    ulplab.assert_close((y, (h, c)), op=cell, inputs=(x,))
    with pytest.raises(AssertionError, match="out2"):
        ulplab.assert_close((y, (h, c * 1.001)), op=cell, inputs=(x,))
    ulplab.assert_close((x * 2, x[:0]), op=lambda x: (x * 2, x[:0]), inputs=(x,))


def test_memory_of_others_is_left_as_it_was():
    total = torch.zeros(50)

    def function(x):
        total.add_(x.sum(0))
        return x + total

    got = function(X)
    total.zero_()
    ulplab.assert_close(got, op=function, inputs=(X,))
    assert not total.any()
    # Inputs that are one tensor stay one.
    ulplab.assert_close(X * 2 + X * 2, op=lambda a, b: a.mul_(2) + b, inputs=(X.clone(),) * 2)
