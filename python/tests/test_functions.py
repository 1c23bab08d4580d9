"""assert_close with a function of torch: right kernels pass, in all types and for all inputs."""

import os

import pytest

torch = pytest.importorskip("torch")

import functions as known  # noqa: E402
import ulplab  # noqa: E402

DRAWS = int(os.environ.get("ULPLAB_DRAWS", "1"))
# CPU kernels that add in bf16: cumsum, and partial sums of the gradient of a bias.
ADDS_IN_BF16 = ("cumsum", "in_place", "layer_norm")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


# A root of 0, the logarithm of a weight that underflows, and products in bf16 whose errors reach infinity.
UNDEFINED = {
    ("std", "constant"),
    ("std", "constant rows"),
    ("std", "tiny"),
    ("kl_div", "one row dominant"),
    ("prod", "mean 1000"),
    ("cumprod", "mean 1000"),
}


def judged(name, kind, got, inputs, **words):
    try:
        ulplab.assert_close(got, op=known.FUNCTIONS[name][0], inputs=inputs, **words)
    except ValueError as why:
        assert (name, kind) in UNDEFINED and str(why).startswith(("not judged: ", "not determined: ")), why


@pytest.mark.parametrize("name", known.FUNCTIONS)
def test_right_kernels_pass(name):
    function = known.FUNCTIONS[name][0]
    for seed in range(DRAWS):
        for kind in known.kinds(name, DRAWS > 1):
            inputs = known.drawn(name, seed, kind)
            judged(name, kind, function(*inputs), inputs)
            narrow = [known.changed(x, torch.bfloat16) for x in inputs]
            wide = [known.changed(x, torch.float32) for x in narrow]
            judged(name, kind, function(*wide).bfloat16(), wide, dtype="any")
            judged(name, kind, function(*narrow), narrow, rounds="every_step", accumulate="bf16" if name in ADDS_IN_BF16 else "f32")


@pytest.mark.parametrize("name", known.GRADIENTS)
def test_right_gradients_pass(name):
    function, wrt = known.FUNCTIONS[name][0], known.GRADIENTS[name]
    for seed in range(DRAWS):
        for kind in known.kinds(name, DRAWS > 1):
            for rounds in ("end", "every_step"):
                if rounds == "every_step" and name in ADDS_IN_BF16:
                    continue
                inputs = known.drawn(name, seed, kind)
                given = [known.changed(x, torch.bfloat16) for x in inputs] if rounds == "every_step" else inputs
                at = [i for i, x in enumerate(inputs) if x.is_floating_point()] if wrt is None else wrt
                marked = [x.clone().requires_grad_() if i in at else x for i, x in enumerate(given)]
                out = function(*marked)
                grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)).to(out.dtype)
                found = torch.autograd.grad(out, [marked[i] for i in at], grad)
                got = {f"d{i}": one for i, one in zip(at, found)}
                judged(name, kind, got, given, grads={f"d{i}": i for i in at}, grad_output=grad, rounds=rounds)


def test_equal_terms_may_err_alike():
    import numpy as np

    for terms in (1_000, 65_536):
        for value in (0.1, 0.7):
            x = torch.full((1, terms), value)
            got = torch.tensor(np.add.accumulate(x[0].numpy(), dtype=np.float32)[-1:].copy())
            ulplab.assert_close(got, op=lambda x: x.sum(-1), inputs=(x,))
            ulplab.assert_close(got[None], op=torch.matmul, inputs=(x, torch.ones(terms, 1)))


@pytest.mark.parametrize("op", ["rmsnorm", "layernorm", "softmax", "matmul", "silu_and_mul"])
def test_bounds_are_those_of_named_operations(op):
    import numpy as np
    import torch.nn.functional as F
    from ulplab import _functions

    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((6, 512)).astype("float32"), rng.standard_normal(512).astype("float32")
    b = rng.standard_normal((512, 8)).astype("float32")
    named, function, inputs = {
        "rmsnorm": (dict(x=x, weight=w, eps=1e-6), lambda x, w: F.rms_norm(x, (512,), w, 1e-6), (x, w)),
        "layernorm": (dict(x=x, weight=w, bias=w, eps=1e-6), lambda x, w: F.layer_norm(x, (512,), w, w, 1e-6), (x, w)),
        "softmax": (dict(x=x), lambda x: x.softmax(-1), (x,)),
        "matmul": (dict(a=x, b=b), torch.matmul, (x, b)),
        "silu_and_mul": (dict(x=x), lambda x: F.silu(x[:, :256]) * x[:, 256:], (x,)),
    }[op]
    given = {name: ulplab._tensors.array(one, name) if hasattr(one, "shape") else one for name, one in named.items()}
    _, value, error, _ = ulplab._native.expected(op, given, "float32", 2.0**-24)[0]
    bound = _functions.bounds_of(function, tuple(map(torch.from_numpy, inputs)), 2.0**-24)["out"]
    assert np.abs(bound.value - value).max() <= 1e-12 * np.abs(value).max()
    at = rng.choice(value.size, 24, replace=False)
    ratios = [bound.of(int(i)).bound / error.reshape(-1)[i] for i in at]
    assert 0.5 <= np.median(ratios) <= 2, np.median(ratios)


def test_most_of_aten_has_a_local_error():
    from ulplab import _complex, _native, _norms, _steps, _sums  # noqa: F401

    known_to_have_steps = [name for name, kind, _ in _native.local_errors() if kind in ("units", "sum", "steps")]
    assert [name for name in known_to_have_steps if (_steps.find(name) or _complex.find(name)) is None] == []
    assert len(_native.local_errors()) >= 300


@pytest.mark.parametrize("same", [True, False])
def test_random_roundings_have_mean_0_and_deviation_1(same):
    from ulplab import _roundings

    index = None if same else torch.arange(1 << 16)

    def noise(z, number, seed):
        return _roundings.noise_of(z.unsqueeze(0), number, torch.tensor([seed]), None if same else index[: len(z)])[0]

    draws = []
    for z in (torch.randn(1 << 16, dtype=torch.float64), torch.arange(1 << 16, dtype=torch.float64), -torch.rand(1 << 16, dtype=torch.float64)):
        draws += [noise(z, number, seed) for number, seed in ((3, 1), (3, 3), (4, 1))]
    far = 6 / 256
    for one in draws:
        assert abs(one.mean()) < far and abs(one.square().mean() - 1) < far and one.abs().max() < 2.45
        assert abs((one[1:] * one[:-1]).mean()) < far
    assert all(abs((a * b).mean()) < far for at, a in enumerate(draws) for b in draws[:at])
    equal = noise(torch.full((100,), 0.1, dtype=torch.float64), 3, 1)
    assert (len(set(equal.tolist())) == 1) == same
