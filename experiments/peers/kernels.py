#!/usr/bin/env python3
"""Times third-party implementations (peers) on one GPU, on the cases that `ulplab kernels check` times.

Writes JSON: {"device", "versions", "method", "peers": {"<operation>/<case>": {"name", "us_cold", "us_graph", "all": […]}}, "limits":
the same, "unfit": {"<operation>/<case>, <name>": why}, "left_out": […], "absent": {"<operation>": why}}, with the fastest cold peer of
each case, and all peers; `ulplab kernels time --peers FILE` reports them beside its own times. Limits move the bytes of a case and
compute nothing. `left_out` names the peers that are not yet tried, `absent` the operations whose peers this Python cannot import. The
file is written again after each peer; what it has of the same device, versions and method is not timed again, so a run that was
stopped goes on.

Peers are compiled by several processes at a time, each of them many peers; whoever uses the card has it alone. Every peer's output is
compared with a plain torch expression before the peer is timed. The method is ulplab's: before each repetition, have the L2 cache let go of
lines that it was asked to keep, and write twice its size; record events around one call, take the median of 11 to 200: they end after 60
ms, or after 10 ms if half of the 95 % interval of the median is at most 0.5 % of it (`within`). Then many calls are timed in one graph. The
GPU is kept busy while Python prepares the call, so that a peer's launches from Python are not counted.

The exit code is 0 if all peers were tried, 103 if some are left out or absent, 96 if no process could begin.

Needs: torch and triton; torchao and fla-core to time their code, too   (written for torch 2.11, triton 3.6,
torchao 0.18, fla-core 0.6)
Usage: kernels.py OUTPUT.json [--seconds 240] [--only GLOB] [--jobs 12]
"""
import argparse
import collections
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time

#: Seconds that a peer may take, and that those at work may go on when time is over.
LONGEST, GRACE = 240, 15
INCOMPLETE, SETUP = 103, 96


class Report:
    """The file of results: what it had is kept, and it is whole after each peer."""

    def __init__(self, path, about, peers, absent):
        self.path, self.about, self.absent = path, about, absent
        self.found, self.unfit = {}, {}
        self.pending = collections.OrderedDict.fromkeys(peers)
        if os.path.exists(path) and os.path.getsize(path):
            with open(path) as file:
                before = json.load(file)
            if {key: before.get(key) for key in about} == about:
                self._keep(before)
            else:
                print(f"{path} is of another device, of other versions or of another method, and is written again", file=sys.stderr)
        self.write()

    def _keep(self, before):
        for of in ("peers", "limits"):
            self.found.update({(of, key): value["all"] for key, value in before.get(of, {}).items()})
        self.unfit = before.get("unfit", {})
        for (_, key), timed in self.found.items():
            for peer in timed:
                self.pending.pop((key, peer["name"]), None)

    @staticmethod
    def _kind(name):
        return "limits" if name.startswith("limit: ") else "peers"

    def timed(self, peer, times):
        key, name = peer
        self.found.setdefault((self._kind(name), key), []).append({"name": name, **times})
        self.unfit.pop(f"{key}, {name}", None)
        self._tried(peer)

    def failed(self, peer, why):
        self.unfit[", ".join(peer)] = why
        self._tried(peer)

    def _tried(self, peer):
        self.pending.pop(peer, None)
        self.write()

    def write(self):
        fastest = lambda timed: min(timed, key=lambda peer: peer["us_cold"])
        of = lambda kind: {key: fastest(all) | {"all": all} for (at, key), all in self.found.items() if at == kind}
        told = self.about | {"peers": of("peers"), "limits": of("limits"), "unfit": self.unfit}
        told |= {"left_out": [", ".join(peer) for peer in self.pending], "absent": self.absent}
        with open(f"{self.path}.part", "w") as file:
            json.dump(told, file, indent=1)
        os.replace(f"{self.path}.part", self.path)


class Worker:
    """A process that tries peers; what it says arrives in a queue, and None when it ends."""

    def __init__(self, command, heard):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.peer, self.since, self.kind = None, time.monotonic(), None
        threading.Thread(target=self._listen, args=(heard,), daemon=True).start()

    def _listen(self, heard):
        for line in self.process.stdout:
            heard.put((self, json.loads(line)))
        self.process.wait()
        heard.put((self, None))

    def give(self, peer):
        """Has it try a peer; without one, it ends."""
        self.peer, self.since = peer, time.monotonic()
        try:
            if peer:
                self.process.stdin.write(json.dumps(peer) + "\n")
                self.process.stdin.flush()
            else:
                self.process.stdin.close()
        except BrokenPipeError:
            # Its end is heard of, too.
            pass


class Waiting:
    """Peers that nobody has begun, by operation and kind: a worker stays at a kind, whose next case often needs no new compilation."""

    def __init__(self, peers=()):
        self.kinds = {}
        for peer in peers:
            self.kinds.setdefault(peer[0].split(".")[0], collections.deque()).append(peer)
        self.begun = set()

    def __bool__(self):
        return any(self.kinds.values())

    def take(self, worker):
        """The next peer of the worker's kind; else of the first kind that nobody is at; else the last of the kind with the most left."""
        if not self.kinds.get(worker.kind):
            fresh = [kind for kind, left in self.kinds.items() if left and kind not in self.begun]
            if not fresh:
                return max(self.kinds.values(), key=len).pop()
            worker.kind = fresh[0]
            self.begun.add(worker.kind)
        return self.kinds[worker.kind].popleft()


class Peers:
    """Gives peers to workers, and keeps what they find."""

    def __init__(self, args):
        self.args, self.started = args, time.monotonic()
        self.heard, self.workers = queue.Queue(), []
        self.report, self.waiting = None, Waiting()

    def begin_worker(self):
        self.workers.append(Worker([*self.args.worker, self.args.only], self.heard))

    def spent(self):
        return time.monotonic() - self.started

    def next(self, worker):
        """What a worker does next."""
        worker.give(self.waiting.take(worker) if self.waiting and self.spent() < self.args.seconds else None)

    def say(self, peer, text, file):
        left = len(self.report.pending)
        print(f"{self.spent():.0f} s, {left} to do: {', '.join(peer)}: {text}", file=file, flush=True)

    def begin(self, hello):
        """The first worker knows what there is."""
        self.report = Report(self.args.output, hello["about"], map(tuple, hello["peers"]), hello["absent"])
        self.waiting = Waiting(self.report.pending)
        self.say_absent()

    def say_absent(self):
        for section, why in self.report.absent.items():
            print(f"no peers of {section}: {why}", file=sys.stderr, flush=True)

    def answer(self, worker, said):
        if "about" in said:
            if self.report is None:
                self.begin(said)
        elif "times" in said:
            self.report.timed(worker.peer, said["times"])
            numbers = [(what, value) for what, value in said["times"].items() if isinstance(value, float)]
            self.say(worker.peer, ", ".join(f"{what} {value:.4g}" for what, value in numbers), sys.stdout)
        else:
            self.report.failed(worker.peer, said["why"])
            self.say(worker.peer, said["why"], sys.stderr)
        self.next(worker)

    def ended(self, worker):
        self.workers.remove(worker)
        if worker.peer and self.report:
            why = f"its process ended with {worker.process.returncode}"
            self.report.failed(worker.peer, why)
            self.say(worker.peer, why, sys.stderr)
            if self.waiting and self.spent() < self.args.seconds:
                self.begin_worker()

    def end_late(self):
        """Ends workers whose peers take too long, and all that go on after the end."""
        for worker in self.workers:
            took = time.monotonic() - worker.since
            if worker.peer and took > LONGEST or self.spent() > self.args.seconds + GRACE:
                if self.spent() > self.args.seconds:
                    # Left out, not unfit.
                    worker.peer = None
                worker.process.kill()

    def run(self):
        for _ in range(self.args.jobs):
            self.begin_worker()
        try:
            while self.workers:
                try:
                    worker, said = self.heard.get(timeout=1)
                    self.answer(worker, said) if said is not None else self.ended(worker)
                except queue.Empty:
                    pass
                self.end_late()
        finally:
            for worker in self.workers:
                worker.process.kill()
        if self.report is None:
            print("no process for peers could begin", file=sys.stderr)
            return SETUP
        left = len(self.report.pending)
        if left:
            print(f"{left} peers are left out after {self.spent():.0f} s; run it again to time them, too", file=sys.stderr)
        self.say_absent()
        return INCOMPLETE if left or self.report.absent else 0


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output")
    parser.add_argument("--seconds", type=float, default=240, help="no peer is begun after that")
    parser.add_argument("--only", default="*", help="cases, as operation/case")
    parser.add_argument("--jobs", type=int, default=min(12, os.cpu_count() or 1), help="processes")
    worker = [sys.executable, os.path.join(here, "kernels_worker.py")]
    parser.add_argument("--worker", nargs=argparse.REMAINDER, help=argparse.SUPPRESS, default=worker)
    # Stopping it stops its processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(Peers(parser.parse_args()).run())


if __name__ == "__main__":
    main()
