"""``pytest --ulplab-audit --ulplab-reference``: what bounds say of assertions on what plain references gave."""

import sys

import pytest

torch = pytest.importorskip("torch")

pytest_plugins = ["pytester"]

PLAIN = """
import time, torch

def norm(x, w, eps=1e-6):
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w.float()

def slow(x):
    time.sleep(0.15)
    return x.sin()

def noisy(x):
    return x + 0 * torch.rand(x.shape)

def large(x):
    return x + 1

model = torch.nn.Linear(2, 2)
"""

SUITE = """
import numpy as np, pytest, torch, torch.nn.functional as F
from torch.testing import assert_close
from plain import large, noisy, norm, slow

X, W = torch.randn(8, 32, generator=torch.Generator().manual_seed(0)), torch.full((32,), 1.1)

def kernel(x, w):
    return F.rms_norm(x, (32,), w, 1e-6)

@pytest.mark.parametrize("seed", range(3))
def test_right(seed):
    assert_close(kernel(X, W), norm(X, W))  # right

def test_wrong():
    assert_close(1.001 * kernel(X, W), norm(X, w=W), rtol=1e-2, atol=1e-2)  # wrong

def test_narrow():
    x, w = X.bfloat16(), W.bfloat16()
    assert_close(kernel(x, w), norm(x, w).bfloat16(), rtol=2e-2, atol=2e-2)  # cast
    assert_close(kernel(x, w).float(), norm(x, w), rtol=2e-2, atol=2e-2)  # widened

def test_of_numpy():
    np.testing.assert_allclose(norm(X, W).numpy(), kernel(X, W).numpy(), rtol=1e-3)  # exchanged

def test_a_false_alarm():
    assert_close(kernel(X.double(), W.double()).float(), norm(X, W), rtol=0, atol=0)  # tight

def test_in_place():
    x = X.clone()
    want = norm(x, W)
    x.copy_(kernel(x, W))
    assert_close(x, want)  # overwritten

def own(x):
    return x.exp()

def test_of_this_file():
    assert_close(X.exp(), own(X))  # own

def test_others():
    assert_close(X + 0.5, X + 0.5)  # other
    assert_close(X.sin(), slow(X))  # slow
    assert_close(X + 0, noisy(X))  # noisy
    assert_close(torch.ones(1 << 21) + 1, large(torch.ones(1 << 21)))  # large
"""

#: Words in the comment of a line, and what is said of the line; None if nothing is.
SAID = {
    "right": "norm: a bound passes what the gate passed (float32, rounds = end): error / bound 0.",
    "wrong": "norm: a bound refuses what the gate passed (float32, in any rounds): error / bound ",
    "cast": "norm: a bound passes what the gate passed (bfloat16, rounds = end): error / bound ",
    "widened": "norm: a bound passes what the gate passed (bfloat16, rounds = end): error / bound ",
    "exchanged": "norm: a bound passes what the gate passed (float32, rounds = end): error / bound 0.",
    "tight": "norm: a bound passes what the gate refused (float32, rounds = end): error / bound 0.",
    "overwritten": "norm: a bound passes what the gate passed (float32, rounds = end): error / bound 0.",
    "own": "own: a bound passes what the gate passed (float32, rounds = end): error / bound 0.",
    "other": None,
    "slow": "slow: not judged: it took 0.15 s, and at most 0.1 s are followed",
    "noisy": "noisy: not judged: aten.rand ",
    "large": None,
}
LAST = "references gave, bounds pass 7 and refuse 1; 2 are not judged, and 2 stand at a line that was asked before; 2 compare"
NAMES = ["plain:norm", "plain:slow", "plain:noisy", "plain:large", "test_it.py:own"]


def said(result):
    """What is said of each line of the suite, by the word in its comment."""
    lines = {f"test_it.py:{at}": line.rpartition("# ")[2] for at, line in enumerate(SUITE.strip().splitlines(), 1) if "  # " in line}
    found, word = dict.fromkeys(lines.values()), None
    for line in result.outlines[result.outlines.index(next(line for line in result.outlines if "= ulplab audit =" in line)) :]:
        word = lines.get(line.partition(": ")[0], word)
        if line.startswith("    reference "):
            assert found[word] is None
            found[word] = line.removeprefix("    reference ")
    return found


def agrees(result):
    result.assert_outcomes(passed=9, failed=1)
    found = said(result)
    for word, text in SAID.items():
        assert found[word] is None if text is None else found[word].startswith(text), (word, found[word])
    assert sum(LAST in line for line in result.outlines) == 1, result.outlines[-3:]
    return found


def test_what_bounds_say_of_assertions(pytester):
    import re

    pytester.makepyfile(plain=PLAIN, test_it=SUITE)
    options = [f"--ulplab-reference={name}" for name in NAMES]
    found = agrees(pytester.runpytest_inprocess("--ulplab-audit", *options))
    # Of a relative and absolute tolerance, the median is what most elements have.
    allows = re.search(r"the gate allows (\S+) times the bound in the median, (\S+) times at most", found["wrong"])
    median, most = map(float, allows.groups())
    assert 1e3 < median <= most < 1e6
    assert float(re.search(r"error / bound (\S+);", found["wrong"])[1]) > 100
    # Functions are in their places again.
    assert not hasattr(sys.modules.get("plain", torch).__dict__.get("norm"), "__wrapped__")


def test_references_of_an_ini_file_and_of_workers(pytester):
    pytest.importorskip("xdist")
    pytester.makepyfile(plain=PLAIN, test_it=SUITE)
    pytester.makeini("[pytest]\nulplab_references =\n" + "".join(f"    {name}\n" for name in NAMES))
    # In several workers, a line is asked once in each.
    agrees(pytester.runpytest_subprocess("--ulplab-audit", "-n", "1"))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--ulplab-reference", "plain:norm"], "*--ulplab-reference is for --ulplab-audit, which is not given*"),
        (["--ulplab-audit", "--ulplab-reference", "norm"], "*--ulplab-reference norm: expected MODULE:FUNCTION or FILE.py:FUNCTION*"),
        (["--ulplab-audit", "--ulplab-reference", "plain:none"], "*--ulplab-reference plain:none: there is no such function*"),
        (["--ulplab-audit", "--ulplab-reference", "none:norm"], "*--ulplab-reference none:norm cannot be imported: ModuleNotFoundError*"),
        (["--ulplab-audit", "--ulplab-reference", "plain:model"], "*--ulplab-reference plain:model is a Linear, expected a function*"),
    ],
)
def test_references_that_are_none(pytester, options, why):
    pytester.makepyfile(plain=PLAIN, test_it="def test_it():\n    pass\n")
    result = pytester.runpytest_inprocess(*options)
    result.stderr.fnmatch_lines([why])
    assert result.ret == pytest.ExitCode.USAGE_ERROR
