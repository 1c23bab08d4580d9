"""Perplexities with faults: writes zoo/perplexity.json. `python zoo/perplexity.py [ID…]` measures all entries, or some again.

A trained model of `datasets/` reads a window of held-out text in one shot, once with the kernel of an entry in it and once with its
fault, in all layers that have the operation. Perplexity passes a fault that changes it by less than 1 %.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import time
from pathlib import Path

import models
import numpy as np
from entry import entries
from places import DENSE, HYBRID, MIXTURE, PLACES

STORE = Path(__file__).parent / "perplexity.json"
TEXT = dict(text="alice", offset=20_000, tokens=512, step=10_000)
#: Windows that are read, each a step behind the one before: one, and more where it does not decide.
FIRST, MORE = 1, 4
#: The relative change of perplexity that a test of perplexity allows.
TOLERANCE = 0.01


def stored():
    """The measurements: the text, losses of models as they are, and a row of each entry."""
    return json.loads(STORE.read_text())


def digest(module):
    """The digest of the entry's file."""
    return hashlib.sha256(Path(module.__file__).read_bytes()).hexdigest()


def moved(row):
    """The relative change of perplexity by the fault, and its standard error; NaN if there is no perplexity."""
    if row["with_fault"] is None:
        return math.nan, math.nan
    ratio = math.exp(min(row["with_fault"] - row["without_fault"], 700))
    return ratio - 1, ratio * row["standard_error"]


def says(row):
    """The verdict of perplexity on a fault: "passes", "refuses", "undecided" if two standard errors reach over the tolerance; "" if no
    model has the operation."""
    if "absent" in row:
        return ""
    if "silent" in row:
        return "passes"
    change, error = moved(row)
    if abs(change) + 2 * error < TOLERANCE:
        return "passes"
    return "undecided" if abs(change) - 2 * error < TOLERANCE else "refuses"


def measured(module, fault, tokens=TEXT["tokens"], windows=FIRST):
    """Nats of each byte by the model with the entry's kernel in it."""
    name, make = PLACES[module.ENTRY.id]
    with np.errstate(all="ignore"):
        found = (models.losses(models.load(name), window(tokens, at), make(module, fault)) for at in range(windows))
        return np.concatenate(list(found))


def window(tokens, at=0):
    return models.text(TEXT["text"], TEXT["offset"] + at * TEXT["step"], tokens)


def plain(name, tokens=TEXT["tokens"]):
    """Nats per byte of a model as it is."""
    return float(models.losses(models.load(name), window(tokens)).mean())


def row(module, own):
    """The stored row of an entry; `own` has the losses of models as they are."""
    found = row_of(module, own, FIRST)
    return row_of(module, own, MORE) if says(found) == "undecided" else found


def row_of(module, own, windows):
    number, about = module.ENTRY.id, dict(digest=digest(module))
    for kind in ("absent", "silent"):
        if reason := getattr(module.ENTRY, kind):
            return {**about, kind: reason}
    name = PLACES[number][0]
    right, broken = (measured(module, fault, windows=windows) for fault in (False, True))
    without, first = float(right.mean()), right[: TEXT["tokens"]].mean()
    # a format costs something by itself; without one, only the order of sums differs, or a rounding to bf16
    if not abs(first - own[name]) < (0.15 if module.ENTRY.format else 0.01):
        raise ValueError(f"{number}: its kernel without the fault gives {first} nats per byte, and {name} {own[name]}")
    about.update(model=name, windows=windows, without_fault=without, with_fault=None)
    if np.isfinite(broken).all():
        error = float((broken - right).std(ddof=1) / math.sqrt(len(right)))
        about.update(with_fault=float(broken.mean()), standard_error=error)
    return about


def main(chosen):
    old = stored()["rows"] if chosen else {}
    losses = {name: plain(name) for name in (DENSE, MIXTURE, HYBRID)}
    rows = {}
    for number, module in entries("faults").items():
        if not hasattr(module, "kernel"):
            continue
        if chosen and number not in chosen:
            rows[number] = old[number]
            continue
        start = time.time()
        rows[number] = row(module, losses)
        print(number, {k: v for k, v in rows[number].items() if k != "digest"}, f"{time.time() - start:.1f} s", flush=True)
    STORE.write_text(json.dumps({**TEXT, "nats_per_byte": losses, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
