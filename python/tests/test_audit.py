"""The audit: which faults gates let pass, on tests that are not changed for it."""

import numpy as np
import pytest
from kernels import rounded
from ml_dtypes import bfloat16

import ulplab

pytest_plugins = ["pytester"]

SUITE = """
import numpy as np
from numpy.testing import assert_allclose

X = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
NEAR = X * np.float32(1 + 1e-6)

def test_loose():
    assert_allclose(NEAR, X, rtol=1, atol=1)

def test_small():
    assert_allclose(NEAR * 1e-4, X * 1e-4, atol=1e-2, rtol=1e-2)

def test_tight():
    for _ in range(3):
        assert_allclose(NEAR, X, rtol=1e-5)

def test_returned():
    assert np.allclose(NEAR, X, atol=0.3)

def test_not_audited():
    assert_allclose(np.arange(3), np.arange(3))
    assert not np.allclose(X, -X)
"""


def sections(result):
    lines = result.outlines[next(at for at, line in enumerate(result.outlines) if "ulplab audit" in line) + 1 : -1]
    found = {}
    for line in filter(None, lines):
        if not line.startswith(" "):
            found[line] = []
        else:
            found[list(found)[-1]].append(line.strip())
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_faults_that_pass_are_listed_by_line(pytester, workers):
    if workers:
        pytest.importorskip("xdist")
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_subprocess("--ulplab-audit", *(["-n", str(workers)] if workers else []))
    result.assert_outcomes(passed=5)
    found = sections(result)
    name = "test_faults_that_pass_are_listed_by_line.py"
    line = {at: f"{name}:{at}: numpy.{gate}" for at,
        gate in [(8, "testing.assert_allclose, 1 call"), (11, "testing.assert_allclose, 1 call")]}
    loose, small = found[line[8]], found[line[11]]
    for fault in ("all zeros", "all signs flipped", "last columns not written (zeros)"):
        assert f"lets pass: {fault}" in small
    assert "lets pass: one element NaN" not in small
    assert "largest gain that passes: 9" in small
    assert small[-1].endswith("notices all of them")
    assert "lets pass: all zeros" in loose and "lets pass: all signs flipped" not in loose
    assert found[f"{name}:15: numpy.testing.assert_allclose, 3 calls: notices every fault"] == []
    assert "lets pass: 5 % too large" in found[f"{name}:18: numpy.allclose, 1 call"]
    count = "lines with assertions: 4 asked, 2 not asked, 0 without floating-point numbers"
    assert len(found) == 5 and [line.split(": ")[1] for line in found[count]] == [f"{name}:21", f"{name}:22"]
    assert found[count][0].endswith("'np.arange(3)' would run again (in test_not_audited)")
    assert found[count][1].endswith("of the same shape (in test_not_audited)")


def test_a_suite_is_not_changed(pytester):
    pytester.makepyfile(SUITE + "\ndef test_wrong():\n    assert_allclose(-X, X)\n")
    plain = pytester.runpytest_subprocess()
    audited = pytester.runpytest_subprocess("--ulplab-audit")
    plain.assert_outcomes(passed=5, failed=1)
    audited.assert_outcomes(passed=5, failed=1)
    assert plain.ret == audited.ret
    assert not any("ulplab audit" in line for line in plain.outlines)


def test_gates_of_a_project_are_named(pytester):
    pytester.makepyfile(gates="def close(a, b):\n    assert abs(a - b).max() < 5\n")
    pytester.makepyfile("import gates, numpy as np\nX = np.arange(1.0, 9.0)\ndef test_it():\n    gates.close(X, X + 1e-9)\n")
    result = pytester.runpytest_subprocess("--ulplab-audit", "--ulplab-gate", "gates:close")
    result.stdout.fnmatch_lines(["*: gates.close, 1 call", "*lets pass: 5 % too large"])
    for wrong, said in [("gates", "expected MODULE:FUNCTION"), ("gates:clos", "no such function"), ("none:f", "can be imported")]:
        result = pytester.runpytest_subprocess("--ulplab-audit", "--ulplab-gate", wrong)
        result.stderr.fnmatch_lines([f"*--ulplab-gate {wrong}: *{said}*"])


def test_faults_of_an_operation():
    rng = np.random.default_rng(0)
    size = 5120
    inputs = {
        "x": rounded(rng.standard_normal((16, size)) / (2 * size), bfloat16),
        "weight": rounded(1 + 0.1 * rng.standard_normal(size), bfloat16),
    }

    def published(got, want):
        np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=1e-2, atol=1e-2)

    found = ulplab.audit(published, "rmsnorm", inputs, bfloat16)
    assert found.right_passes
    assert {"no_variance", "half_of_row", "neighbour_row"} <= set(found.survivors)
    assert {"sum_for_mean", "no_weight"} <= set(found.noticed)
    assert "lets pass: no_variance: the mean of squares is left out" in str(found)

    bound = ulplab.audit(lambda got, want: ulplab.assert_close(got, op="rmsnorm", inputs=inputs), "rmsnorm", inputs, bfloat16)
    assert bound.right_passes and not bound.survivors


def test_what_is_compared_may_be_named_and_of_any_kind(pytester):
    pytester.makepyfile(
        """
import ml_dtypes, numpy as np
from numpy.testing import assert_allclose

X = np.arange(1.0, 9.0)

def test_it():
    assert_allclose(desired=X, actual=X + 1e-9, rtol=1)
    assert_allclose(list(X), list(X + 1e-9), rtol=1)
    assert np.allclose(X.astype(ml_dtypes.bfloat16), X.astype(ml_dtypes.bfloat16), rtol=1)
    assert_allclose(X * 0, X * 0, atol=1)
"""
    )
    result = pytester.runpytest_subprocess("--ulplab-audit")
    found = sections(result)
    name = "test_what_is_compared_may_be_named_and_of_any_kind.py"
    for line in (7, 8):
        assert "lets pass: 5 % too large" in found[f"{name}:{line}: numpy.testing.assert_allclose, 1 call"]
    assert "lets pass: 5 % too large" in found[f"{name}:9: numpy.allclose, 1 call"]
    assert not any("rtol = atol = 0" in line for line in found[f"{name}:9: numpy.allclose, 1 call"])


def test_a_gate_without_the_audit_is_refused(pytester):
    result = pytester.runpytest_subprocess("--ulplab-gate", "gates:close")
    result.stderr.fnmatch_lines(["*--ulplab-gate is for --ulplab-audit*"])
