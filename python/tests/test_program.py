"""The program `ulplab`, which is in the wheel's module, with the files that it reads."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import sysconfig
import time

import pytest

PROGRAM = pathlib.Path(sysconfig.get_path("scripts")) / "ulplab"
SHARED = pathlib.Path(sysconfig.get_path("data")) / "share" / "ulplab"
REPOSITORY = pathlib.Path(__file__).parents[2]
# How it is started: as a script, and as a module.
WAYS = [[str(PROGRAM)], [sys.executable, "-m", "ulplab"]]


def run(*words, cwd, program=WAYS[0], code=0):
    done = subprocess.run([*program, *words], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout


@pytest.mark.parametrize("program", WAYS, ids=["script", "module"])
def test_the_program_is_beside_python(tmp_path, program):
    import ulplab

    assert run("--version", cwd=tmp_path, program=program).split() == ["ulplab", ulplab.__version__]
    assert "nvfp4" in run("list", "formats", cwd=tmp_path, program=program)
    assert "Usage: ulplab sweep " in run("sweep", "--help", cwd=tmp_path, program=program)


def test_its_kernels_and_experiments_are_there(tmp_path):
    assert (SHARED / "kernels" / "rope.cu").is_file()
    assert (SHARED / "experiments" / "kv_cache.toml").is_file()
    assert "rope" in run("kernels", "list", cwd=tmp_path)
    assert "round_trip" in run("list", "experiments", cwd=tmp_path)
    # It starts Python, here another program, with the file that it found.
    assert run("audit", "vllm", "--python", "echo", cwd=tmp_path).startswith(f"{SHARED}/zoo/audit.py ")


def test_files_and_pages_name_the_program(tmp_path):
    assert "ulplab" in run("dev", "completions", "bash", cwd=tmp_path)
    run("dev", "man", "man", cwd=tmp_path)
    assert (tmp_path / "man" / "ulplab-sweep.1").is_file()
    words = ["submit", "smoke", "--slurm", "--tasks", "2", "--cpus", "1", "--time", "1", "--print", "--datasets", REPOSITORY / "datasets"]
    told = run(*words, cwd=tmp_path)
    python = re.search(r"exec (\S+) ", told)[1]
    assert os.path.samefile(python, sys.executable)
    assert f"exec {python} {PROGRAM} sweep " in told and f"exec {python} {PROGRAM} merge " in told


def test_exit_codes_and_errors_are_those_of_the_program(tmp_path):
    for words, code, said in [
        (["nothing"], 2, "unrecognized subcommand 'nothing'"),
        (["sweep", "nowhere.toml"], 2, "nowhere.toml"),
        (["gate", "nowhere"], 2, "nowhere: there is no such folder"),
        (["gate", "."], 2, "run.json"),
        (["dev", "man", "/dev/null/man"], 96, "/dev/null/man"),
    ]:
        done = subprocess.run([PROGRAM, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert said in done.stderr and "Traceback" not in done.stderr


def test_words_that_are_no_text_are_taken(tmp_path):
    name = os.fsdecode(b"k\xff.toml")
    text = (REPOSITORY / "experiments" / "own_op.toml").read_text()
    (tmp_path / name).write_text(text.replace("examples/", f"{REPOSITORY}/examples/"))
    assert "softmax.python" in run("sweep", name, "--dry-run", cwd=tmp_path)


def test_a_reader_may_go_away_and_streams_may_be_closed(tmp_path):
    piped = f"{PROGRAM} dev schema; echo $? >&2"
    shell = subprocess.run(["sh", "-c", f"({piped}) | head -1"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (shell.stdout.strip(), shell.stderr.strip()) == ("{", "0")
    closed = ["sh", "-c", f"exec {PROGRAM} quantize x.safetensors --format mxfp8 -o y.safetensors <&- >&- 2>&-"]
    write(tmp_path / "x.safetensors")
    assert subprocess.run(closed, cwd=tmp_path, check=False).returncode == 0
    assert "x.scale" in (tmp_path / "y.safetensors").read_bytes()[:1000].decode("latin-1")


def write(path):
    import numpy

    from ulplab import _files

    _files.write(path, {"x": numpy.ones((4, 64), numpy.float32)}, {})


def test_tables_of_tolerances_are_audited_by_the_python_that_runs_it(tmp_path):
    words = [PROGRAM, "audit", "sglang", "--seeds", "1"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (100, "")
    assert "SGLang test_norm, float16: rtol = 0.001, atol = 0.001" in done.stdout and "FAIL: of 9 gates" in done.stdout


def own_ops(folder, *names):
    """An experiment with the operation of experiments/own_op.toml under each of the names."""
    text = (REPOSITORY / "experiments" / "own_op.toml").read_text().replace("examples/", f"{REPOSITORY}/examples/")
    head, rest = text[: text.index("[[op]]")], text[text.index("[[op]]") : text.index("[[gate]]")]
    ops = [rest.replace('"softmax"', f'"{name}"') for name in names]
    (folder / "ops.toml").write_text(head + "".join(ops) + text[text.index("[[gate]]") :])


@pytest.mark.parametrize("program", WAYS, ids=["script", "module"])
def test_it_starts_itself_again_to_share_work(tmp_path, program):
    own_ops(tmp_path, "first", "second")
    told = run("kernels", "check", "ops.toml", "--jobs", "2", "--out", "run", cwd=tmp_path, program=program)
    assert "PASS" in told
    sessions = [json.loads(file.read_text()) for file in (tmp_path / "run" / "sessions").iterdir()]
    assert sorted(session["partition"] for session in sessions) == ["op:first", "op:second"]


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_sweep(tmp_path, sent):
    words = [PROGRAM, "sweep", "round_trip", "--out", "run", "--threads", "1", "--datasets", REPOSITORY / "datasets"]
    child = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    cells = tmp_path / "run" / "cells"
    begun = time.monotonic()
    while child.poll() is None and not any(cells.glob("*.jsonl")):
        assert time.monotonic() < begun + 120, "no cell finished in two minutes"
        time.sleep(0.01)
    child.send_signal(sent)
    said = child.communicate(timeout=60)[1]
    assert child.returncode == 130, said
    assert "--resume" in said and "Traceback" not in said
    run("gate", "run", cwd=tmp_path, code=103)


def test_a_signal_ends_what_does_not_take_it(tmp_path):
    # Whoever runs the tests in the background ignores the signal, and so would what they start.
    def heeding():
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    words = [PROGRAM, "dev", "bench", "formats", "--repeats", "1000000"]
    child = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, preexec_fn=heeding)
    begun = time.monotonic()
    while child.poll() is None and user_seconds(child.pid) < 1:
        assert time.monotonic() < begun + 120, "it has not begun in two minutes"
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    try:
        assert child.wait(timeout=60) == 130
    finally:
        child.kill()


def user_seconds(process):
    """Processor time of a process, in seconds: to start takes a tenth of one."""
    fields = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK")


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
