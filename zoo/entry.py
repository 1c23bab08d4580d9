"""The parts that re-enact a published bug: data, a kernel with the bug and without it, the gate of ulplab, and the usual checks.

Each file `faults/*.py` is a bug, and each file `controls/*.py` a choice that looks like one and is none. A file has an `ENTRY` and these
functions:

    inputs(rng)            what the kernel gets: data that tell
    kernel(inputs, fault)  what it computes, with the fault or without
    gate(inputs, got)      raises AssertionError if ulplab finds `got` wrong

and, if they differ from what follows from these:

    usual(rng)             what the tests of that time gave the kernel; `inputs` if there is none
    want(inputs)           what they compared with: `kernel(inputs, False)`
    numbers(inputs, got)   what they compared of it: `got`, or the values of a tensor that is quantized

What gates of others are asked about (`audit.py`) is the same numbers, and

    source(inputs)         the result from operands that are not quantized; of a quantizer, its inputs if there is none
    indices(inputs, got)   places that were chosen, of a choice

A fault that only a kernel on a device can have is an `ENTRY` alone; its `planted` names the fault in the lab's own kernels.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import ulplab

#: The folder of the entries.
FOLDER = Path(__file__).parent
#: Draws on which a kernel is held against its gate.
SEEDS = range(10)


@dataclass(frozen=True)
class Entry:
    """A published bug, or a choice that looks like one."""

    #: Number in the zoo, by kind: Q quantize, L layout, K record, R rotary embedding, A attention, I indexer, M mixture of experts,
    #: N norm, S state, G product, X a check itself; C for controls.
    id: str
    #: The operation whose tests could have seen it, by the name that tables of gates use.
    op: str
    #: The computation, e.g. "NVFP4 quantize".
    of: str
    #: The fault, in a line; what is chosen, for a control.
    fault: str
    #: The symptom that was seen, or the lesson of a control.
    symptom: str
    #: The threads that published it.
    threads: tuple[str, ...]
    #: The number format that something in it is quantized to: "fp8", "nvfp4", ...
    format: str = ""
    #: Why the tests of that time did not see it.
    escaped: str = ""
    #: The same fault in kernels of the lab, as `ulplab kernels list` names it: `operation.fault`.
    planted: tuple[str, ...] = ()
    #: Why a usual evaluation of a model gives with the fault what it gives without, if it does.
    silent: str = ""
    #: What no model of `datasets/` has, if none has the operation.
    absent: str = ""


def entries(kind: str) -> dict[str, ModuleType]:
    """The modules of `faults` or `controls`, by the id of their entry."""
    found = {}
    for path in sorted((FOLDER / kind).glob("*.py")):
        spec = importlib.util.spec_from_file_location(f"zoo_{kind}_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        number = module.ENTRY.id
        if number in found:
            raise ValueError(f"{path}: the id {number} is that of {found[number].__file__}, too")
        found[number] = module
    order = sorted(found, key=lambda number: (number[0], int("".join(filter(str.isdigit, number)))))
    return {number: found[number] for number in order}


def draw(module: ModuleType, seed: int, usual: bool = False) -> Any:
    """The inputs of a seed: those that tell, or those of the tests of that time."""
    make = module.usual if usual and hasattr(module, "usual") else module.inputs
    return make(np.random.default_rng(seed))


def refused(module: ModuleType, inputs: Any, fault: bool) -> str | None:
    """The message of the gate on the kernel, or None if it passes."""
    got = module.kernel(inputs, fault)
    try:
        module.gate(inputs, got)
    except AssertionError as error:
        return str(error) or "refused"
    return None


@dataclass(frozen=True)
class Usual:
    """The results of usual checks on a fault."""

    #: True if numpy's allclose passes with rtol = atol = 1e-2.
    allclose: bool
    #: The cosine of all numbers, in f64; it passes from 0.99 on.
    cosine: float


def allclose_and_cosine(module: ModuleType, usual: bool, seed: int = 0) -> Usual:
    """The results on the kernel with the fault, on the data of that time or on those that tell."""
    inputs = draw(module, seed, usual)
    numbers = getattr(module, "numbers", lambda _, got: got)
    got = numbers(inputs, module.kernel(inputs, True))
    want = module.want(inputs) if hasattr(module, "want") else numbers(inputs, module.kernel(inputs, False))
    got, want = (np.asarray(x).astype(np.float64).reshape(-1) for x in (got, want))
    lengths = np.linalg.norm(got) * np.linalg.norm(want)
    cosine = 1.0 if np.array_equal(got, want) else float(got @ want / lengths) if lengths > 0 else np.nan
    return Usual(bool(np.allclose(got, want, rtol=1e-2, atol=1e-2)), cosine)


def decoded(quantized: ulplab.Quantized, **changed: Any) -> np.ndarray:
    """The values of a tensor, with other `codes`, `scales` or `global_scale`."""
    parts = (changed.get(name, getattr(quantized, name)) for name in ("codes", "scales", "global_scale"))
    parts = [part for part in parts if part is not None]
    return ulplab.dequantize(*parts, format=quantized.format, shape=quantized.shape)
