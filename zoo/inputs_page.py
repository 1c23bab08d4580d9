"""Writes docs/zoo-inputs.md: which faults `ulplab.inputs` shows, from the usual inputs of each. `python zoo/inputs_page.py`."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import ulplab
from entry import draw, entries

PAGE = Path(__file__).parents[1] / "docs" / "zoo-inputs.md"
BUDGET = 16

HEAD = """# The faults that `ulplab.inputs` shows

<!-- `python zoo/inputs_page.py` writes this page. -->

For each fault of the [zoo](zoo.md) whose gate names an operation, `ulplab.inputs(op, like=usual, budget={budget})` makes inputs from the
zoo's *usual* inputs, on which {missed} of these {count} faults pass (seed 0). The generator imports nothing of the zoo. A size that the
entry's kernel cannot take raises an exception, or gives another shape: that input does not count, nor one on which the kernel without the
fault is outside the bound. What the operation does not take as an argument (the number of ranks, the length of a row in a buffer, where a
text is cut) is configuration, and is as the fault needs it. **No**: none of the inputs shows the fault.

**{noticed} of {count} are noticed.** The kernel without the fault is outside on {alarms} inputs. Some of these kernels compute in chunks or
split products, with errors of their own; not each was looked into. The slowest entry took {slowest:.1f} s of CPU with all of its calls, the slowest generator
{generator:.1f} s.

"""


@dataclass(frozen=True)
class Way:
    """The operation of an entry, and the way between the entry's inputs and arguments of the operation."""

    op: str
    #: The example, of the entry's module, its usual inputs, and those that tell, for their configuration.
    like: Callable[[ModuleType, Any, Any], dict[str, Any]] = lambda module, usual, telling: usual
    #: The entry's inputs, of arguments of the operation, and of those that tell, for their configuration.
    back: Callable[[dict[str, Any], Any], Any] = lambda given, telling: given
    #: The type of the output, if it is not that of the first tensor.
    dtype: str | None = None


def part(op: str, at: int) -> Way:
    """A way for inputs whose part of this number is the call, and whose others are configuration."""

    def back(given, telling):
        return tuple(given if number == at else other for number, other in enumerate(telling))

    return Way(op, lambda module, usual, telling: usual[at], back)


def rows_in_fours(given, telling):
    """A product of columns, as the entry's parts of 37 rows and 28 columns: embeddings, and at least one layer."""
    if given["a"].shape[1] < 2 or given["alpha"] != 0.4:
        raise ValueError("the entry divides by 2.5, from the first layer on")
    return np.ascontiguousarray(given["a"].T).reshape(-1, 37, 28)


def experts_with_bias(module, usual, telling):
    hidden, w2, bias = usual["hidden"], usual["w2"], usual["bias"]
    columns = w2.transpose(1, 0, 2).reshape(w2.shape[1], -1)
    return dict(a=hidden.reshape(-1, hidden.shape[-1]), b=columns, bias=bias.reshape(-1))


def of_experts_with_bias(given, telling):
    w2 = given["b"].reshape(given["b"].shape[0], *telling["bias"].shape).transpose(1, 0, 2)
    hidden = given["a"].reshape(*telling["chosen"].shape, -1)
    return {**telling, "hidden": hidden, "w2": w2, "bias": given["bias"].reshape(telling["bias"].shape)}


def two_weights(given, telling):
    """The rows of b as two weights, each with a global scale of its own."""
    halves = np.split(np.ascontiguousarray(given["b"]), 2)
    return given["a"], [ulplab.quantize(half, "nvfp4", "vllm") for half in halves]


def tiled_weights(given, telling):
    tile = telling[2]
    return given["a"], ulplab.quantize(np.ascontiguousarray(given["b"]), f"e4m3/b{tile[0]}x{tile[1]}:f32(div)"), tile


def tables(given, telling):
    """A call, and the buffer of tables as a capture of six pages a row left it."""
    return given, np.resize(telling[1], 6 * len(given["q"])) % len(given["k"])


def pools(given, telling):
    """Pools of keys and values with a gap between pages."""
    gap, memory = telling[2], []
    for name in "kv":
        pages = given[name].reshape(len(given[name]), -1)
        buffer = np.ones((len(pages), pages.shape[1] + gap), np.float32)
        buffer[:, : pages.shape[1]] = pages
        memory.append(buffer.reshape(-1))
    return given["q"], memory, gap, given["block_table"], given["seq_lens"]


def after_another(given, telling):
    """A request behind the first of the entry's."""
    return [telling[0], given]


def in_a_pack(given, telling):
    """A sequence behind the first of the entry's."""
    sequences = [telling["sequences"][0], given]
    return dict(lengths=[one["q"].shape[1] for one in sequences], sequences=sequences)


def heads_of_channels(module, usual, telling):
    """A head for each channel of values, as the entry's gate has them."""
    channels = usual["v"].shape[-1]
    heads = dict(v=usual["v"].swapaxes(2, 3), g=usual["g"][:, :, 0], beta=usual["beta"].repeat(channels, 2))
    return {**usual, **heads, "state": usual["state"].transpose(0, 3, 2, 1)}


def channels_of_heads(given, telling):
    if given["q"].shape[2] != 1 or given["v"].shape[3] != 1:
        raise ValueError("the entry has one head, whose channels of values are heads here")
    v, g, state = given["v"].swapaxes(2, 3), given["g"][:, :, None], given["state"].transpose(0, 3, 2, 1)
    return {**given, "v": v, "g": g, "beta": given["beta"][:, :, :1], "state": state}


def one_key(given, telling):
    """The keys of all tokens are the first one's, and the state is zeros."""
    return {**given, "k": np.broadcast_to(given["k"][:, :1], given["k"].shape), "state": 0 * given["state"]}


def blocks_of_states(given, telling):
    blocks = telling["blocks"].copy()
    blocks[2] = given["state"][0]
    return dict(x=given["x"], weight=given["weight"], blocks=blocks)


def queries_of_tokens(module, usual, telling):
    rows = {name: np.tile(usual[name], (len(usual["q"]), 1, 1, 1)) for name in "kv"}
    return {"q": usual["q"][:, None], **rows}


ATTENTION, MATMUL, MOE, DELTA, NORM = map(Way, ("attention", "matmul", "moe", "gated_delta", "rmsnorm"))
ROWS = Way(
    "matmul",
    lambda module, usual, telling: dict(a=usual[0], b=usual[1], b_rows="n"),
    lambda given, telling: [given["a"], given["b"]],
)
WAYS = {
    **dict.fromkeys(("A1", "A2", "A4", "A5", "A6", "A8", "A11", "A12", "A16", "K2", "X2"), ATTENTION),
    **dict.fromkeys(("G1", "G2"), MATMUL),
    **dict.fromkeys(("G3", "L4", "L6", "Q20"), ROWS),
    **dict.fromkeys(("M1", "M2", "M4", "M6", "M7", "M8", "M9", "M10"), MOE),
    **dict.fromkeys(("M3", "M13", "M14"), part("moe", 1)),
    **dict.fromkeys(("N1", "N2", "N3", "S8"), NORM),
    **dict.fromkeys(("S1", "S2", "S5", "S6"), DELTA),
    **dict.fromkeys(("S11", "S12"), part("gated_delta", 0)),
    **dict.fromkeys(("A9", "X1"), Way("softmax")),
    **dict.fromkeys(("R1", "R2"), part("rope", 0)),
    "A3": Way("attention", lambda module, usual, telling: usual[0], lambda given, telling: [given]),
    "A10": Way("attention", lambda module, usual, telling: usual[0], tables),
    "A17": Way("attention", queries_of_tokens, lambda given, telling: dict(q=given["q"][:, 0], k=given["k"][0], v=given["v"][0])),
    "G6": Way("matmul", dtype="float16"),
    "I1": Way("top_k", lambda module, usual, telling: dict(x=usual, k=2048), lambda given, telling: given["x"]),
    "L8": Way("attention", lambda module, usual, telling: module.paged(usual, 0), pools),
    "L11": part("attention", 0),
    "M15": Way("matmul", experts_with_bias, of_experts_with_bias),
    "M19": Way(
        "matmul",
        lambda module, usual, telling: dict(a=usual.reshape(len(usual), -1).T, b=np.ones((len(usual), 1), np.float32), alpha=0.4),
        rows_in_fours,
    ),
    "Q16": Way(
        "matmul",
        lambda module, usual, telling: dict(a=usual[0], b=np.concatenate([w.dequantize() for w in usual[1]]), b_rows="n"),
        two_weights,
    ),
    "Q19": Way("matmul", lambda module, usual, telling: dict(a=usual[0], b=usual[1].dequantize(), b_rows="n"), tiled_weights),
    "R4": Way("rope", lambda module, usual, telling: usual[0], lambda given, telling: (given, np.resize(telling[1], given["x"].shape))),
    "R6": Way(
        "matmul",
        lambda module, usual, telling: dict(a=usual[:, None], b=module.FREQUENCIES[None]),
        lambda given, telling: np.ascontiguousarray(given["a"][:, 0]),
    ),
    "S3": Way("gated_delta", lambda module, usual, telling: usual["sequences"][0], in_a_pack),
    "S4": Way("gated_delta", lambda module, usual, telling: usual[0], after_another),
    "S13": Way("gated_delta", back=one_key),
    "S7": part("causal_conv1d", 0),
    "S9": Way("gated_delta", heads_of_channels, channels_of_heads),
    "S10": Way(
        "causal_conv1d",
        lambda module, usual, telling: dict(x=usual["x"], weight=usual["weight"], state=usual["blocks"][2][None]),
        blocks_of_states,
    ),
}
#: Faults of places that no operation takes as an argument: the numbers of pages, and positions that tables are made of.
NOT_ASKED = ("I2", "R7")


@dataclass
class Answer:
    """The results of the inputs of a fault."""

    id: str
    op: str
    fault: str
    usual: bool
    #: The number of the first input that shows the fault, from 1, and what it is; None if there is none.
    first: int | None = None
    why: str = ""
    asked: int = 0
    alarms: int = 0
    seconds: float = 0.0
    generator: float = 0.0


def judged(module: ModuleType, inputs: Any, fault: bool) -> bool | None:
    """True if the kernel is refused; None if it cannot take the inputs, or nothing of it is judged."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            got = module.kernel(inputs, fault)
            try:
                module.gate(inputs, got)
            except AssertionError as error:
                # A kernel that ignores a dimension cannot take it.
                return None if " of shape " in str(error) else True
    except Exception:  # noqa: BLE001 -- a kernel that cannot take a size may raise anything
        return None
    return False


def ask(module: ModuleType, way: Way, seed: int = 0, budget: int = BUDGET) -> Answer:
    usual, telling = draw(module, seed, usual=True), draw(module, seed)
    entry = module.ENTRY
    answer = Answer(entry.id, way.op, entry.fault, bool(judged(module, usual, True)))
    start = time.process_time()
    made = ulplab.inputs(way.op, like=way.like(module, usual, telling), budget=budget, seed=seed, dtype=way.dtype)
    answer.generator = time.process_time() - start
    for number, given in enumerate(made, 1):
        try:
            inputs = way.back(given, telling)
        except ValueError:
            continue
        right = judged(module, inputs, False)
        answer.alarms += right is True
        if right is not False:
            continue
        answer.asked += 1
        # A kernel that ends in an exception only with the fault is noticed by every test.
        if answer.first is None and judged(module, inputs, True) is not False:
            answer.first, answer.why = number, given.why
    answer.seconds = time.process_time() - start
    return answer


def answers() -> list[Answer]:
    modules = entries("faults")
    return [ask(modules[number], WAYS[number]) for number in modules if number in WAYS]


def text(found: list[Answer]) -> str:
    """The page."""
    head = HEAD.format(
        budget=BUDGET,
        count=len(found),
        missed=sum(not one.usual for one in found),
        noticed=sum(one.first is not None for one in found),
        alarms=sum(one.alarms for one in found),
        slowest=max(one.seconds for one in found),
        generator=max(one.generator for one in found),
    )
    rows = "| | operation | fault | usual | first of the inputs that shows it | counted inputs |\n|" + " --- |" * 6 + "\n"
    for one in found:
        shown = f"{one.first}: {one.why}" if one.first else "**No**"
        rows += f"| {one.id} | {one.op} | {one.fault} | {'refuses' if one.usual else '**passes**'} | {shown} | {one.asked} |\n"
    return head + rows


if __name__ == "__main__":
    PAGE.write_text(text(answers()))
