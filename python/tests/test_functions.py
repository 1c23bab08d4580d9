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


def words_of_operations(rng):
    """Inputs of named operations, each with several of their words."""

    def normal(*shape):
        return torch.randn(shape, generator=rng)

    x, w = normal(6, 512), normal(512)
    angles = 40 * torch.rand(5, 8, generator=rng)
    turn = dict(x=normal(5, 3, 20), cos=angles.cos(), sin=angles.sin())
    wide = {name: torch.cat([turn[name]] * 2, -1) for name in ("cos", "sin")}
    pairs = {name: turn[name].repeat_interleave(2, -1) for name in ("cos", "sin")}
    heads = dict(q=normal(2, 7, 4, 16), k=normal(2, 9, 2, 16), v=normal(2, 9, 2, 12))
    return [
        ("rmsnorm", dict(x=x, weight=w, eps=1e-6)),
        ("rmsnorm", dict(x=1e-3 * x, weight=w, gate=x.roll(1, 0), eps=1e-3, zero_centered=1)),
        ("layernorm", dict(x=x + 3, weight=w, bias=w.roll(1), eps=1e-5)),
        ("softmax", dict(x=x)),
        ("softmax", dict(x=x, scale=0.3)),
        ("silu_and_mul", dict(x=x)),
        ("matmul", dict(a=x, b=normal(512, 8))),
        ("matmul", dict(a=x, b=normal(8, 512), b_rows="n", bias=normal(8), alpha=0.7)),
        ("rope", turn),
        ("rope", dict(turn, pairing="interleaved", inverse=1)),
        ("rope", dict(turn, **wide, width="full")),
        ("rope", dict(turn, **pairs, pairing="interleaved", width="full")),
        ("rope", dict(turn, x=normal(2, 3, 5, 20), layout="bhtd")),
        ("rope", dict(x=normal(2, 5, 3, 20), cos=normal(2, 5, 8), sin=normal(2, 5, 8))),
        ("attention", heads),
        ("attention", dict(heads, causal=1, scale=0.4)),
        ("attention", dict({name: one.transpose(1, 2) for name, one in heads.items()}, causal=1, layout="bhtd")),
    ]


def test_bounds_of_definitions_are_those_of_named_operations():
    import numpy as np
    from ulplab import _definitions, _functions

    seen = set()
    for op, inputs in words_of_operations(torch.Generator().manual_seed(0)):
        seen.add(op)
        given = {name: ulplab._tensors.array(one, name) if hasattr(one, "shape") else one for name, one in inputs.items()}
        _, value, error, _ = ulplab._native.expected(op, given, "float32", 2.0**-24)[0]
        bound = _functions.bounds_of(_definitions.definition(op, inputs), inputs, "f32")["out"]
        assert np.abs(bound.value - value).max() <= 1e-12 * np.abs(value).max(), (op, list(inputs))
        at = np.random.default_rng(0).choice(value.size, 24, replace=False)
        # The named bounds of what rope does not turn, and of a causal row with one key, are 0.
        ratios = [bound.of(int(i)).bound / error.reshape(-1)[i] for i in at if error.reshape(-1)[i] > 0]
        # The named bound of attention is that of a kernel which rescales its sums at every block of keys.
        least = 0.15 if op == "attention" else 0.5
        assert len(ratios) >= 12 and least <= np.median(ratios) <= 2, (op, list(inputs), np.median(ratios))
    assert seen == set(_definitions.DEFINITIONS)


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_fused_attention_is_within_the_bound_of_its_definition(scale):
    import torch.nn.functional as F
    from ulplab._definitions import definition

    for seed, keys in enumerate([5, 40, 300]):
        rng = torch.Generator().manual_seed(seed)
        q, k, v = (scale * torch.randn(1, count, 2, 64, generator=rng) for count in (5, keys, keys))
        mask = torch.ones(5, keys, dtype=torch.bool).tril(keys - 5)
        got = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), attn_mask=mask).transpose(1, 2)
        inputs = dict(q=q, k=k, v=v, causal=1)
        ulplab.assert_close(got, op=definition("attention", inputs), inputs=inputs)


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
