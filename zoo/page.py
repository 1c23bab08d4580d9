"""Writes docs/zoo.md: what ulplab and the usual checks say of every fault. `python zoo/page.py`."""

from __future__ import annotations

import math
import re
from pathlib import Path

from entry import SEEDS, allclose_and_cosine, draw, entries, refused
from perplexity import MORE, moved, says, stored

PAGE = Path(__file__).parents[1] / "docs" / "zoo.md"

HEAD = """# Published bugs, re-enacted

<!-- `python zoo/page.py` writes this page. -->

Each row is a numerical bug that was published, re-enacted in a few lines of numpy (`zoo/faults`), on two kinds of data: the usual data are
as the tests of that time had them, and the telling data are drawn to show faults of this kind (distinct scales, ties, dead blocks, lengths
that differ, the first position past a table). Three checks are asked:

* **ulplab**: its gate, for which no number is chosen: the bound follows from the operation, or bytes must be those of a rule. `pytest zoo`
  asks it on ten draws of each: the kernel without the fault passes all, and on telling data the fault is refused on all.
* **allclose**: `numpy.allclose(got, want, rtol=1e-2, atol=1e-2)`.
* **cosine**: of all numbers, in f64; it is usual to ask for 0.99.

A fourth is asked where a trained model has the operation: **perplexity**. A model of `datasets/` reads {tokens} bytes of held-out text
({text}; {more} times as many where these do not decide), teacher-forced, in one shot, batch 1, as usual evaluations do, with the entry's own
kernel in all layers, once without the fault and once with it. Formats, layouts and ranks are those of the published bug (`zoo/places.py`
says what the kernel gets), where the usual data of the other columns often have the harmless ones. A fault passes that moves perplexity by
less than 1 %, up or down. ± is the standard error over bytes, taken as independent; a fault is undecided if two of them reach over that
1 %. With activations in NVFP4, products that differ by 1e-6 already give a perplexity that differs by 3 ± 3 % on this text. "not reached"
means that such an evaluation does not get to the fault, by reading and not by a run, and a cell is empty where no model here has the
operation. `python zoo/perplexity.py` measures it.

"passes" means that the check does not see the bug. Where all three pass on usual data, the fault changes nothing there: data were
missing, not a check. [gates-of-others.md](gates-of-others.md) has what tolerances of other projects say.

"""

CONTROLS = """
## What is no bug

These were reported as bugs, or look like some, and are choices. ulplab passes both ways, on ten draws each.

| | what is computed | both are right | what it teaches | published |
| --- | --- | --- | --- | --- |
"""

NAMES = ["", "what is computed", "fault", "symptom", "usual: ulplab", "allclose", "cosine", "perplexity"]
NAMES += ["telling: ulplab", "allclose", "cosine"]
NAMES += ["what ulplab says", "planted in kernels", "published"]


def link(url: str) -> str:
    """A thread as `repository #number`."""
    found = re.fullmatch(r"https://github\.com/([^/]+)/([^/]+)/(?:pull|issues)/(\d+)", url)
    return f"[{found[2]} #{found[3]}]({url})" if found else f"[thread]({url})"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def said(message: str) -> str:
    """The cause or the place that a message names, next to the elements outside."""
    lines = [line.strip() for line in message.splitlines()]
    named = [line for line in lines if line.startswith("looks like") and not line.startswith("looks like none")]
    places = [line for line in lines if line.startswith("outside:")]
    found = (named or places or lines)[0]
    found = re.sub(r"\(\w+\[[^\]]*\]\)", "", found).removeprefix("outside: ")
    return cell(re.split(r"; ", found)[0])[:120]


class Row:
    """The results for a fault."""

    def __init__(self, module):
        self.entry = module.ENTRY
        self.enacted = hasattr(module, "kernel")
        if self.enacted:
            self.stored = stored()["rows"][self.entry.id]
            self.message = refused(module, draw(module, 0), True) or "NOT NOTICED"
            self.usual_refused = sum(refused(module, draw(module, seed, usual=True), True) is not None for seed in SEEDS)
            self.usual = allclose_and_cosine(module, usual=True)
            self.telling = allclose_and_cosine(module, usual=False) if hasattr(module, "usual") else self.usual

    def checks(self) -> list[str]:
        if not self.enacted:
            return [""] * 8

        def both(found):
            cosine = "no number" if found.cosine != found.cosine else f"{found.cosine:.3f}"
            return ["**passes**" if found.allclose else "refuses", f"**{cosine}**" if found.cosine >= 0.99 else cosine]

        share = {0: "**passes**", len(SEEDS): "refuses"}.get(self.usual_refused, f"refuses {self.usual_refused} of {len(SEEDS)}")
        return [share, *both(self.usual), self.perplexity(), "refuses", *both(self.telling), said(self.message)]

    def perplexity(self) -> str:
        verdict = says(self.stored).replace("passes", "**passes**")
        if "absent" in self.stored or "silent" in self.stored:
            return verdict and f"{verdict}: not reached"
        change, error = moved(self.stored)
        if math.isnan(change):
            return f"{verdict}: no number"
        size = f"× {change + 1:.2g}" if change > 9 else f"{100 * change:+.1f} ± {100 * error:.1f} %" if change else "unchanged"
        return f"{verdict}: {size}"

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

    asked = [row for row in enacted if says(row.stored)]
    passed, broken, open_ = ([row for row in asked if says(row.stored) == what] for what in ("passes", "refuses", "undecided"))
    unreached = [row for row in passed if "silent" in row.stored]
    same = [row for row in passed if row not in unreached and moved(row.stored)[0] == 0]
    small = [row for row in passed if row not in unreached and row not in same]
    noticed = [row for row in passed if row.usual_refused]
    better = [row for row in broken if moved(row.stored)[0] < 0]
    late = [row for row in broken if not row.usual_refused and row.usual.allclose and row.usual.cosine >= 0.99]
    summary = (
        f"{len(rows)} faults, {len(enacted)} of them re-enacted here, the others in kernels only.\n\n"
        "| passes, of those re-enacted | ulplab | allclose | cosine | perplexity |\n| --- | --- | --- | --- | --- |\n"
        f"| on usual data | {count(lambda row: row.usual_refused == 0)} | {count(lambda row: row.usual.allclose)} "
        f"| {count(lambda row: row.usual.cosine >= 0.99)} "
        f"| {len(passed)} of {len(asked)}, {len(open_)} undecided |\n"
        f"| on telling data | 0 | {count(lambda row: row.telling.allclose)} | {count(lambda row: row.telling.cosine >= 0.99)} | |\n\n"
        f"Of the {len(passed)} faults that perplexity passes, {len(unreached)} are not reached by a text in one shot, {len(same)} run "
        f"and change no loss, and {len(small)} change it by too little; ulplab refuses {len(noticed)} of them on usual data already.\n"
        f"Of the {len(broken)} that it refuses, {len(late)} pass ulplab, allclose and cosine on usual data, and none passes ulplab on telling data.\n"
        f"{', '.join(row.entry.id for row in better) or 'None'} lower perplexity here, so who only looks for a rise passes them.\n\n"
    )
    table = f"| {' | '.join(NAMES)} |\n|{' --- |' * len(NAMES)}\n{''.join(row.text() for row in rows)}"
    none = "".join(
        f"| {entry.id} | {cell(entry.of)} | {cell(entry.fault)} | {cell(entry.symptom)} | {', '.join(map(link, entry.threads))} |\n"
        for entry in (module.ENTRY for module in entries("controls").values())
    )
    return HEAD.format(**stored(), more=MORE) + summary + table + CONTROLS + none


if __name__ == "__main__":
    PAGE.write_text(text())
