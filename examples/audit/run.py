"""Prints which faults gates of published suites let pass: `python examples/audit/run.py`, with ulplab, pytest and ml_dtypes installed.

First the faults of each operation, by gate; then what `pytest --ulplab-audit` says of the same tests, which are not edited for it.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import published


def passes(gate, got, want):
    try:
        said = gate(got, want)
    except AssertionError:
        return False
    return said is None or bool(said)


def survivors():
    """By the name of a gate: whether what is right passes, which faults pass, and which are noticed."""
    found = {}
    for name, gate, make in published.TABLE:
        right, faults, *other = make()
        want = other[0] if other else right
        kept = [fault for fault, wrong in faults.items() if passes(gate, wrong, want)]
        found[name] = (passes(gate, right, want), kept, [fault for fault in faults if fault not in kept])
    return found


def products(seeds=60):
    """How many products vLLM's gate lets pass: by type and sizes, for each gain."""
    found = {}
    for dtype, shape in published.PRODUCTS:
        passed = found[f"{np.dtype(dtype).name} {shape}"] = dict.fromkeys(published.GAINS, 0)
        for seed in range(seeds):
            right, want = published.product(dtype, shape, seed)
            for gain in published.GAINS:
                passed[gain] += passes(published.loose(0.1), published.rounded(gain * right, dtype), want)
    return found


def main():
    for name, (right, kept, noticed) in survivors().items():
        print(f"{name}{'' if right else ': WHAT IS RIGHT DOES NOT PASS'}")
        print(f"    lets pass: {', '.join(kept) or 'nothing'}")
        print(f"    notices:   {', '.join(noticed) or 'nothing'}")
    print("vLLM NVFP4 product, of 60 seeds")
    for name, passed in products().items():
        print(f"    {name}: {', '.join(f'{count} pass with alpha x {gain:g}' for gain, count in passed.items())}")
    here = Path(__file__).parent
    gates = [f"--ulplab-gate=published:{name}" for name in ("share", "kernel_is_wanted")]
    options = ["-q", "-p", "no:cacheprovider", "--ulplab-audit", *gates, str(here / "test_published.py")]
    return subprocess.run([sys.executable, "-m", "pytest", *options], cwd=here, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
