"""Suites whose report or audit must not look as if something had passed: what was caught, expected, skipped or never called.

Each case names the suite and the place that would have called it right. Further cases of these kinds: classes of unittest, subtests, other
plugins that run a test again.
"""

import json

import numpy as np
import pytest

import ulplab
from ulplab import _files, _records

pytest_plugins = ["pytester"]

HEAD = """
import numpy as np, pytest, ulplab

X = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)

def wrong():
    ulplab.assert_close(1.5 * X, X, rtol=1e-3)

def right():
    ulplab.assert_close(X + 0, X, rtol=1e-3)
"""

# A suite, and how many assertions its report has, of which some failed.
REPORTED = {
    "no assertion (the exit code of pytest)": ("def test_it():\n    assert True", 0, 0),
    "an assertion that is skipped (tests without failures)": ("def test_it():\n    pytest.skip()\n    right()", 0, 0),
    "a mark that skips it (tests without failures)": ("@pytest.mark.skip\ndef test_it():\n    wrong()", 0, 0),
    "an assertion that is not reached (tests that ran)": ("def test_it():\n    return\n    wrong()", 0, 0),
    "a failure that is expected (the exit code of pytest)": ("@pytest.mark.xfail\ndef test_it():\n    wrong()", 1, 1),
    "a failure that is caught (the exit code of pytest)": (
        "def test_it():\n    try:\n        wrong()\n    except AssertionError:\n        pass", 1, 1,
    ),
    "a failure that is asked for (pytest.raises)": ("def test_it():\n    with pytest.raises(AssertionError):\n        wrong()", 1, 1),
    "a failure before a right one (the last of a test)": (
        "def test_it():\n    try:\n        wrong()\n    except Exception:\n        right()", 2, 1,
    ),
    "a failure in a thread (the exit code of pytest)": (
        "import threading\n@pytest.mark.filterwarnings('ignore')\ndef test_it():\n"
        "    one = threading.Thread(target=wrong)\n    one.start()\n    one.join()", 1, 1,
    ),
    "a failure in a fixture that ends (tests that passed)": (
        "@pytest.fixture\ndef one():\n    yield\n    wrong()\n\ndef test_it(one):\n    pass", 1, 1,
    ),
    "a failure while it is collected (tests without failures)": ("wrong()\ndef test_it():\n    pass", 1, 1),
    "nothing that is compared (assertions that did not fail)": (
        "def test_it():\n    with pytest.raises(ValueError):\n        ulplab.assert_close(X[:0], X[:0] + 0, rtol=0)", 0, 0,
    ),
    "a limit that nothing can break (assertions that did not fail)": (
        "def test_it():\n    with pytest.raises(ValueError):\n        ulplab.assert_close(-X, X, cosine=-1)", 0, 0,
    ),
    "a test that is no test (files that were collected)": ("def check_it():\n    wrong()", 0, 0),
}


def suites(pytester, table):
    """A file for each suite, by its number."""
    for at, (suite, *_) in enumerate(table.values()):
        pytester.makepyfile(**{f"test_{at}": f"{HEAD}\n{suite}\n"})


def test_a_report_counts_what_was_asserted(pytester):
    suites(pytester, REPORTED)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--continue-on-collection-errors", "--ulplab-report", "out")
    total, failures = (sum(counts[at] for counts in REPORTED.values()) for at in (1, 2))
    result.stdout.fnmatch_lines([f"{total} assertions, {failures} failed: *index.html"])
    records = [json.loads(line) for line in (pytester.path / "out/assertions.jsonl").read_text().splitlines()]
    for at, (name, (_, assertions, failed)) in enumerate(REPORTED.items()):
        verdicts = [record["verdict"] for record in records if record["test"].startswith(f"test_{at}.py")]
        if "while it is collected" in name:
            # It is in no test.
            verdicts = [record["verdict"] for record in records if not record["test"]]
        assert (len(verdicts), verdicts.count("failed"), verdicts.count("passed")) == (assertions, failed, assertions - failed), name
    page = (pytester.path / "out/index.html").read_text()
    assert f"<h1>Assertions: {failures} failed, 0 warning, {total - failures} passed</h1>" in page


def test_a_report_keeps_nothing_of_the_run_before(pytester):
    """What failed before, and does not now, is not in the report; what is right now is not what passed before."""
    for body, failed in (("wrong()", 1), ("right()", 0)):
        pytester.makepyfile(f"{HEAD}\ndef test_it():\n    {body}\n")
        result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--ulplab-report", "out")
        result.stdout.fnmatch_lines([f"1 assertions, {failed} failed: *index.html"])
        records = (pytester.path / "out/assertions.jsonl").read_text().splitlines()
        assert len(records) == 1 and (json.loads(records[0])["verdict"] == "failed") == bool(failed)


# A suite under the audit, and what its gates let pass.
AUDITED = {
    "no gate (a list without faults)": ("def test_it():\n    assert True", None),
    "a gate that is skipped (a list without faults)": ("def test_it():\n    pytest.skip()", None),
    "a gate that fails (faults that it notices)": ("@pytest.mark.xfail\ndef test_it():\n    wrong()", None),
    "a gate of anything (a gate that passes)": ("def test_it():\n    ulplab.assert_close(X + 0, X, rtol=0, atol=1e9)",
        "lets pass: all zeros"),
    "numpy's gate, which is off (a gate that passes)": ("def test_it():\n    assert np.allclose(X + 0, X, atol=1e9)",
        "lets pass: all zeros"),
    "a cosine (a gate that passes)": ("def test_it():\n    ulplab.assert_close(X + 0, X, cosine=0.9)", "lets pass: "),
    "integers (a gate that notices all)": ("def test_it():\n    np.testing.assert_allclose(np.arange(3), np.arange(3))", None),
    "no elements (a gate that notices all)": ("def test_it():\n    np.testing.assert_allclose(X[:0], X[:0])", None),
}


def test_an_audit_says_what_it_asked(pytester):
    suites(pytester, AUDITED)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--ulplab-audit")
    said = result.outlines[next(at for at, line in enumerate(result.outlines) if "ulplab audit" in line) :]
    # The gate of integers is listed, not called noticed.
    assert any("not asked: test_6.py:" in line for line in said), said
    for at, (name, (_, expected)) in enumerate(AUDITED.items()):
        first = next((line for line, text in enumerate(said) if text.startswith(f"test_{at}.py:")), None)
        assert (first is None) == (expected is None), name
        of_gate = "" if first is None else said[first] + said[first + 1]
        assert (expected or "") in of_gate and "notices every fault" not in of_gate, (name, of_gate)


# What may become of a capsule, and what `reproduce` then says: it is silent only if the assertion holds.
CHANGED = {
    "got is missing (want alone)": lambda tensors, about: tensors.pop("got"),
    "want is missing (got alone)": lambda tensors, about: tensors.pop("want"),
    "got is empty (all() of nothing)": lambda tensors, about: tensors.update(got=tensors["got"][:0], want=tensors["want"][:0]),
    "got has a row less (the shorter of both)": lambda tensors, about: tensors.update(got=tensors["got"][:-1]),
    "nothing is asked (no limit)": lambda tensors, about: about["call"].update(rtol=None, atol=None),
    "an infinite limit (no limit)": lambda tensors, about: about["call"].update(rtol=float("inf")),
    "a limit that is NaN (no limit)": lambda tensors, about: about["call"].update(rtol=float("nan")),
    "a word that is not known (words that are)": lambda tensors, about: about["call"].update(tolerance=1e-3),
    "no call (got and want)": lambda tensors, about: about.pop("call"),
    "an operation, and no inputs (got and want)": lambda tensors, about: about["call"].update(op="rmsnorm", rtol=None, atol=None),
    "an operation that is not known (got and want)": lambda tensors, about: about["call"].update(op="norm", rtol=None, atol=None),
    "got in another type (numbers)": lambda tensors, about: tensors.update(got=tensors["got"].astype("float16")),
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The capsule of an assertion that fails."""
    folder = tmp_path_factory.mktemp("report")
    recorder = _records.Recorder(str(folder))
    _records.start(recorder)
    x = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    with pytest.raises(AssertionError):
        ulplab.assert_close(1.5 * x, x, rtol=1e-3)
    _records.start(None)
    return folder / recorder.records[0]["capsule"]


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
def test_a_changed_capsule_is_not_reproduced_in_silence(kept, tmp_path, change):
    with pytest.raises(AssertionError, match="outside"):
        ulplab.reproduce(kept)
    held, metadata = _files.read(kept)
    tensors = {name: stored.bits.view(stored.dtype) for name, stored in held.items()}
    about = json.loads(metadata["ulplab"])
    change(tensors, about)
    _files.write(tmp_path / "changed", tensors, {"ulplab": json.dumps(about)})
    with pytest.raises((AssertionError, ValueError), match="not judged|none that a report|expected|want is"):
        ulplab.reproduce(tmp_path / "changed")
