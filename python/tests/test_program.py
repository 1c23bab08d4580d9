"""The program `ulplab`, which comes in the wheel with the files that it reads."""

import pathlib
import subprocess
import sys
import sysconfig

import pytest

PROGRAM = pathlib.Path(sysconfig.get_path("scripts")) / "ulplab"
SHARED = pathlib.Path(sysconfig.get_path("data")) / "share" / "ulplab"


def run(*words, cwd):
    return subprocess.run([PROGRAM, *words], cwd=cwd, capture_output=True, text=True, check=True).stdout


def test_the_program_is_beside_python(tmp_path):
    import ulplab

    assert run("--version", cwd=tmp_path).split() == ["ulplab", ulplab.__version__]
    assert "nvfp4" in run("list", "formats", cwd=tmp_path)


def test_its_kernels_and_experiments_are_there(tmp_path):
    assert (SHARED / "kernels" / "rope.cu").is_file()
    assert (SHARED / "experiments" / "kv_cache.toml").is_file()
    assert "rope" in run("kernels", "list", cwd=tmp_path)


def test_tables_of_tolerances_are_audited_by_the_python_beside_it(tmp_path):
    words = [PROGRAM, "audit", "sglang", "--seeds", "1"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (100, "")
    assert "SGLang test_norm, float16: rtol = 0.001, atol = 0.001" in done.stdout and "FAIL: of 9 gates" in done.stdout


def test_importing_it_imports_nothing_else(tmp_path):
    program = "import sys, ulplab; print([name for name in ('numpy', 'torch', 'pytest', 'ulplab.reference') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_all_names_are_there():
    import ulplab

    for name in ulplab.__all__:
        assert getattr(ulplab, name) is not None
    assert set(ulplab.__all__) <= set(dir(ulplab))
    with pytest.raises(AttributeError, match="has no attribute 'asert_close'"):
        ulplab.asert_close  # noqa: B018
