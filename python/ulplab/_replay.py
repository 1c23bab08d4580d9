"""Calls that were recorded, computed once more from their inputs and judged."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from . import _dumps, _errors, _native
from ._close import _outside, _where, unit
from ._files import Stored
from ._flashinfer import FLASHINFER
from ._known import Judge, Unknown, reshaped
from ._modules import MSPROBE, OPERATIONS, of_class
from ._tensors import array, inputs as given_inputs


@dataclass(frozen=True)
class Replayed:
    """What was found of an output of a recorded call."""

    function: str
    path: str
    #: ``failed``, ``biased``, ``passed`` or ``not judged``.
    verdict: str
    #: The largest error over its bound; None if it was not judged.
    ratio: float | None
    #: What is wrong, or why it was not judged.
    message: str
    op: str = ""


class Replay(list):
    """The calls that were replayed, the worst first. ``print`` shows them."""

    def of(self, verdict: str) -> list[Replayed]:
        """Those with a verdict."""
        return [call for call in self if call.verdict == verdict]

    def __str__(self) -> str:
        counts = ", ".join(f"{len(self.of(verdict)):,} {verdict}" for verdict in _VERDICTS)
        lines = [f"{len(self):,} outputs of calls: {counts}"]
        for call in self:
            ratio = "" if call.ratio is None else f", error / bound {call.ratio:.3g}"
            lines.append(f"{call.verdict}: {call.function}{f' as {call.op}' if call.op else ''}{ratio} ({call.path})")
            lines += [f"    {line.strip()}" for line in call.message.splitlines()]
        return "\n".join(lines)


_VERDICTS = ("failed", "biased", "passed", "not judged")


def replay(folder: str | os.PathLike[str], accumulate: str = "f32", modules: dict[str, str] | None = None) -> Replay:
    """Computes recorded calls once more in f64 from their recorded inputs, and judges their recorded outputs: the worst first.

    ``folder`` is what FlashInfer's flight recorder wrote (``FLASHINFER_LOGLEVEL=10 FLASHINFER_DUMP_SAFETENSORS=1``), msProbe with
    ``npy`` files, or :func:`ulplab.record`; ``modules`` then says for classes of modules which of ``rmsnorm``, ``gemma_rmsnorm``,
    ``layernorm``, ``linear``, ``silu_and_mul`` and ``softmax`` they compute, besides those that are known by their names. Calls of functions and with arguments that are not known, that have no outputs, or whose files cannot be read are *not
    judged*, and never passed. ``.pt`` files are read by torch if the caller has imported it (``weights_only=True``). ``accumulate`` is
    the type that kernels add in. ValueError if the folder holds neither.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(f"{folder} is no folder")
    unit(accumulate)
    calls = [(call, FLASHINFER.get(call.function)) for call in _dumps.flashinfer(root)]
    for call in _dumps.msprobe(root):
        calls.append((call, MSPROBE.get(".".join(call.function.split(".")[:2]))))
    stray = [op for op in (modules or {}).values() if op not in OPERATIONS]
    if stray:
        raise ValueError(f"modules: no operation '{stray[0]}', expected one of {', '.join(OPERATIONS)}")
    calls += [(call, of_class(call.function, modules or {})) for call in _dumps.recording(root)]
    if not calls:
        raise ValueError(
            f"{folder} holds no calls: neither metadata.jsonl of FlashInfer's recorder, nor dump.json of msProbe, nor calls.jsonl"
        )
    found = [one for call, known in calls for one in _judged(call, known, accumulate)]
    found.sort(key=lambda one: (_VERDICTS.index(one.verdict), -(one.ratio or 0.0)))
    return Replay(found)


def _judged(call: _dumps.Recorded, known: Judge | None, accumulate: str) -> list[Replayed]:
    def refused(why: str, op: str = "") -> Replayed:
        return Replayed(call.function, call.path, "not judged", None, why, op)

    if call.missing:
        return [refused(call.missing)]
    if known is None:
        return [refused("the function is not known")]
    try:
        judgements = known(call.given)
    except Unknown as error:
        return [refused(str(error))]
    except (ValueError, TypeError, IndexError, AttributeError) as error:
        return [refused(f"{type(error).__name__}: {error}")]
    found = []
    for at, op, given, shape in judgements:
        try:
            if at >= len(call.outputs):
                raise Unknown(f"output {at} was not recorded")
            got = Stored.of(call.outputs[at])
            got = got if shape is None else reshaped(got, shape)
            held = array(got, "got")
            judged = _native.judge(op, held, given_inputs(given), unit(accumulate), None)
        except (Unknown, ValueError, TypeError) as error:
            found.append(refused(str(error), op))
            continue
        except AssertionError as error:
            found.append(Replayed(call.function, call.path, "failed", float("inf"), str(error), op))
            continue
        ratio = float(_errors.ratios(judged["got"], judged["value"], judged["bound"]).max(initial=0.0))
        if judged["outside"]:
            lines = [_outside("output", held, judged, "the bound"), *_where(judged["got"], judged["value"], judged["bound"], True)]
            lines += [f"looks like {what}; then {outside:,} elements are outside" for what, outside in judged["like"][:4]]
            found.append(Replayed(call.function, call.path, "failed", ratio, "\n".join(lines), op))
            continue
        biased = []
        if _errors.judged(op) and judged["value"].size:
            biased = _errors.Bias(
                op, *(judged[part] for part in ("got", "value", "error", "bound")), held.dtype, unit(accumulate)
            ).found()
        found.append(Replayed(call.function, call.path, "biased" if biased else "passed", ratio, "\n".join(biased), op))
    return found
