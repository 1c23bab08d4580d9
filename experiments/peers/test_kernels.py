"""Tests of what times peers, as far as neither torch nor a GPU is needed: workers that only answer stand in for those that compile."""
import fcntl
import itertools
import json
import math
import multiprocessing
import subprocess
import sys
import time
from pathlib import Path

import pytest

import kernels_repetitions as repetitions
from kernels import Waiting
from kernels_turns import Turns

HERE = Path(__file__).resolve().parent
PEERS = [("rope/t1", "fast"), ("rope/t1", "slow"), ("rope/t1", "limit: 1"), ("rope/t2", "wrong"), ("rope/t2", "dies"), ("rope/t2", "late")]

# It notes its requests; its behaviour is in the name of the peer.
WORKER = """
import json, os, sys, time
said = lambda **what: print(json.dumps(what), flush=True)
said(about={"device": "card", "versions": {}}, peers=json.loads(sys.argv[1]), absent=json.loads(sys.argv[3]))
for line in sys.stdin:
    key, name = json.loads(line)
    with open(sys.argv[2], "a") as notes:
        notes.write(name + "\\n")
    if name == "dies":
        os._exit(7)
    time.sleep(0.2 if name == "late" else 0)
    said(why="off by 1, more than 0.1") if name == "wrong" else said(times={"us_cold": {"slow": 3.0}.get(name, 2.0), "within": 0.001})
"""


@pytest.fixture
def bench(tmp_path):
    """Runs kernels.py with stand-ins for its workers: the process that ended, the file of results, and what the workers were asked for."""
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)

    def run(*options, peers=PEERS, absent={}):
        notes = tmp_path / "notes"
        notes.write_text("")
        command = [sys.executable, HERE / "kernels.py", tmp_path / "peers.json", *options]
        worker_command = [sys.executable, worker, json.dumps(peers), notes, json.dumps(absent)]
        ended = subprocess.run([*command, "--worker", *worker_command], capture_output=True, text=True, timeout=60)
        return ended, json.loads((tmp_path / "peers.json").read_text()), sorted(notes.read_text().split("\n")[:-1])

    return run


@pytest.mark.parametrize("jobs", ["1", "3"])
def test_all_peers_are_tried_whatever_some_of_them_do(bench, jobs):
    ended, file, asked = bench("--jobs", jobs)
    assert ended.returncode == 0, ended.stderr
    assert asked == sorted(name for _, name in PEERS)
    assert file["device"] == "card" and file["left_out"] == []
    assert {key: peer["name"] for key, peer in file["peers"].items()} == {"rope/t1": "fast", "rope/t2": "late"}
    assert [peer["name"] for peer in file["limits"]["rope/t1"]["all"]] == ["limit: 1"]
    assert sorted(peer["name"] for peer in file["peers"]["rope/t1"]["all"]) == ["fast", "slow"]
    assert file["unfit"] == {"rope/t2, wrong": "off by 1, more than 0.1", "rope/t2, dies": "its process ended with 7"}
    # Each line says how many are left.
    assert len(ended.stdout.splitlines()) == 4
    assert " 0 to do: " in ended.stdout + ended.stderr


def test_what_is_left_out_is_named_and_tried_by_the_next_call(bench):
    ended, file, asked = bench("--seconds", "0")
    assert (ended.returncode, asked) == (103, [])
    assert sorted(file["left_out"]) == sorted(", ".join(peer) for peer in PEERS)
    assert "6 peers are left out" in ended.stderr
    bench("--jobs", "1", peers=PEERS[:1])
    ended, file, asked = bench("--jobs", "2")
    assert ended.returncode == 0 and "fast" not in asked and len(asked) == 5
    # Those that are unfit may be fit by now.
    _, again, asked = bench("--jobs", "2")
    assert asked == ["dies", "wrong"] and again == file


def test_peers_that_python_lacks_are_named_and_not_whole(bench):
    absent = {"delta_decode": "ModuleNotFoundError: No module named 'fla'"}
    ended, file, asked = bench(absent=absent)
    assert ended.returncode == 103 and asked == sorted(name for _, name in PEERS)
    assert file["absent"] == absent and file["left_out"] == []
    # Said first, and again at the end, where it is read.
    assert ended.stderr.count("no peers of delta_decode: ModuleNotFoundError: No module named 'fla'") == 2
    assert bench()[0].returncode == 0


def test_what_is_cut_is_not_whole_and_loses_nothing(bench, tmp_path):
    many = [("rope/t1", "fast")] + [(f"rope/t{i}", "late") for i in range(2, 40)]
    ended, file, _ = bench("--jobs", "1", "--seconds", "1.2", peers=many)
    timed = sum(len(of["all"]) for of in file["peers"].values())
    assert ended.returncode == 103 and 0 < timed < len(many)
    assert timed + len(file["left_out"]) == len(many)


def test_results_of_another_card_are_not_kept(bench, tmp_path):
    before = {"device": "other", "versions": {}, "peers": {"rope/t1": {"all": [{"name": "fast", "us_cold": 1}]}}}
    (tmp_path / "peers.json").write_text(json.dumps(before))
    ended, file, asked = bench()
    assert "written again" in ended.stderr and "fast" in asked and file["device"] == "card"


def test_workers_that_cannot_begin_are_no_peers(tmp_path):
    command = [sys.executable, HERE / "kernels.py", tmp_path / "peers.json", "--jobs", "2", "--worker", sys.executable, "-c", "1/0"]
    assert subprocess.run(command, capture_output=True, timeout=60).returncode == 96
    assert not (tmp_path / "peers.json").exists()


def test_a_worker_stays_at_a_kind_until_it_is_done():
    class Worker:
        kind = None

    peers = [(f"rope/{kind}.t{i}", "torch") for kind in ("bf16", "f32") for i in range(3)]
    waiting, first, second, third = Waiting(peers), Worker(), Worker(), Worker()
    assert [waiting.take(worker) for worker in (first, second, first)] == [peers[0], peers[3], peers[1]]
    # Who has no kind of its own takes the last of those with the most left.
    assert waiting.take(third) == peers[5]
    assert [waiting.take(worker) for worker in (second, second)] == [peers[4], peers[2]]
    assert not waiting


# --- turns


def opened(folder):
    turns = Turns()
    turns.open("card", lambda: None)
    return turns


def take(path):
    turns = opened(None)
    with turns.alone():
        Path(path).write_text("taken")


@pytest.fixture
def locks(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def test_a_turn_is_alone_and_lent_only_where_it_says_so(locks):
    process = multiprocessing.get_context("spawn").Process(target=take, args=(locks / "taken",))
    turns = opened(None)
    taken = lambda: (locks / "taken").exists()
    with turns.alone():
        process.start()
        time.sleep(1.5)
        # Neither a turn within a turn, nor `away` in a turn that is not lent, ends it.
        with turns.alone():
            pass
        with turns.away():
            time.sleep(0.2)
        assert not taken() and process.is_alive()
    process.join(20)
    assert taken()


def test_others_have_a_lent_turn_while_nothing_needs_the_card(locks):
    turns = opened(None)
    with turns.lent():
        process = multiprocessing.get_context("spawn").Process(target=take, args=(locks / "taken",))
        process.start()
        time.sleep(1.5)
        assert process.is_alive()
        with turns.away():
            process.join(20)
        assert (locks / "taken").exists()
        # It is alone again.
        other = Turns()
        other.open("card", lambda: None)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other.file, fcntl.LOCK_EX | fcntl.LOCK_NB)


# --- repetitions


def timed(values, each):
    """The median, how well it is known, and how many repetitions of these times there were, each `each` seconds."""
    now, count = [0.0], itertools.count()
    values = itertools.cycle(values)

    def once():
        now[0] += each
        next(count)
        return next(values)

    return *repetitions.median(once, lambda: now[0]), next(count)


def test_repetitions_end_when_the_median_is_known():
    median, within, count = timed([100.0, 100.1, 99.9], 1e-4)
    # At the first check after 10 ms.
    assert median == 100.0 and within <= 0.005 and 100 <= count <= 110
    # What varies takes until its time is over, or as many as there may be.
    assert timed([100.0, 130.0], 1e-3)[2] == 60
    assert timed([100.0, 130.0], 1e-4)[2] == 200
    # What is slow is repeated a few times.
    assert timed([100.0], 1.0)[2] == 11


@pytest.mark.parametrize("n", [11, 20, 60, 200])
def test_the_interval_is_of_95_percent(n):
    """The probability that the median of a population is between the two order statistics, from the binomial distribution."""
    values = list(range(1, n + 1))
    half = repetitions.half_interval(values) * (n + 1) / 2
    low = round((n - 1) / 2 - half)
    outside = 2 * sum(math.comb(n, k) for k in range(low + 1)) / 2**n
    assert 0.95 <= 1 - outside <= 0.99
