#!/usr/bin/env python3
"""Times third-party implementations (peers) on one GPU, on the cases that `ulplab kernels check` times.

Writes JSON: {"device", "versions", "peers": {"<operation>/<case>": {"name", "us_cold", "us_graph", "all": […]}}, "limits": the same},
with the fastest cold peer of each case, and all peers; `ulplab kernels time --peers FILE` reports them beside its own times. Limits
move the bytes of a case and compute nothing. The file is written again after each peer; what it has of the same device and versions is
not timed again, so a run that was stopped goes on.

Every peer's output is compared with a plain torch expression before the peer is timed. The method is ulplab's: write twice the size of
the L2 cache before each repetition, record events around one call, take the median; then time many calls in one graph. The GPU is kept
busy while Python prepares the call, so that a peer's launches from Python are not counted.

Needs: torch and triton; torchao and fla-core to time their code, too   (written for torch 2.11, triton 3.6,
torchao 0.18, fla-core 0.6)
Usage: kernels.py OUTPUT.json [--seconds 150] [--only GLOB]
"""
import argparse
import fnmatch
import json
import os
import statistics
import subprocess
import sys
import time

# One compilation is small; many run at once, each in its own process.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import torch

import kernels_formats
import kernels_limits
import kernels_linear
import kernels_model
import kernels_swap_ffn
from kernels_common import DEVICE

STARTED = time.monotonic()
MODULES = (kernels_limits, kernels_model, kernels_formats, kernels_linear, kernels_swap_ffn)
SECTIONS = {section: of for module in MODULES for section, of in module.SECTIONS.items()}


def median(once, each):
    """Median in microseconds of as many repetitions as fit into 60 ms, at least 20, at most 200."""
    return statistics.median(once() for _ in range(min(200, max(20, int(60e3 / max(each, 0.5))))))


class Stopwatch:
    def __init__(self):
        cache = torch.cuda.get_device_properties(0).L2_cache_size
        self.flush = torch.empty(2 * max(cache, 64 << 20), dtype=torch.uint8, device=DEVICE)
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def once(self, work):
        begin, end = self.events
        begin.record()
        work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3

    def time(self, work):
        """Times cold, and in a graph if the work can be captured."""
        work()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        work()
        host = time.perf_counter() - begun
        torch.cuda.synchronize()
        estimate = self.once(work)

        def cold():
            # Cycles at about 2 GHz, enough for Python to enqueue the whole call.
            torch.cuda._sleep(int(1.5 * host * 2e9))
            self.flush.fill_(1)
            return self.once(work)

        times = {"us_cold": median(cold, estimate + 2e6 * host + 40)}
        batch = min(50, max(1, int(200 / max(times["us_cold"], 1))))
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(batch):
                    work()
            graph.replay()
            times["us_graph"] = median(lambda: self.once(graph.replay), times["us_cold"] * batch) / batch
        except RuntimeError as why:
            print(f"not captured: {str(why).splitlines()[0]}", file=sys.stderr)
        return times


def peers(only):
    """Yields all peers whose case matches; reports a section that cannot be set up."""
    for section, of in SECTIONS.items():
        try:
            yield from (peer for peer in of() if fnmatch.fnmatch(peer[0], only))
        except Exception as why:
            print(f"{section}: {type(why).__name__}: {why}", file=sys.stderr)


def compile_all(args, seconds):
    """Runs every peer once, in processes that share the caches of torch and triton."""
    count = min(16, os.cpu_count() or 1)
    command = [sys.executable, __file__, os.devnull, "--only", args.only]
    shares = [subprocess.Popen([*command, "--share", f"{i}/{count}"], stderr=subprocess.DEVNULL) for i in range(count)]
    for share in shares:
        try:
            share.wait(max(0, seconds - (time.monotonic() - STARTED)))
        except subprocess.TimeoutExpired:
            share.kill()


class Report:
    """The file of results: what it had is kept, and it is whole after each peer."""

    def __init__(self, path):
        self.path = path
        self.about = {
            "device": torch.cuda.get_device_name(),
            "versions": {"torch": torch.__version__, "triton": getattr(kernels_model.triton, "__version__", None)},
        }
        self.found = {}
        if os.path.exists(path) and os.path.getsize(path):
            with open(path) as file:
                before = json.load(file)
            if {key: before.get(key) for key in self.about} == self.about:
                for of in ("peers", "limits"):
                    self.found.update({(of, key): value["all"] for key, value in before.get(of, {}).items()})
            else:
                print(f"{path} is of another device or of other versions, and is written anew", file=sys.stderr)

    @staticmethod
    def _kind(name):
        return "limits" if name.startswith("limit: ") else "peers"

    def has(self, key, name):
        return any(peer["name"] == name for peer in self.found.get((self._kind(name), key), []))

    def add(self, key, name, times):
        self.found.setdefault((self._kind(name), key), []).append({"name": name, **times})
        fastest = lambda timed: min(timed, key=lambda peer: peer["us_cold"])
        of = lambda kind: {key: fastest(all) | {"all": all} for (at, key), all in self.found.items() if at == kind}
        with open(f"{self.path}.part", "w") as file:
            json.dump(self.about | {"peers": of("peers"), "limits": of("limits")}, file, indent=1)
        os.replace(f"{self.path}.part", self.path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output")
    parser.add_argument("--seconds", type=float, default=150, help="peers that are not timed by then are left out")
    parser.add_argument("--only", default="*", help="cases, as operation/case")
    parser.add_argument("--share", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    share, count = map(int, (args.share or "0/1").split("/"))
    report = None if args.share else Report(args.output)
    if report:
        compile_all(args, 0.4 * args.seconds)
    watch = Stopwatch() if report else None
    late = 0
    for at, (key, name, prepare) in enumerate(peers(args.only)):
        if at % count != share or report and report.has(key, name):
            continue
        if time.monotonic() - STARTED > args.seconds:
            late += 1
            continue
        try:
            work, error, bound = prepare()
            off = error(work())
            if not off <= bound:
                print(f"{key}, {name}: off by {off:.3g}, more than {bound:.3g}", file=sys.stderr)
            elif report:
                times = watch.time(work)
                report.add(key, name, times)
                print(f"{key}, {name}: " + ", ".join(f"{what} {value:.2f}" for what, value in times.items()), flush=True)
        except Exception as why:
            print(f"{key}, {name}: {type(why).__name__}: {why}", file=sys.stderr)
        # Each peer is compiled only for its own shapes.
        work = error = prepare = None
        torch.compiler.reset()
    if late:
        print(f"{late} peers are left out after {args.seconds:g} s; run it again to time them, too", file=sys.stderr)


if __name__ == "__main__":
    main()
