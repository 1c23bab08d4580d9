"""The audit as JSON, and its comparison with one that was accepted."""

from __future__ import annotations

import json
from typing import Any

from ._planted import Place

# Version of the layout.
VERSION = 1
# Exit codes, as the program `ulplab` has them.
BLIND, NOT_JUDGED = 100, 4


def document(places: dict[str, Place], listed: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What an audit found, for programs."""
    gates = []
    for where, place in sorted(places.items()):
        file, _, line = where.rpartition(":")
        tests = []
        for test, one in sorted(place.tests.items()):
            faults = {fault: {"planted": planted, "passed": passed} for fault, (planted, passed) in one.faults.items()}
            numbers = {"largest_gain": one.gain, "tolerance_needed": one.needed}
            tests.append({"test": test, "calls": one.calls, "asked": one.asked, "faults": faults, **numbers})
        named = {"file": file, "line": int(line), "function": place.function, "text": place.text, "gate": place.gate}
        gates.append({**named, "blind_to": sorted(place.whole().survivors()), "tests": tests})
    others = []
    for where, entry in sorted(listed.items()):
        file, _, line = where.rpartition(":")
        why = {reason: sorted(tests) for reason, tests in sorted(entry["why"].items())}
        others.append({"file": file, "line": int(line), "function": entry["function"], "text": entry["text"], "why": why})
    return {"ulplab_audit": VERSION, "gates": gates, "not_asked": others}


def read(path: str) -> dict[str, Any]:
    """A file that an audit wrote. Raises ValueError."""
    try:
        with open(path, encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}; expected what --ulplab-audit-json wrote") from error
    version = found.get("ulplab_audit") if isinstance(found, dict) else None
    if version != VERSION or not isinstance(found.get("gates"), list):
        raise ValueError(f"{path}: ulplab_audit is {version!r}, expected {VERSION}; write it with --ulplab-audit-json")
    return found


def _by_name(gates: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Gates by what an edit elsewhere in the file does not change."""
    named: dict[tuple[Any, ...], dict[str, Any]] = {}
    for gate in sorted(gates, key=lambda gate: (gate["file"], gate["line"])):
        name = (gate["file"], gate["function"], gate["text"])
        again = 0
        while (*name, again) in named:
            again += 1
        named[(*name, again)] = gate
    return named


def _noticed(gate: dict[str, Any]) -> set[str]:
    return {fault for one in gate["tests"] for fault in one["faults"]} - set(gate["blind_to"])


def compared(now: dict[str, Any], before: dict[str, Any]) -> tuple[int, list[str]]:
    """The exit code against an accepted audit, and what is said."""
    ours, theirs = _by_name(now["gates"]), _by_name(before["gates"])
    asked = {name: gate for name, gate in ours.items() if any(one["asked"] for one in gate["tests"])}
    lines, blind, unasked = [], False, False
    for name, gate in asked.items():
        known = theirs.get(name)
        new = set(gate["blind_to"]) - set(known["blind_to"] if known else ())
        if new:
            blind = True
            noticed = known is not None and new <= _noticed(known)
            was = "that the baseline's noticed" if noticed else "that the baseline's was not asked about" if known else "and is not in the baseline"
            lines.append(f"{gate['file']}:{gate['line']}: blind to {', '.join(sorted(new))}, {was}: {gate['text']}")
    listed = {(one["file"], one["function"], one["text"]) for one in now["not_asked"]}
    for name, gate in theirs.items():
        if name in asked or not any(one["asked"] for one in gate["tests"]):
            continue
        if name[:3] in listed:
            unasked = True
            lines.append(f"{gate['file']}:{gate['line']} of the baseline: not asked now, not judged: {gate['text']}")
        else:
            lines.append(f"{gate['file']}:{gate['line']} of the baseline: did not run: {gate['text']}")
    if not asked:
        lines.append("no gate was asked: not judged")
    return (BLIND if blind else NOT_JUDGED if unasked or not asked else 0), lines
