"""Right kernels on inputs that show faults. `ULPLAB_TELLING=100 python telling.py` says how many pass, of 1,600 of each operation and type."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, field

import numpy as np
import ulplab
from draws import KERNELS, OPERATIONS
from ml_dtypes import bfloat16

# Elements of an example, at most: examples are drawn until one is as small.
MOST = 1 << 15


@dataclass
class Asked:
    """How many inputs were judged, and the messages on right kernels that are outside."""

    judged: int = 0
    #: Inputs that the kernel or the assertion cannot take.
    others: int = 0
    alarms: list[str] = field(default_factory=list)


def small(op, dtype, seed):
    """Inputs of an operation, of few elements."""
    for attempt in range(seed * 100, seed * 100 + 100):
        given = OPERATIONS[op](np.random.default_rng(attempt), dtype)
        if 0 < sum(np.size(x) for x in given.values()) <= MOST and all(np.size(x) for x in given.values()):
            return given
    raise ValueError(f"{op}: no draw has at most {MOST:,} elements")


def ask(op, dtype, seed, kernel=None):
    """The answers on the inputs of an example."""
    found = Asked()
    like = small(op, dtype, seed)
    made = ulplab.inputs(op, like=like, seed=seed, dtype=np.dtype(dtype).name)
    for number, given in enumerate(made):
        if sum(np.size(x) for x in given.values()) > 16 * MOST:
            continue
        rng = np.random.default_rng([seed, number])
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                got = (kernel or KERNELS[op])(rng, **given, dtype=dtype)
                ulplab.assert_close(got, op=op, inputs=dict(given))
            except AssertionError as error:
                shapes = {name: x.shape if np.ndim(x) else x for name, x in given.items()}
                found.alarms.append(f"{op}, {np.dtype(dtype).name}, example {seed}, input {number} ({given.why}): {shapes}: {error}")
            except Exception:  # noqa: BLE001 -- a kernel that cannot take a size may raise anything
                found.others += 1
                continue
            found.judged += 1
    return found


def asked(op, dtype, seeds):
    """The answers on the inputs of several examples."""
    total = Asked()
    for seed in seeds:
        one = ask(op, dtype, seed)
        total.judged += one.judged
        total.others += one.others
        total.alarms += one.alarms
    return total


if __name__ == "__main__":
    for op in OPERATIONS:
        for dtype in (bfloat16, np.float16, np.float32):
            found = asked(op, dtype, range(int(os.environ.get("ULPLAB_TELLING", "1"))))
            print(f"{op} {np.dtype(dtype).name}: {found.judged} judged, {found.others} not, {len(found.alarms)} outside", flush=True)
            for alarm in found.alarms[:2]:
                print("   ", alarm[:600].replace("\n", " | "), flush=True)
