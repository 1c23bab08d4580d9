"""Inputs that show faults: they are right calls, exact where they say so, and right kernels pass on them."""

import os
from pathlib import Path

import numpy as np
import pytest
import ulplab
from draws import KERNELS, OPERATIONS
from ml_dtypes import bfloat16
from telling import ask, asked, small

TYPES = [bfloat16, np.float16, np.float32]
# Examples of each operation and type; each has sixteen inputs. ULPLAB_TELLING=100 makes 1,600 draws of each pair.
EXAMPLES = int(os.environ.get("ULPLAB_TELLING", "1"))
PACKAGE = Path(ulplab.__file__).resolve().parent


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("op", OPERATIONS)
def test_no_right_kernel_is_outside_on_inputs_that_tell(op, dtype):
    found = asked(op, dtype, range(EXAMPLES))
    assert not found.alarms, "\n".join(found.alarms)
    assert found.judged >= 4 * EXAMPLES


@pytest.mark.parametrize("op", OPERATIONS)
def test_the_first_inputs_show_most(op):
    made = ulplab.inputs(op, like=small(op, np.float32, 0))
    assert 4 <= len(made) <= 16
    counts = [len(one.faults) for one in made]
    assert counts == sorted(counts, reverse=True)
    assert len({fault for one in made for fault in one.faults}) == sum(counts)
    assert ulplab.inputs(op, like=small(op, np.float32, 0), budget=3)[0].keys() == made[0].keys()


def test_exact_inputs_allow_nothing():
    exact = [one for one in ulplab.inputs("matmul") if one.exact]
    assert exact
    for given in exact:
        want = given["a"] @ given["b"]
        ulplab.assert_close(want, op="matmul", inputs=given)
        wrong = want.copy()
        wrong.flat[-1] = np.nextafter(wrong.flat[-1], np.float32(np.inf))
        with pytest.raises(AssertionError, match="1 of"):
            ulplab.assert_close(wrong, op="matmul", inputs=given)


def test_what_is_rounded_is_not_exact():
    given = dict(a=np.float32([[3, 2**24]]), b=np.float32([[1], [1]]))
    ulplab.assert_close(np.float32([[2**24 + 2]]), op="matmul", inputs=given)
    ulplab.assert_close(np.float32([[2**24 + 4]]), op="matmul", inputs=given)


def test_numbers_and_types_of_the_example_stay():
    like = dict(x=np.ones((5, 24), np.float16), weight=np.ones(24, np.float16), eps=0.25, zero_centered=False)
    made = ulplab.inputs("rmsnorm", like=like)
    assert all(one["x"].dtype == np.float16 and one["eps"] == 0.25 and one.keys() == like.keys() for one in made)
    assert {one["zero_centered"] for one in made} == {0, 1}
    assert {one["zero_centered"] for one in ulplab.inputs("rmsnorm", like=like, vary=())} == {0}
    assert not all(one["x"].flags.c_contiguous for one in made)
    assert all(one["x"].flags.c_contiguous for one in ulplab.inputs("rmsnorm", like=like, strides=False))


def test_tensors_of_torch_stay_tensors():
    torch = pytest.importorskip("torch")
    made = ulplab.inputs("softmax", like=dict(x=torch.ones(5, 24, dtype=torch.bfloat16)))
    assert all(one["x"].dtype == torch.bfloat16 for one in made)
    assert not all(one["x"].is_contiguous() for one in made)


@pytest.mark.parametrize("like, said", [(dict(x=np.ones(3)), "matmul takes no 'x'"), (dict(a=np.ones((2, 2))), "'b' .* is missing")])
def test_an_example_that_is_no_call_is_refused(like, said):
    with pytest.raises(ValueError, match=said):
        ulplab.inputs("matmul", like=like)


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(ValueError, match="budget = 0, expected an integer of at least 1"):
        ulplab.inputs("softmax", budget=0)


def test_the_generator_knows_nothing_of_the_zoo():
    root = Path(__file__).resolve().parents[2]
    faults = {path.stem for path in (root / "zoo/faults").glob("*.py")}
    sources = [PACKAGE / "_telling.py", PACKAGE / "_minimize.py", *(root / "crates/operations/expected/telling").glob("*.rs")]
    assert len(sources) >= 5 and len(faults) > 80
    for source in sources:
        text = source.read_text()
        assert "zoo" not in text and not any(fault in text for fault in faults)


def norm_without_tail(x, weight, eps=1e-6):
    """A kernel that leaves out the columns after the last whole eight."""
    kept = x[:, : x.shape[1] // 8 * 8]
    return (x / np.sqrt((kept * kept).sum(-1, keepdims=True) / x.shape[1] + np.float32(eps)) * weight).astype(np.float32)


def test_a_failing_input_becomes_small(tmp_path):
    like = dict(x=np.random.default_rng(0).standard_normal((40, 512), np.float32), weight=np.ones(512, np.float32), eps=1e-6)
    ulplab.assert_close(norm_without_tail(**like), op="rmsnorm", inputs=like)
    failing = []
    for one in ulplab.inputs("rmsnorm", like=like):
        try:
            ulplab.assert_close(norm_without_tail(**one), op="rmsnorm", inputs=one)
        except AssertionError:
            failing.append(one)
    assert failing
    path = tmp_path / "least.safetensors"
    least = ulplab.minimize(norm_without_tail, "rmsnorm", failing[0], path=path)
    assert least["x"].size <= 9 and "outside" in least.why
    with pytest.raises(AssertionError, match="outside"):
        ulplab.reproduce(path)


def test_a_kernel_that_is_right_is_not_minimized():
    with pytest.raises(ValueError, match="not judged: minimize: the kernel is within the bound"):
        ulplab.minimize(lambda x: x, "state_transpose", dict(x=np.ones((2, 2, 2))))


def test_untold_faults_are_said_once_and_fail_nothing(recwarn):
    given = dict(x=np.random.default_rng(0).standard_normal((640, 512), np.float32), eps=1e-6)
    got = (given["x"] / np.sqrt((given["x"] ** 2).mean(-1, keepdims=True) + 1e-6)).astype(np.float32)
    for _ in range(2):
        ulplab.assert_close(got, op="rmsnorm", inputs=given)
    said = [one for one in recwarn if one.category is ulplab.UntoldWarning]
    assert len(said) == 1 and "faults, which would pass" in str(said[0].message)
    assert said[0].filename == __file__


@pytest.mark.filterwarnings("error")
def test_untold_faults_are_no_error():
    given = dict(x=np.random.default_rng(0).standard_normal((640, 512), np.float32), eps=1e-6)
    got = (given["x"] / np.sqrt((given["x"] ** 2).mean(-1, keepdims=True) + 1e-6)).astype(np.float32)
    ulplab.assert_close(got, op="rmsnorm", inputs=given)


@pytest.mark.filterwarnings("ignore")
def test_ask_finds_a_kernel_that_is_wrong():
    """The draws of this file notice a fault: a softmax without its largest element."""

    def wrong(rng, x, scale=1.0, dtype=np.float32):
        p = KERNELS["softmax"](rng, x=x, scale=scale, dtype=dtype)
        return (p.astype(np.float32) * np.float32(1.01)).astype(dtype)

    assert ask("softmax", np.float32, 0, wrong).alarms


@pytest.mark.filterwarnings("ignore")
def test_the_code_of_the_docs_runs(tmp_path, monkeypatch):
    text = (Path(__file__).resolve().parents[2] / "docs/python.md").read_text()
    section = text.split("### Inputs that tell")[1].split("\n### ")[0]
    blocks = [part.split("```")[0] for part in section.split("```python\n")[1:]]
    assert len(blocks) == 2
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((5, 60), 60))

    def right(x, weight, eps):
        return (x.astype(float) / np.sqrt((x.astype(float) ** 2).mean(-1, keepdims=True) + eps) * weight).astype(np.float32)

    names = {"ulplab": ulplab, "x": x, "w": w, "rmsnorm": right}
    exec(blocks[0], names)
    names |= {"rmsnorm": norm_without_tail, "failing": dict(x=x, weight=w, eps=1e-6)}
    exec(blocks[1], names)
    with pytest.raises(AssertionError, match="outside"):
        ulplab.reproduce("least.safetensors")
