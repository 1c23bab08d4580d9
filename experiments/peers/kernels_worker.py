"""A process of kernels.py: it prepares, compiles, checks and times the peers that it is told, one after the other.

It says what it has in one line of JSON, {"about", "peers", "absent"}; then it reads a line [operation/case, name] for each peer, and
answers each with a line {"times"} or {"why"}. Usage: kernels_worker.py GLOB
"""
import fnmatch
import gc
import json
import os
import string
import sys

# What prints to standard output must not get between the lines.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

# One process compiles one peer.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import torch

import kernels_formats
import kernels_limits
import kernels_linear
import kernels_model
import kernels_swap_ffn
from kernels_stopwatch import METHOD, Stopwatch
from kernels_turns import TURNS, first_call

# Those that are compiled longest come first.
MODULES = (kernels_linear, kernels_limits, kernels_model, kernels_formats, kernels_swap_ffn)
SECTIONS = {section: of for module in MODULES for section, of in module.SECTIONS.items()} | kernels_linear.LATER


def say(**answer):
    print(json.dumps(answer), file=ANSWERS, flush=True)


def all_peers(only):
    """All peers whose case matches, by case and name, and the sections asked for that cannot be set up, each with the reason."""
    found, absent = {}, {}
    for section, of in SECTIONS.items():
        # A section is an operation, except that of the limits of several.
        if section != "limits" and not fnmatch.fnmatch(section, only.split("/")[0]):
            continue
        try:
            found |= {(key, name): prepare for key, name, prepare in of() if fnmatch.fnmatch(key, only)}
        except Exception as why:
            absent[section] = said(why)
    return found, absent


def said(why):
    """An exception in one line, which may be long."""
    return f"{type(why).__name__}: {' '.join(str(why).split())[:300]}"


def settle():
    """Waits for this process's work, and returns the memory that it has no use for."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def usable():
    """Whether the card still works for this process: after an illegal access it does not."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def timed(prepare, watch):
    """Times of a peer that is right; a ValueError for one that is not."""
    with TURNS.alone():
        work, error, bound = prepare()
    with first_call(kernels_model.triton):
        off = error(work())
    if not off <= bound:
        raise ValueError(f"off by {off:.3g}, more than {bound:.3g}")
    with TURNS.alone():
        return watch.time(work)


def main():
    torch.set_grad_enabled(False)
    found, absent = all_peers(sys.argv[1])
    card = torch.cuda.get_device_properties(0)
    # The digits alone, without dashes or a word before them, are how ulplab names the card, too.
    TURNS.open("".join(digit for digit in str(card.uuid).lower() if digit in string.hexdigits)[-32:], settle)
    versions = {"torch": torch.__version__, "triton": getattr(kernels_model.triton, "__version__", None)}
    say(about={"device": card.name, "versions": versions, "method": METHOD}, peers=list(found), absent=absent)
    watch = Stopwatch()
    for line in sys.stdin:
        prepare = found[tuple(json.loads(line))]
        try:
            answer = {"times": timed(prepare, watch)}
        except Exception as why:
            answer = {"why": said(why)}
        # Each peer is compiled only for its own shapes. Its memory may be in circles.
        torch.compiler.reset()
        gc.collect()
        say(**answer)
        if not usable():
            sys.exit("the card is of no more use to this process")


if __name__ == "__main__":
    main()
