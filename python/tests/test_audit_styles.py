"""The audit on styles of assertions: each is asked, or is listed with the reason."""

import json

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from ulplab import _planted, _ratchet  # noqa: E402

pytest_plugins = ["pytester"]

HELPERS = """
import torch

def fla_close(prefix, ref, tri, ratio, err_atol=1e-6):
    error = (ref.detach() - tri.detach()).flatten().square().mean().sqrt().item()
    base = ref.detach().flatten().square().mean().sqrt().item()
    assert error / (base + 1e-8) < ratio, prefix

def verbose(a, b, rtol=1e-5, atol=1e-8):
    diff = torch.abs(a - b)
    bad = diff > atol + rtol * torch.abs(b)
    count = bad.sum().item()
    if count > 0:
        raise AssertionError(f"{count} elements differ")
"""

HEAD = """
import math, unittest
import numpy as np, pytest, torch, torch.nn.functional as F
from helpers import fla_close, verbose

WANT = torch.randn(16, 64, generator=torch.Generator().manual_seed(0))
GOT = WANT * (1 + 1e-4)
A, B = GOT.numpy(), WANT.numpy()
CASE = unittest.TestCase()

def kernel():
    return GOT.clone()

def compute_error(x, y):
    return 20 * torch.log10(torch.norm(x) / torch.norm(x - y))
"""

#: Bodies of tests by style, and whether each lets 5 % pass, which all are loose or tight enough to say.
STYLES = {
    "assert_close": ("torch.testing.assert_close(kernel(), WANT, rtol=0.1, atol=0.1)", True),
    "allclose": ("assert torch.allclose(kernel(), WANT, rtol=0.1, atol=0.1)", True),
    "tensor_allclose": ("assert kernel().allclose(WANT, rtol=0.1, atol=0.1)", True),
    "isclose_all": ("assert torch.isclose(GOT, WANT, rtol=0.1, atol=0.1).all()", True),
    "numpy_isclose": ("assert np.isclose(A, B, rtol=0.1, atol=0.1).all()", True),
    "with_itself": ("assert np.allclose(A, A)", False),
    "numpy_allclose": ("assert np.allclose(A, B, rtol=1e-3)", False),
    "max": ("out = kernel()\nassert (out - WANT).abs().max() < 0.1", False),
    "max_item": ("out = kernel()\ndiff = (out - WANT).abs()\nerr = diff.max().item()\nassert err < 0.1, f'{err}'", False),
    "mean": ("out = kernel()\nassert (out.float() - WANT.float()).abs().mean().item() < 0.1", True),
    "norm_ratio": ("out = kernel()\nrel = (out - WANT).norm() / WANT.norm()\nassert rel < 0.1", True),
    "array_less": ("np.testing.assert_array_less(np.abs(A - B), 0.1)", False),
    "approx_list": ("assert A[0].tolist() == pytest.approx(B[0].tolist(), rel=0.1)", True),
    "approx_array": ("assert A == pytest.approx(B, rel=1e-3)", False),
    "sqnr": ("out = kernel()\nsqnr = compute_error(WANT, out)\nassert sqnr > 30", False),
    "cosine": ("out = kernel()\ncos = F.cosine_similarity(out.flatten(), WANT.flatten(), dim=0)\nassert cos > 0.99", True),
    "fla": ("fla_close('o', WANT, kernel(), 0.005)", False),
    "helper_that_raises": ("verbose(kernel(), WANT, 0.1, 0.1)", True),
    "assert_less": ("out = kernel()\nCASE.assertLess((out - WANT).abs().max().item(), 0.1)", False),
    "assert_true": ("out = kernel()\nCASE.assertTrue(bool(torch.isclose(out, WANT, atol=0.1, rtol=0.1).all()))", True),
    "almost_equal": ("CASE.assertAlmostEqual(kernel().sum().item(), WANT.sum().item(), delta=1e-1)", False),
    "loss": ("loss, = [float(kernel().square().mean())]\nassert abs(loss - 1.0) < 0.3", True),
    "loss_approx": ("loss, want = float(kernel().mean()), float(WANT.mean())\nassert loss == pytest.approx(want, rel=0.5)", True),
    "loss_isclose": ("loss, want = float(kernel().mean()), float(WANT.mean())\nassert math.isclose(loss, want, rel_tol=1e-3)", False),
    "dictionary": ("torch.testing.assert_close({'a': kernel(), 'b': kernel().mean()}, {'a': WANT, 'b': WANT.mean()}, rtol=0.1, atol=0.1)", True),
    "complex": ("torch.testing.assert_close(torch.complex(GOT, GOT), torch.complex(WANT, WANT), rtol=1e-3, atol=1e-3)", False),
    "fail": ("out = kernel()\nif not torch.isclose(out, WANT, rtol=0.1, atol=0.1).all():\n    pytest.fail('differs')", True),
    "in_a_loop": ("for a, b in zip([GOT, GOT], [WANT, WANT]):\n    assert torch.max(torch.abs(a - b)) < 0.1", False),
    "of_a_generator": ("assert all((a - b).abs().max() < 0.1 for a, b in zip([GOT, GOT], [WANT, WANT]))", False),
}

#: Bodies that are not asked, and why.
UNASKED = {
    "assert (kernel() - WANT).abs().max() < 0.1": "'kernel()' would run again",
    "out = kernel()\nassert out.abs().max() < 100": "it compares no two tensors",
    "out = GOT * WANT\nassert torch.isfinite(out).all()": "it compares no two tensors",
    "assert not torch.allclose(GOT, -WANT)": "it passes only what differs",
    "assert (GOT - WANT).abs().max() > 1e-9": "it passes only what differs",
    "if GOT.shape[0] == 3:\n    assert torch.equal(GOT, WANT)": "it was not reached",
    "import textwrap\ntextwrap.mine = lambda a, b: None\ntextwrap.mine(GOT, WANT)": "it may be an assertion: name its function with --ulplab-gate",
    "out = kernel()\nassert out.shape == WANT.shape": "it has no floating-point numbers",
    "assert len(GOT) == 16": "it has no floating-point numbers",
}


def body(name, text):
    return f"\ndef test_{name}():\n    " + text.replace("\n", "\n    ") + "\n"


def audited(pytester, *options):
    """The JSON of an audit, and the result of pytest."""
    result = pytester.runpytest_subprocess("--ulplab-audit", "--ulplab-audit-json", "found.json", *options)
    return json.loads((pytester.path / "found.json").read_text()), result


def test_each_style_is_asked(pytester):
    pytester.makepyfile(helpers=HELPERS, test_it=HEAD + "".join(body(name, text) for name, (text, _) in STYLES.items()))
    found, result = audited(pytester)
    result.assert_outcomes(passed=len(STYLES))
    asked = {one["test"].partition("::test_")[2]: (gate, one) for gate in found["gates"] for one in gate["tests"]}
    assert asked.keys() == STYLES.keys() and not found["not_asked"] and found["ulplab_audit"] == _ratchet.VERSION
    for name, (gate, one) in asked.items():
        assert one["asked"] and len(one["faults"]) >= 4, name
        assert ("5 % too large" in gate["blind_to"]) == STYLES[name][1], (name, gate["blind_to"])
        assert "all zeros" not in gate["blind_to"] or name in ("mean", "dictionary"), name


def test_what_is_not_asked_is_listed(pytester):
    pytester.makepyfile(helpers=HELPERS, test_it=HEAD + "".join(body(str(at), text) for at, text in enumerate(UNASKED)))
    found, result = audited(pytester)
    result.assert_outcomes(passed=len(UNASKED))
    reasons = {int(tests[0].rpartition("_")[2]): why for one in found["not_asked"] for why, tests in one["why"].items()}
    assert not found["gates"]
    for at, why in enumerate(UNASKED.values()):
        assert reasons[at].startswith(why), (at, reasons[at])
    result.stdout.fnmatch_lines(["lines with assertions: 0 asked, 7 not asked, 2 without floating-point numbers"])
    # A file that was imported before the audit began is read.
    pytester.makepyfile(conftest="import test_it\n")
    found, _ = audited(pytester)
    assert {why for one in found["not_asked"] for why in one["why"]} >= {"its file was imported before the audit began"}


def test_a_gate_of_another_signature_is_named(pytester):
    mine = "def check(prefix, ref, tri, ratio=0.005, *, scale=None):\n    if (ref - tri).norm() / ref.norm() > ratio:\n        raise AssertionError(prefix)\n"
    pytester.makepyfile(helpers=HELPERS)
    package = pytester.mkpydir("package")
    (package / "gates.py").write_text(mine)
    tests = body("named", "gates.check('o', tri=kernel(), ref=WANT)") + body("given", "gates.check('o', WANT, kernel(), 0.2, scale=WANT)")
    pytester.makepyfile(test_it=HEAD + "from package import gates\n" + tests)
    for gate in ("package.gates:check", "package.gates:check(2,1)"):
        found, _ = audited(pytester, "--ulplab-gate", gate)
        named = {one["test"].partition("::")[2]: set(gate["blind_to"]) for gate in found["gates"] for one in gate["tests"]}
        # NaN is not larger than a ratio.
        assert named["test_named"] == {"one element NaN"} and "5 % too large" in named["test_given"], named
        assert all(gate["gate"] == "package.gates.check" for gate in found["gates"])


def test_tests_are_named_and_library_checks_are_not(pytester):
    pytester.makepyfile(
        helpers="import numpy as np\ndef close(a, b, tol):\n    np.testing.assert_allclose(a, b, rtol=tol)\n",
        test_it=HEAD.replace("from helpers import fla_close, verbose", "from helpers import close")
        + "\n@pytest.mark.parametrize('tol', [1e-3, 1e-3, 1e-3, 2])\ndef test_a(tol):\n    close(A, B, tol)\n"
        + "\ndef test_b():\n    close(A, B, 1.5)\n"
        + "\ndef test_traced():\n    torch.jit.trace(lambda x: x + 1, GOT)\n",
    )
    found, result = audited(pytester)
    (gate,) = found["gates"]
    assert (gate["file"], gate["line"], len(gate["tests"])) == ("helpers.py", 3, 5)
    result.stdout.fnmatch_lines(["    lets pass: twice too large, 2 of 5 (in test_a[[]2[]], test_b)"])
    assert not found["not_asked"]


def test_what_a_gate_costs_is_bounded():
    """The work is counted, not timed: elements that the gate compares, and the calls of a line."""
    seen = []

    def gate(x, y):
        seen.append(x.numel())
        return torch.allclose(x, y, rtol=1e-3, atol=1e-3)

    want = torch.randn(2048, 2048)
    asked = _planted.Asked()
    assert _planted.ask(gate, want * (1 + 1e-6), want, asked) is None
    assert asked.asked == 1 and sum(passed for _, passed in asked.faults.values()) == 0 and len(asked.faults) == 11
    assert max(seen) <= _planted.ELEMENTS and sum(seen) <= 20 * _planted.ELEMENTS
    # A gate that refuses a sample is not asked.
    assert "refuses a sample" in _planted.ask(lambda x, y: x.numel() == want.numel(), want, want, _planted.Asked())
    place = _planted.Place("gate")
    for test in range(20):
        for _ in range(30):
            if place.wants(str(test)):
                place.of(str(test)).asked += 1
    whole = place.whole()
    assert (whole.calls, whole.asked) == (600, _planted.LINE_CALLS) and place.tests["0"].asked == _planted.CALLS


def test_samples_have_rows_and_columns_from_everywhere():
    for shape, elements in [((4096, 64), 1000), ((1 << 16,), 1000), ((3, 5, 4096), 1000), ((2, 2), 100), ((), 2)]:
        x = np.arange(np.prod(shape), dtype=float).reshape(shape)
        sample = _planted.sampled(x, elements)
        assert sample.ndim == x.ndim and sample.size <= max(elements, 1) and (sample.size * 4 >= min(elements, x.size))
        assert sample.size == 1 or sample.max() > 0.4 * x.size
