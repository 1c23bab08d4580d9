"""Writes docs/gates-of-others.md: which faults of the zoo the gates of others let pass. `python zoo/gates_page.py`."""

from __future__ import annotations

import re
from pathlib import Path

from audit import Answer, ask, facts, gates_of

PAGE = Path(__file__).parents[1] / "docs" / "gates-of-others.md"

HEAD = """# What gates of others let pass

<!-- `python zoo/gates_page.py` writes this page. -->

`ulplab audit FILE` asks the tolerances of a test suite about the [published bugs](zoo.md) that are re-enacted in the zoo. It runs on any
CPU; it needs the [wheel](python.md), which has the program and the zoo, `pip install ml_dtypes`, and Python from 3.11 on.

```sh
ulplab audit vllm                  # a table of this project; without a name, all of them
ulplab audit my_gates.toml         # your own
ulplab audit my_gates.toml --json  # for programs
```

## A table of your own

```toml
project = "mine"
repository = "https://github.com/me/mine"       # may be left out, as may path, line and commit

[[gate]]
name = "test_norm"
path = "tests/test_norm.py"
line = 12
commit = "0123abcd"
op = "rmsnorm"                                  # or a list: attention, matmul, moe, rope, gated_delta, state_space, causal_conv1d, ...
dtype = "bfloat16"                              # what outputs are rounded to before they are compared; float16, float32
rtol = 1e-2
atol = 1e-2
accepts = ["N2"]                                # faults that you know it lets pass
```

| a gate asks for | |
| --- | --- |
| `rtol`, `atol` | every element: off by at most atol + rtol · what is wanted; `mismatches`: the share of elements that may be off by more |
| `cosine`, `sqnr`, `diff`, `relative_l2`, `max_abs` | as `ulplab.assert_close` takes them |
| `mean_error` | the mean of errors over the mean of magnitudes |
| `overlap` | the share of the places of a choice (`op = "top_k"`) that are found |
| `finite = true` | no NaN or infinity |
| `any = [{ … }, { … }]` | one of several is enough |

`formats = "fp8"` (`nvfp4`, `mxfp4`, `mxfp8`) asks about entries in which something is quantized to that, and about no others.
`reference = "source"` compares with the result from numbers that are not quantized, as a test does that allows for the loss.

Each fault is drawn ten times (`--seeds`), on data as tests of that time had them and on data that tell. A gate *lets a fault pass* if it
passes on any draw; "(3 of 10)" says on how many. Often the numbers that a gate compares are the same with the fault as without: it is in a
state, in a logarithm, in bits that depend on the batch, or the data do not reach it. That is no fault of the tolerance, and is counted apart
as *not shown*. What is right is asked, too: the choices of the zoo that are no bugs, and with `reference = "source"` each kernel without
its fault. A choice between two functions (which head, which mask) is not asked about, since a gate should tell them apart.

The exit code is 0 if every gate refuses all that shows on data that tell, save what it `accepts`, and nothing that is right; 100 if
not; 4 if no fault that shows fits a gate; 2 if a table is wrong; 96 if Python lacks something. The bugs and ulplab's own gates are written in Python,
so the command starts one: the one that runs the program, which that of the wheel has, else `python3`, or that of `--python`.

## Tables of this project

Tolerances are those of each project's tests, at the line that is linked. They say what a number lets pass on the zoo's data, and no more:
the projects' tests draw other data, and most compare more than one output. ulplab's own gate refuses every one of these faults on data that
tell. Gates that let most pass come first.

"""

NAMES = ["gate", "asks for", "faults", "lets pass, on data that tell", "not shown", "lets pass, on usual data"]
NAMES += ["not shown", "refuses what is right", "passes zeros"]


def row(answer: Answer) -> str:
    gate, found = answer.gate, facts(answer)
    name = f"{gate.project}: {gate.name}"
    named = f"[{name}]({gate.source})" if (gate.source or "").startswith("https://") else name
    asks = f"{gate.dtype}; {gate.text()}" + ("; of what is not quantized" if gate.reference == "source" else "")
    columns = [named, asks, str(len(found["asked"])) if found["asked"] else "none: not asked"]
    for key in ("lets_pass", "not_shown", "lets_pass_on_usual_data", "not_shown_on_usual_data", "refuses_what_is_right", "zeros_pass"):
        columns.append(", ".join(found[key]))
    return f"| {' | '.join(columns)} |\n"


def text() -> str:
    """The page."""
    # `pytest zoo` asks ulplab's own gate about every fault.
    answers = ask(gates_of([]), own=False)
    shown = sum(len(answer.telling) for answer in answers)
    usual, telling = (sum(len(facts(answer)[key]) for answer in answers) for key in ("lets_pass_on_usual_data", "lets_pass"))
    hidden = [sum(len(facts(answer)[key]) for answer in answers) for key in ("not_shown_on_usual_data", "not_shown")]
    summary = (
        f"{len(answers)} gates, {shown} questions: on usual data {hidden[0]} faults are not shown and {usual} are let pass, on data that "
        f"tell {hidden[1]} are not shown and {telling} are let pass.\n\n"
    )
    return HEAD + summary + f"| {' | '.join(NAMES)} |\n|{' --- |' * len(NAMES)}\n" + "".join(map(row, answers))


def settled(page: str) -> list[str]:
    """A page without how many draws each is, which the order of sums on a processor may change."""
    return [re.sub(r" \(\d+ of \d+\)", "", line) for line in page.splitlines()]


if __name__ == "__main__":
    PAGE.write_text(text())
