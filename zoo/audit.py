"""Faults that gates of others let pass: `ulplab audit FILE`, or `python zoo/audit.py FILE`.

Every gate of a table is asked about the faults of its operations, on the data of the zoo's entries: on usual data, on data that tell, and
about choices that are no faults. Where the numbers that are compared are the same with the fault as without (it is in a state, in a
logarithm, in bits that depend on the batch), that is said, and no gate is blamed for it. Exit codes: 0 if each gate refuses each fault
that shows on data that tell, and nothing that is right; 100 if not; 4 if a gate could be asked about nothing that shows; 2 if a table is
wrong; 96 if Python lacks something.
"""

from __future__ import annotations

import sys

# Both are needed before anything of the zoo can be imported: what is missing is said in words.
if sys.version_info < (3, 11):
    print(f"error: set-up: {sys.executable} is Python {sys.version.split()[0]}, which reads no TOML; expected at least 3.11", file=sys.stderr)
    sys.exit(96)
try:
    import ml_dtypes  # noqa: F401
    import ulplab  # noqa: F401
except ImportError as missing:
    wheel = "python/build_wheel.sh dist && pip install dist/ulplab-*.whl"
    how = wheel if missing.name == "ulplab" else f"pip install {missing.name}"
    print(f"error: set-up: {sys.executable} has no module '{missing.name}'; {how}", file=sys.stderr)
    sys.exit(96)

import argparse
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Iterable

import numpy as np
from entry import SEEDS, draw, entries, refused
from gates import DTYPES, TABLES, Gate, Mistake, read


@dataclass
class Count:
    """Draws of an entry on which a gate was asked."""

    #: The number of draws.
    asked: int = 0
    #: On how many of them the gate passed, though what it was given is another.
    passed: int = 0
    #: On how many of them the gate was given the same with the fault as without: no comparison of it can show the fault.
    hidden: int = 0


@dataclass
class Answer:
    """The answers of a gate to the entries of the zoo."""

    gate: Gate
    #: By the id of a fault.
    usual: dict[str, Count] = field(default_factory=dict)
    telling: dict[str, Count] = field(default_factory=dict)
    #: By the id of a choice that is no fault: how often both choices are close.
    controls: dict[str, Count] = field(default_factory=dict)
    #: By the id of a fault: how often the kernel without it passes.
    right: dict[str, Count] = field(default_factory=dict)
    #: Number of draws on which the gate passes an output of zeros, by the id of a fault.
    zeros: dict[str, Count] = field(default_factory=dict)
    #: By the id of a fault: what ulplab's own gate says.
    ulplab_usual: dict[str, Count] = field(default_factory=dict)
    ulplab_telling: dict[str, Count] = field(default_factory=dict)

    def survivors(self) -> list[str]:
        """Faults that pass on at least one draw of the data that tell."""
        return [fault for fault, count in self.telling.items() if count.passed]

    def not_accepted(self) -> list[str]:
        """The survivors that the table does not accept."""
        return [fault for fault in self.survivors() if fault not in self.gate.accepts]

    def alarms(self) -> list[str]:
        """Choices and kernels that are right, and that it refuses on at least one draw."""
        return [entry for counts in (self.controls, self.right) for entry, count in counts.items() if count.passed < count.asked]

    def share(self) -> float:
        """The share of faults that pass, each by its draws: what gates are sorted by."""
        return sum(count.passed / count.asked for count in self.telling.values()) / max(len(self.telling), 1)

    def shown(self) -> list[str]:
        """Faults that show on at least one draw of the data that tell: what the gate was asked about."""
        return [fault for fault, count in self.telling.items() if count.hidden < count.asked]

    def exit(self) -> int:
        """The exit code of this gate alone. What is right and refused counts even if no fault shows."""
        return 100 if self.not_accepted() or self.alarms() else 0 if self.shown() else 4


def _outputs(module: ModuleType, inputs: Any, fault: bool) -> dict[str, np.ndarray]:
    """The parts of a kernel's output that gates compare: numbers, and chosen places if it has them."""
    with np.errstate(all="ignore"):
        got = module.kernel(inputs, fault)
        numbers = module.numbers(inputs, got) if hasattr(module, "numbers") else got
    return {"numbers": np.asarray(numbers), **({"indices": module.indices(inputs, got)} if hasattr(module, "indices") else {})}


def _compares(gate: Gate) -> str:
    return "indices" if gate.of_indices else "numbers"


def _source(module: ModuleType, inputs: Any) -> np.ndarray | None:
    """The numbers before they were quantized, if they are known."""
    if hasattr(module, "source"):
        return np.asarray(module.source(inputs))
    return inputs if module.ENTRY.op == "quantize" else None


def _applies(gate: Gate, module: ModuleType) -> bool:
    entry = module.ENTRY
    known = gate.reference == "right" or hasattr(module, "source") or entry.op == "quantize"
    compared = not gate.of_indices or hasattr(module, "indices")
    return hasattr(module, "kernel") and entry.op in gate.op and entry.format in gate.formats and known and compared


def _same(got: np.ndarray, want: np.ndarray) -> bool:
    """True if a fault changes nothing that is compared: bits are equal."""
    return got.shape == want.shape and got.astype(np.float64).tobytes() == want.astype(np.float64).tobytes()


def _count(counts: dict[str, Count], entry: str, passed: bool, hidden: bool = False) -> None:
    count = counts.setdefault(entry, Count())
    count.asked += 1
    count.passed += passed and not hidden
    count.hidden += hidden


def _ask_of_fault(answers: list[Answer], module: ModuleType, seeds: Iterable[int], own: bool) -> None:
    number = module.ENTRY.id
    for usual in (True, False):
        for seed in seeds:
            inputs = draw(module, seed, usual)
            wrong, right = (_outputs(module, inputs, fault) for fault in (True, False))
            oracle = {**right, "numbers": np.asarray(module.want(inputs))} if hasattr(module, "want") else right
            noticed = own and refused(module, inputs, True) is not None
            for answer in answers:
                gate = answer.gate
                what = _compares(gate)
                want = _source(module, inputs) if gate.reference == "source" else oracle[what]
                passed, same = gate.passes(wrong[what], want), _same(wrong[what], right[what])
                _count(answer.usual if usual else answer.telling, number, passed, same)
                if own:
                    _count(answer.ulplab_usual if usual else answer.ulplab_telling, number, not noticed)
                if gate.reference == "source":
                    _count(answer.right, number, gate.passes(right[what], want))
                # Where zeros are wanted, they should pass.
                if not usual and want.any():
                    _count(answer.zeros, number, gate.passes(np.zeros_like(want), want))


def ask(gates: list[Gate], seeds: Iterable[int] = SEEDS, own: bool = True) -> list[Answer]:
    """The answers of each gate; the gate that lets most faults pass comes first. `own` asks ulplab's own gate, too."""
    answers = [Answer(gate) for gate in gates]
    for module in entries("faults").values():
        asked = [answer for answer in answers if _applies(answer.gate, module)]
        if asked:
            _ask_of_fault(asked, module, seeds, own)
    for module in entries("controls").values():
        # A choice without numbers is one between two functions, of which no comparison of one with the other says anything.
        comparable = [answer for answer in answers if answer.gate.reference == "right" and hasattr(module, "numbers")]
        asked = [answer for answer in comparable if _applies(answer.gate, module)]
        for seed in seeds if asked else ():
            inputs = draw(module, seed)
            got, want = (_outputs(module, inputs, chosen)["numbers"] for chosen in (True, False))
            for answer in asked:
                # Where a kernel rounds is a choice in one type, and says nothing of a gate for another.
                if got.dtype in (np.float32, DTYPES[answer.gate.dtype]):
                    _count(answer.controls, module.ENTRY.id, answer.gate.passes(got, want))
    return sorted(answers, key=lambda answer: (-answer.share(), -len(answer.telling), answer.gate.project, answer.gate.name))


def gates_of(names: list[str]) -> list[Gate]:
    """The gates of tables, each a file or the name of one of this project's; of all of these if none is named."""
    faults = entries("faults")
    known = [module.ENTRY for module in [*faults.values(), *entries("controls").values()]]
    ops, formats = {entry.op for entry in known}, {entry.format for entry in known}
    found = []
    for name in names or sorted(path.stem for path in TABLES.glob("*.toml")):
        shipped = TABLES / f"{name}.toml"
        path = Path(name) if Path(name).exists() or not shipped.exists() else shipped
        if not path.exists():
            tables = ", ".join(sorted(path.stem for path in TABLES.glob("*.toml")))
            raise Mistake(f"{name}: there is no such file, and no such table of this project's: {tables}")
        found += read(path, ops, formats, set(faults))
    return found


def _ids(counts: dict[str, Count], holds) -> list[str]:
    """Entries of which something holds, with the number of draws if it is not all."""
    found = []
    for entry, count in counts.items():
        times = holds(count)
        if times:
            found.append(entry if times == count.asked else f"{entry} ({times} of {count.asked})")
    return found


def facts(answer: Answer) -> dict[str, list[str]]:
    """The lines on a gate, by a name for it; lists of entries."""
    return {
        "asked": list(answer.telling),
        "lets_pass": _ids(answer.telling, lambda count: count.passed),
        "not_shown": _ids(answer.telling, lambda count: count.hidden),
        "lets_pass_on_usual_data": _ids(answer.usual, lambda count: count.passed),
        "not_shown_on_usual_data": _ids(answer.usual, lambda count: count.hidden),
        "zeros_pass": _ids(answer.zeros, lambda count: count.passed),
        "refuses_what_is_right": _ids(answer.right | answer.controls, lambda count: count.asked - count.passed),
        "controls_asked": list(answer.controls),
        "ulplab_lets_pass": _ids(answer.ulplab_telling, lambda count: count.passed),
        "ulplab_lets_pass_on_usual_data": _ids(answer.ulplab_usual, lambda count: count.passed),
    }


def _report(answer: Answer) -> str:
    gate, found = answer.gate, facts(answer)
    lines = [f"{gate.project} {gate.name}, {gate.dtype}: {gate.text()}"]
    if gate.source:
        lines.append(f"    {gate.source}")
    if not answer.telling:
        named = " or ".join(f"{op}{f' in {form}' if form else ''}" for op in gate.op for form in gate.formats)
        return "\n".join([*lines, f"    NOT ASKED: no fault of the zoo is one of {named}"])

    def line(what: str, which: list[str], of: int) -> None:
        lines.append(f"    {what:40} {f'{len(which)} of {of}' if of else 'not asked':10} {', '.join(which)}".rstrip())

    asked = len(found["asked"])
    line("data that tell: lets pass", found["lets_pass"], asked)
    line("    ulplab's own gate lets pass", found["ulplab_lets_pass"], asked)
    line("    what is compared does not show", found["not_shown"], asked)
    line("usual data: lets pass", found["lets_pass_on_usual_data"], asked)
    line("    ulplab's own gate lets pass", found["ulplab_lets_pass_on_usual_data"], asked)
    line("    what is compared does not show", found["not_shown_on_usual_data"], asked)
    line("refuses what is right", found["refuses_what_is_right"], len(answer.controls) + len(answer.right))
    line("passes zeros", found["zeros_pass"], len(answer.zeros))
    if gate.accepts:
        line("accepted by the table", list(gate.accepts), asked)
    return "\n".join(lines)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="ulplab audit", description="What gates let pass, of published bugs that are re-enacted.")
    parser.add_argument("tables", nargs="*", help="tables of tolerances, or names of this project's; all of these if none is given")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="draws of each entry (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="write JSON")
    given = parser.parse_args(words)
    if given.seeds < 1:
        parser.error(f"--seeds {given.seeds}: expected at least 1")
    try:
        answers = ask(gates_of(given.tables), range(given.seeds))
    except Mistake as mistake:
        print(f"ulplab audit: {mistake}", file=sys.stderr)
        return 2
    exits = {answer.exit() for answer in answers}
    code = 100 if 100 in exits else 4 if 4 in exits else 0
    text = _as_json(answers, given.seeds) if given.json else _as_text(answers, code)
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Who reads no further wants no other exit code; and Python would complain once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _as_json(answers: list[Answer], seeds: int) -> str:
    rows = [
        {
            "project": answer.gate.project,
            "gate": answer.gate.name,
            "asks": answer.gate.text(),
            "dtype": answer.gate.dtype,
            "source": answer.gate.source,
            "seeds": seeds,
            "exit": answer.exit(),
            "not_accepted": answer.not_accepted(),
            **facts(answer),
        }
        for answer in answers
    ]
    return json.dumps(rows, indent=2, ensure_ascii=False)


def _as_text(answers: list[Answer], code: int) -> str:
    lenient, strict = (sum(map(bool, map(which, answers))) for which in (Answer.not_accepted, Answer.alarms))
    idle = sum(not answer.shown() for answer in answers)
    verdict = {0: "PASS", 4: "NOT ALL ASKED", 100: "FAIL"}[code]
    said = f"of {len(answers)} gates, {lenient} let faults pass on data that tell, {strict} refuse what is right, {idle} not asked"
    return "\n\n".join([*map(_report, answers), f"{verdict}: {said}"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
