"""The program `ulplab`, which comes in the wheel with the files that it reads."""

import pathlib
import subprocess
import sysconfig

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
