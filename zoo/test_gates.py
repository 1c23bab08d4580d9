"""Tables of tolerances are read, or refused with the place of the mistake; gates say what they ask for; the page is that of the tables."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from audit import Answer, Count, ask, gates_of, main
from gates import TABLES, Gate, Mistake, read
from gates_page import PAGE, settled, text

GOOD = """project = "mine"
[[gate]]
name = "norm"
op = "rmsnorm"
dtype = "bfloat16"
"""
KNOWN = ({"rmsnorm", "quantize"}, {"", "fp8"}, {"N1"})


def table(folder, words, start=GOOD):
    path = folder / "mine.toml"
    path.write_text(start + words)
    return path


def gate(**limits):
    return Gate("mine", "one", ("rmsnorm",), ("",), "float32", "right", (limits,))


@pytest.mark.parametrize(
    "words, said",
    [
        ("", "gate norm: nothing is asked for"),
        ("rtol = -1.0", "rtol = -1.0, expected a number of at least 0"),
        ("rtol = nan", "rtol = nan, expected a number"),
        ("cosine = 1.5", "cosine = 1.5, expected a number of at most 1"),
        ('rtol = "1e-2"', "rtol = '1e-2', expected a number"),
        ("rtol = true", "rtol = True, expected a number"),
        ("cosin = 0.9", "the key 'cosin' is not known, expected .*; is 'cosine' meant?"),
        ("mismatches = 0.1", "mismatches without rtol and atol"),
        ("overlap = 0.9\nrtol = 0.1", "overlap beside rtol"),
        ("rtol = 0.1\nany = [{ atol = 1.0 }]", "any = .*, expected a list of tables, and no rtol beside it"),
        ("any = [{ }]", "any, number 1: {}, expected rtol"),
        ("any = [{ rtol = 1, atl = 1 }]", "any, number 1: the key 'atl' is not known"),
        ('rtol = 1\nformats = "fp9"', "formats = 'fp9', expected some of fp8; is 'fp8' meant?"),
        ('rtol = 1\nreference = "both"', "reference = 'both', expected one of right, source"),
        ('rtol = 1\naccepts = ["N9"]', "accepts = 'N9', expected some of N1"),
        ('rtol = 1\n[[gate]]\nname = "norm"\nop = "quantize"\ndtype = "float32"\nrtol = 1', "two gates are called 'norm'"),
        ("rtol = [", "mine.toml: "),
    ],
)
def test_a_mistake_is_named(tmp_path, words, said):
    with pytest.raises(Mistake, match=said):
        read(table(tmp_path, words), *KNOWN)


@pytest.mark.parametrize(
    "start, said",
    [
        ('project = "mine"\n', "'gate' is missing"),
        ('project = "mine"\ngate = []\n', "there is no gate"),
        ('project = "mine"\ngate = [1]\n', "gate number 1 is 1, expected a table"),
        (GOOD.replace("rmsnorm", "rmsnorn"), r"op = 'rmsnorn', expected some of .*; is 'rmsnorm' meant\?"),
        (GOOD.replace("bfloat16", "float8"), "dtype = 'float8', expected one of"),
        (GOOD.replace('name = "norm"', ""), "'name' is missing"),
    ],
)
def test_a_mistake_in_the_head_is_named(tmp_path, start, said):
    with pytest.raises(Mistake, match=said):
        read(table(tmp_path, "rtol = 1\n" if start.startswith(GOOD[:30]) else "", start), *KNOWN)


WANT = np.array([[1.0, -2.0, 0.0, 100.0]], np.float32)


@pytest.mark.parametrize(
    "limits, inside, outside",
    [
        (dict(rtol=0.1, atol=0.5), [[1.5, -2.6, -0.4, 110]], [[1.5, -2.6, -0.6, 110]]),
        (dict(atol=0.5, mismatches=0.25), [[1, -2, 0, 3]], [[1, -2, 9, 3]]),
        (dict(mean_error=0.1), [[1, -2, 0, 110]], [[1, -2, 0, 111]]),
        (dict(relative_l2=0.1), [[1, -2, 0, 109]], [[1, -2, 0, 111]]),
        (dict(sqnr=20), [[1, -2, 0, 109]], [[1, -2, 0, 111]]),
        (dict(cosine=0.999), [[2, -4, 0, 200]], [[1, -2, 9, 100]]),
        (dict(max_abs=1), [[1, -2, 1, 100]], [[1, -2, 1.5, 100]]),
    ],
)
def test_a_gate_asks_for_what_it_says(limits, inside, outside):
    for dtype in (np.float32, np.float64):
        assert gate(**limits).passes(np.array(inside, dtype), WANT)
        assert not gate(**limits).passes(np.array(outside, dtype), WANT)
    assert not gate(**limits).passes(np.full_like(WANT, np.nan), WANT)
    assert not gate(**limits).passes(WANT.reshape(-1), WANT)


def test_alternatives_infinities_and_places():
    both = Gate("mine", "one", ("rmsnorm",), ("",), "float32", "right", ({"relative_l2": 1e-3}, {"max_abs": 0.3}))
    assert both.passes(WANT + np.float32(0.2), WANT) and not both.passes(WANT + np.float32(0.4), WANT)
    assert both.text() == "relative_l2 ≤ 0.001 or max_abs ≤ 0.3"
    few = np.where(np.arange(200) == 7, np.nan, np.zeros(200, np.float32))
    assert gate(atol=0.1, mismatches=0.01).passes(few, np.zeros(200, np.float32))
    assert not gate(atol=0.1, mismatches=0.01, finite=True).passes(few, np.zeros(200, np.float32))
    places = np.arange(200).reshape(2, 100)
    other = np.where(places % 100 < 3, 999, places[:, ::-1])
    assert gate(overlap=0.97).passes(other, places) and not gate(overlap=0.98).passes(other, places)


def test_outputs_are_rounded_to_the_type_of_the_gate():
    near = WANT * np.float32(1 + 2**-10)
    in_bf16 = Gate("mine", "one", ("rmsnorm",), ("",), "bfloat16", "right", ({"rtol": 1e-6},))
    assert in_bf16.passes(near, WANT) and not gate(rtol=1e-6).passes(near, WANT)


def test_what_is_known_of_gates_is_found(tmp_path, capsys):
    path = table(tmp_path, 'rtol = 1e-2\natol = 1e-2\n[[gate]]\nname = "zeros pass"\nop = "rmsnorm"\ndtype = "float32"\natol = 1e3\n')
    loose, norm = ask(gates_of([str(path)]), range(2))
    # Of RMSNorm's faults, a rounding that depends on the batch is within every tolerance.
    assert [norm.gate.name, norm.survivors(), norm.alarms()] == ["norm", ["N2"], []]
    assert loose.survivors() == ["N1", "N2", "N3", "S8"] and set(loose.zeros) == set(loose.survivors())
    assert norm.usual["S8"].hidden == 2 and norm.usual["S8"].passed == 0
    assert not any(count.passed for count in norm.ulplab_telling.values())
    assert main([str(path), "--seeds", "1"]) == 100
    said = capsys.readouterr().out
    assert "mine norm, bfloat16: rtol = 0.01, atol = 0.01" in said and "FAIL: of 2 gates, 2 let faults pass" in said
    assert main([str(path), "--seeds", "1", "--json"]) == 100
    rows = json.loads(capsys.readouterr().out)
    assert [row["gate"] for row in rows] == ["zeros pass", "norm"] and rows[1]["lets_pass"] == ["N2"]


def test_exit_codes(tmp_path, capsys):
    accepted = table(tmp_path, 'rtol = 1e-2\natol = 1e-2\naccepts = ["N2"]\n')
    assert main([str(accepted), "--seeds", "1"]) == 0
    idle = table(tmp_path, 'formats = "mxfp4"\nrtol = 1e-2\n')
    assert main([str(idle), "--seeds", "1"]) == 4
    assert "NOT ASKED: no fault of the zoo is one of rmsnorm in mxfp4" in capsys.readouterr().out
    assert main([str(table(tmp_path, "rtool = 1"))]) == 2
    assert "is 'rtol' meant?" in capsys.readouterr().err
    assert main([str(tmp_path / "none.toml")]) == 2
    assert "no such file" in capsys.readouterr().err
    # A gate that refuses what is right fails, too: where to round is a choice.
    strict = table(tmp_path, 'rtol = 1e-9\naccepts = ["N2"]\n')
    assert main([str(strict), "--seeds", "1"]) == 100
    assert "C3" in capsys.readouterr().out


def test_what_does_not_show_was_not_asked():
    assert Answer(gate(rtol=1), telling={"A8": Count(asked=2, hidden=2)}).exit() == 4
    assert Answer(gate(rtol=1), telling={"A8": Count(asked=2, hidden=1)}).exit() == 0
    assert Answer(gate(rtol=1), telling={"A8": Count(asked=2, hidden=1, passed=1)}).exit() == 100
    assert Answer(gate(rtol=1), controls={"C3": Count(asked=2, passed=1)}).exit() == 100


def test_who_reads_no_further_changes_no_exit_code(tmp_path):
    path = table(tmp_path, "rtol = 1e-2\natol = 1e-2\n")
    words = f"{sys.executable} audit.py {path} --seeds 1 | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", words], cwd=Path(__file__).parent, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (100, "")


def test_every_table_says_where_its_numbers_are():
    for path in sorted(TABLES.glob("*.toml")):
        for gate in gates_of([str(path)]):
            assert gate.source and gate.source.startswith("https://github.com/") and "/blob/" in gate.source, gate
    assert {gate.project for gate in gates_of([])} == {"vLLM", "SGLang", "FlashInfer", "fla", "torchao"}


def test_the_page_is_that_of_the_tables():
    assert settled(PAGE.read_text()) == settled(text()), "run python zoo/gates_page.py"
