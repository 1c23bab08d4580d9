"""What makes bounds of functions cheap changes no number."""

import warnings

import functions
import numpy as np
import pytest

torch = pytest.importorskip("torch")
from ulplab import _functions, _rows, _tape  # noqa: E402

warnings.filterwarnings("ignore")
X = torch.randn(12, 24, generator=torch.Generator().manual_seed(1))


def bound(function, *inputs):
    return _functions.bounds_of(function, inputs, "f32")["out"]


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "block", "attention", "std", "conv2d", "where", "in_place", "strided"])
def test_draws_one_by_one_are_those_of_all_at_once(name, monkeypatch):
    if name == "strided":
        function, inputs = lambda x, y: (x.t() * y).exp().sum(0), [X, X.t().contiguous()]
    else:
        function, inputs = functions.FUNCTIONS[name][0], functions.drawn(name, 3)
    together = bound(function, *inputs)
    monkeypatch.setattr(_tape, "ROOM", 1)
    apart = bound(function, *inputs)
    assert (together.sigma == apart.sigma).all() and (together.peak == apart.peak).all() and together.sigma.any()


APART = {
    "softmax": lambda x: x.softmax(-1),
    "layer norm": lambda x: torch.nn.functional.layer_norm(x, (24,)),
    "product": lambda x: x.exp() @ X.t(),
    "reshaped": lambda x: x.exp().view(12, 4, 6).softmax(-1).flatten(1),
    "relu": lambda x: (x * 1.1).relu() * x,
}
TIED = {
    "mean of rows": lambda x: x * 1.1 - (x * 1.1).mean(0),
    "sum of rows": lambda x: x / x.abs().sum(0),
    "next row": lambda x: x * 1.1 + (x * 1.1).roll(1, 0),
    "earlier rows": lambda x: x.cumsum(0),
    "largest of rows": lambda x: x.exp() - x.exp().amax(0),
    "square": lambda x: x.exp()[:, :12] @ x.exp()[:, 12:],
}


@pytest.mark.parametrize("kind", ["normal", "constant", "constant rows", "zeros", "few"])
@pytest.mark.parametrize("name", [*APART, *TIED])
def test_rows_are_derived_alone_only_where_they_are_apart(name, kind, monkeypatch):
    x = functions.INPUTS[kind](X)
    whole, rows = (bound((APART | TIED)[name], x) for _ in range(2))
    elements = [0, whole.value.size // 2, whole.value.size - 1]
    whole.ask(elements)
    assert whole._derived is not None
    monkeypatch.setattr(_functions, "_LARGE", 0)
    rows.ask(elements)
    assert rows._tied == (name in TIED) and (rows._derived is None) == (name in APART)
    for element in elements:
        assert rows.of(element).bound == pytest.approx(whole.of(element).bound, rel=1e-12, abs=0)


def test_rows_that_only_inputs_tie_are_not_mixed_up():
    value = bound(lambda x: x.flip(0) * 1.1, X)
    assert _rows.derive(value._tape, value._value, [1, 5])[0].tolist() == value._value.z[[1, 5]].tolist()


def test_the_largest_are_those_of_a_stable_sort():
    rng = np.random.default_rng(0)
    for at in range(300):
        x = rng.choice([0, 1.0, 2, -1, np.inf, -np.inf, np.nan], rng.integers(0, 300)) if at % 2 else rng.standard_normal(200).round(at % 4)
        count = int(rng.integers(0, 20))
        assert (_functions.largest(x, count) == np.argsort(-x, kind="stable")[:count]).all()
