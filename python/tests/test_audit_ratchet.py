"""The audit against one that was accepted: exit codes."""

import json

import pytest

pytest_plugins = ["pytester"]

SUITE = """
import numpy as np
from numpy.testing import assert_allclose

X = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)

def test_a():
    assert_allclose(X * 1, X, rtol=RTOL)

def test_b():
    assert_allclose(X * 1, X, rtol=1)
"""


def run(pytester, suite, *options):
    pytester.makepyfile(test_it=suite)
    return pytester.runpytest_subprocess("--ulplab-audit", *options)


@pytest.mark.parametrize("workers", [0, 2])
def test_exit_codes(pytester, workers):
    if workers:
        pytest.importorskip("xdist")
    many = ["-n", "2"] if workers else []
    tight, loose = SUITE.replace("RTOL", "1e-5"), SUITE.replace("rtol=RTOL", "rtol=1e-5 if len(X) > 99 else 1")
    assert run(pytester, tight, "--ulplab-audit-json", "base.json", *many).ret == 0
    baseline = ["--ulplab-audit-baseline", "base.json", *many]
    # What is blind in the baseline may stay so, and lines may move.
    same = run(pytester, tight.replace("def test_a", "# moved\n\ndef test_a"), *baseline)
    assert same.ret == 0
    same.stdout.fnmatch_lines(["    no gate is blind to more"])
    more = run(pytester, tight + "\ndef test_c():\n    assert_allclose(X * 1, X, rtol=2)\n", *baseline)
    assert more.ret == 100
    more.stdout.fnmatch_lines(["    test_it.py:13: blind to *, and is not in the baseline: assert_allclose(X * 1, X, rtol=2)*"])
    # The same text with looser values: what the baseline's gate noticed.
    name = "TOLERANCE = 1e-5\n"
    assert run(pytester, name + SUITE.replace("RTOL", "TOLERANCE"), "--ulplab-audit-json", "base.json", *many).ret == 0
    worse = run(pytester, name.replace("1e-5", "2") + SUITE.replace("RTOL", "TOLERANCE"), *baseline)
    assert worse.ret == 100
    worse.stdout.fnmatch_lines(["*blind to *5 % too large*, that the baseline's noticed: assert_allclose(X * 1, X, rtol=TOLERANCE)*"])
    # A test that fails says so; a new gate that notices everything passes.
    failing = run(pytester, loose + "\ndef test_c():\n    assert_allclose(-X, X)\n", *baseline)
    assert failing.ret == 1
    right = run(pytester, name + SUITE.replace("RTOL", "TOLERANCE") + "\ndef test_c():\n    assert_allclose(X + 0, X, rtol=1e-6)\n", *baseline)
    assert right.ret == 0


def test_nothing_asked_is_not_judged(pytester):
    suite = SUITE.replace("RTOL", "1e-5")
    assert run(pytester, suite, "--ulplab-audit-json", "base.json").ret == 0
    none = run(pytester, "def test_a():\n    assert 1 == 1\n", "--ulplab-audit-baseline", "base.json")
    assert none.ret == 4
    none.stdout.fnmatch_lines(["*no gate was asked: not judged*"])
    assert run(pytester, "", "--ulplab-audit-baseline", "base.json").ret == 4
    # Nor is a baseline of another version.
    (pytester.path / "base.json").write_text(json.dumps({"ulplab_audit": 2, "gates": []}))
    refused = run(pytester, suite, "--ulplab-audit-baseline", "base.json")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines(["*--ulplab-audit-baseline base.json: ulplab_audit is 2, expected 1*"])
    refused = pytester.runpytest_subprocess("--ulplab-audit-json", "x.json")
    refused.stderr.fnmatch_lines(["*--ulplab-audit-json is for --ulplab-audit*"])
