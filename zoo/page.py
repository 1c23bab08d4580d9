"""Writes docs/zoo.md: what ulplab and the usual checks say of every fault. `python zoo/page.py`."""

from __future__ import annotations

import re
from pathlib import Path

from entry import SEEDS, allclose_and_cosine, draw, entries, refused

PAGE = Path(__file__).parents[1] / "docs" / "zoo.md"

HEAD = """# Published bugs, re-enacted

Each row is a numerical bug that was published, re-enacted in a few lines of numpy (`zoo/faults`), on two kinds of data: the usual data are
as the tests of that time had them, and the telling data are drawn to show faults of this kind (distinct scales, ties, dead blocks, lengths
that differ, the first position past a table). Three checks are asked:

* **ulplab**: its gate, for which no number is chosen: the bound follows from the operation, or bytes must be those of a rule. `pytest zoo`
  asks it on ten draws of each: the kernel without the fault passes all, and on telling data the fault is refused on all.
* **allclose**: `numpy.allclose(got, want, rtol=1e-2, atol=1e-2)`.
* **cosine**: of all numbers, in f64; it is usual to ask for 0.99.

"passes" means that the check does not see the bug. Where all three pass on usual data, the fault changes nothing there: data were
missing, not a check. What perplexity says is not here: it needs a model around the operation. [gates-of-others.md](gates-of-others.md) has what tolerances of
other projects say. `python zoo/page.py` writes this page.

"""

CONTROLS = """
## What is no bug

These were reported as bugs, or look like some, and are choices. ulplab passes both ways, on ten draws each.

| | what is computed | both are right | what it teaches | published |
| --- | --- | --- | --- | --- |
"""

NAMES = ["", "what is computed", "fault", "symptom", "usual: ulplab", "allclose", "cosine", "telling: ulplab", "allclose", "cosine"]
NAMES += ["what ulplab says", "planted in kernels", "published"]


def link(url: str) -> str:
    """A thread as `repository #number`."""
    found = re.fullmatch(r"https://github\.com/([^/]+)/([^/]+)/(?:pull|issues)/(\d+)", url)
    return f"[{found[2]} #{found[3]}]({url})" if found else f"[thread]({url})"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def said(message: str) -> str:
    """What a message says beyond that something is outside of its bound: the cause, or the place."""
    lines = [line.strip() for line in message.splitlines()]
    named = [line for line in lines if line.startswith("looks like") and not line.startswith("looks like none")]
    places = [line for line in lines if line.startswith("outside:")]
    found = (named or places or lines)[0]
    found = re.sub(r"\(\w+\[[^\]]*\]\)", "", found).removeprefix("outside: ")
    return cell(re.split(r"; ", found)[0])[:120]


class Row:
    """What is known of a fault."""

    def __init__(self, module):
        self.entry = module.ENTRY
        self.enacted = hasattr(module, "kernel")
        if self.enacted:
            self.message = refused(module, draw(module, 0), True) or "NOT NOTICED"
            self.usual_refused = sum(refused(module, draw(module, seed, usual=True), True) is not None for seed in SEEDS)
            self.usual = allclose_and_cosine(module, usual=True)
            self.telling = allclose_and_cosine(module, usual=False) if hasattr(module, "usual") else self.usual

    def checks(self) -> list[str]:
        if not self.enacted:
            return [""] * 7

        def both(found):
            cosine = "no number" if found.cosine != found.cosine else f"{found.cosine:.3f}"
            return ["**passes**" if found.allclose else "refuses", f"**{cosine}**" if found.cosine >= 0.99 else cosine]

        share = {0: "**passes**", len(SEEDS): "refuses"}.get(self.usual_refused, f"refuses {self.usual_refused} of {len(SEEDS)}")
        return [share, *both(self.usual), "refuses", *both(self.telling), said(self.message)]

    def text(self) -> str:
        entry = self.entry
        planted = ", ".join(f"`{name}`" for name in entry.planted)
        threads = ", ".join(link(url) for url in entry.threads)
        columns = [entry.id, cell(entry.of), cell(entry.fault), cell(entry.symptom), *self.checks(), planted, threads]
        return f"| {' | '.join(columns)} |\n"


def text() -> str:
    """The page."""
    rows = [Row(module) for module in entries("faults").values()]
    enacted = [row for row in rows if row.enacted]

    def count(holds) -> int:
        return sum(map(bool, map(holds, enacted)))

    summary = (
        f"{len(rows)} faults, {len(enacted)} of them re-enacted here, the others in kernels only.\n\n"
        "| passes, of those re-enacted | ulplab | allclose | cosine |\n| --- | --- | --- | --- |\n"
        f"| on usual data | {count(lambda row: row.usual_refused == 0)} | {count(lambda row: row.usual.allclose)} "
        f"| {count(lambda row: row.usual.cosine >= 0.99)} |\n"
        f"| on telling data | 0 | {count(lambda row: row.telling.allclose)} | {count(lambda row: row.telling.cosine >= 0.99)} |\n\n"
    )
    table = f"| {' | '.join(NAMES)} |\n|{' --- |' * len(NAMES)}\n{''.join(row.text() for row in rows)}"
    none = "".join(
        f"| {entry.id} | {cell(entry.of)} | {cell(entry.fault)} | {cell(entry.symptom)} | {', '.join(map(link, entry.threads))} |\n"
        for entry in (module.ENTRY for module in entries("controls").values())
    )
    return HEAD + summary + table + CONTROLS + none


if __name__ == "__main__":
    PAGE.write_text(text())
