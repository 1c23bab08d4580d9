"""Calls that were recorded, computed once more from their inputs and judged."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import numpy

from . import _calls, _checkpoint, _dumps, _errors, _flashinfer, _modules, _native
from ._close import _CODES, _FLOATS, _check_judged, _holds, _sums, _type_name, assumed, dtypes_of, unit
from ._files import Stored, clean
from ._tensors import array, imported_torch, inputs as given_inputs


@dataclass(frozen=True)
class Replayed:
    """The verdict on an output of a recorded call."""

    function: str
    path: str
    #: ``failed``, ``biased``, ``passed`` or ``not judged``.
    verdict: str
    #: The largest error over its bound; None if it was not judged.
    ratio: float | None
    #: The fault, the reason why the output was not judged, or the one of several right choices that was found.
    message: str
    op: str = ""


class Replay(list[Replayed]):
    """The calls that were replayed, the worst first. ``print`` shows them."""

    def of(self, verdict: str) -> list[Replayed]:
        """The calls with a verdict."""
        return [call for call in self if call.verdict == verdict]

    def __str__(self) -> str:
        counts = ", ".join(f"{len(self.of(verdict)):,} {verdict}" for verdict in _VERDICTS)
        lines = [f"{len(self):,} outputs of calls: {counts}"]
        for call in self:
            ratio = "" if call.ratio is None else f", error / bound {call.ratio:.3g}"
            lines.append(f"{call.verdict}: {clean(call.function)}{f' as {call.op}' if call.op else ''}{ratio} ({clean(call.path)})")
            lines += [f"    {clean(line.strip(), 1000)}" for line in call.message.splitlines()]
        return "\n".join(lines)


_VERDICTS = ("failed", "biased", "passed", "not judged")


def replay(
    folder: str | os.PathLike[str],
    accumulate: str | None = None,
    *,
    modules: dict[str, str | Callable[..., Any]] | None = None,
    rounds: str = "end",
    checkpoint: str | os.PathLike[str] | None = None,
) -> Replay:
    """Computes recorded calls once more in f64 from their recorded inputs, and judges their recorded outputs: the worst first.

    ``folder`` is what `ulplab.record` wrote, or FlashInfer's flight recorder (``FLASHINFER_LOGLEVEL=10
    FLASHINFER_DUMP_SAFETENSORS=1``), or msProbe with ``npy`` files, or SGLang (``--debug-tensor-dump-output-folder``, or its
    dumper with ``DUMPER_NON_INTRUSIVE_MODE=all``), or vLLM with dumps of that form. These last have names of modules and
    tensors: ``checkpoint`` is the folder of the model that was served, with config.json and safetensors.

    ``modules`` says what classes of recorded modules are, next to those that are known: ``{"MyNorm": "rmsnorm"}`` or
    ``{"package.MyNorm": "rmsnorm"}``, one of rmsnorm, rmsnorm_cast (which may round before the weight, too; the verdict says
    whether it does), gemma_rmsnorm (which multiplies by 1 + weight), layernorm, linear, softmax_router (logits, the softmax of
    the k largest, and their numbers, as of gpt-oss), and silu_and_mul and other operations that name ``modules`` in
    `ulplab.reference.operations`; ``{"Linear": ""}`` leaves a class out. ``{"MyNorm": function}`` names a plain reference in torch, for a
    class or for a function that another program recorded: it is called with what the module was called with, with the module's
    parameters by name, and with those of its attributes that the function takes; a torch module is called with the recorded parameters.
    ``rounds`` says what kernels round, as in `assert_close`. Calls of functions and with arguments that are not
    known, that have no outputs, or whose files cannot be read are *not judged*, and never passed. ``.pt`` files are read by
    torch if the caller has imported it (``weights_only=True``). ``accumulate`` is the type that kernels add in, as in `assert_close`.

    ValueError if the folder holds none of these.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(f"{folder} is no folder")
    assumed(accumulate, [])
    classes = {**_modules.CLASSES, **(modules or {})}
    references: dict[str, Any] = {name: kind for name, kind in classes.items() if callable(kind)}
    kinds = {name: kind for name, kind in classes.items() if isinstance(kind, str)}
    unknown = [kind for kind in classes.values() if kind and not callable(kind) and kind not in _modules.KINDS]
    if references:
        imported_torch("replay")
        from ._replay_function import Reference

        references = {name: Reference(function, rounds) for name, function in references.items()}
    elif rounds != "end":
        raise TypeError("replay: rounds is for modules={CLASS: function}")
    if unknown:
        raise ValueError(f"modules: '{unknown[0]}' is no kind of module, expected one of {', '.join(_modules.KINDS)}")
    calls = [(call, _flashinfer.known(call)) for call in _dumps.flashinfer(root)]
    calls += [(call, _modules.msprobe(call)) for call in _dumps.msprobe(root)]
    calls += [(call, _modules.module(call, kinds)) for call in _dumps.recordings(root)]
    served = None if checkpoint is None else _checkpoint.Checkpoint(checkpoint)
    calls += [(call, _checkpoint.known(call, served)) for call in _dumps.passes(root) + _dumps.dumper(root)]
    if not calls:
        raise ValueError(
            f"{folder} holds no calls: neither recording.json of ulplab.record, metadata.jsonl of FlashInfer's recorder, "
            "dump.json of msProbe, Pass*.pt of SGLang, nor *___name=*.pt of its dumper"
        )
    found = []
    for call, known in calls:
        reference = references.get(call.function, references.get(call.function.rpartition(".")[2]))
        found += _judged(call, known, accumulate) if reference is None else _by_function(call, reference, accumulate)
    found.sort(key=lambda one: (_VERDICTS.index(one.verdict), -(one.ratio or 0.0)))
    return Replay(found)


def _by_function(call: _dumps.Recorded, reference: Any, accumulate: str | None) -> list[Replayed]:
    """Judges the outputs of a call by a function of the caller's."""

    def of(verdict: str, ratio: float | None, message: str) -> Replayed:
        return Replayed(call.function, call.path, verdict, ratio, message, reference.name)

    if call.missing:
        return [of("not judged", None, call.missing)]
    try:
        verdicts = reference.verdicts(call, accumulate)
    except AssertionError as error:
        return [of("failed", float("inf"), str(error))]
    except Exception as error:  # noqa: BLE001 -- what was recorded may be anything; the other calls stand
        why = str(error) if isinstance(error, (ValueError, _calls.Unknown)) else f"{type(error).__name__}: {error}"
        return [of("not judged", None, why.removeprefix("not judged: "))]
    found = []
    for one in verdicts:
        if one.wrong:
            found.append(of("failed", one.ratio, "\n".join([one.wrong, *([call.caution] if call.caution else [])])))
        elif one.unsaid:
            found.append(of("not judged", None, one.unsaid.removeprefix("not judged: ")))
        else:
            found.append(of("passed", one.ratio, ""))
    return found


def _judged(call: _dumps.Recorded, known: _calls.Function | None, accumulate: str | None) -> list[Replayed]:
    def refused(why: str, op: str = "") -> Replayed:
        return Replayed(call.function, call.path, "not judged", None, why, op)

    if call.missing:
        return [refused(call.missing)]
    if known is None:
        return [refused("the function is not known")]
    try:
        judgements = known(call.given)
    except _calls.Unknown as error:
        return [refused(str(error))]
    except Exception as error:  # noqa: BLE001 -- what was recorded may be anything; the other calls stand
        return [refused(f"{type(error).__name__}: {error}")]
    found = []
    for one in judgements:
        op, output = one.op, one.output
        try:
            if one.at >= len(call.outputs):
                raise _calls.Unknown(f"output {one.at} was not recorded")
            got = one.settled or Stored.of(call.outputs[one.at])
            held = array(got if one.shape is None else _calls.reshaped(got, one.shape), "got")
            by_choice = {}
            for said, words in one.choices.items():
                given = _calls.with_outputs({**one.given, **words}, call.outputs)
                given_arrays = given_inputs(given)
                sums = assumed(accumulate, dtypes_of([*given_arrays.values(), held]))
                judged = _native.judge(op, held, given_arrays, unit(sums), output)
                _check_judged(judged, given_arrays, op, output or "output")
                types = {_type_name(x.dtype) or "" for x in call.given.values() if hasattr(x, "dtype")}
                # What is computed from codes has a type of its own.
                types = set() if types & {*_CODES, "uint8", "int8"} else types & _FLOATS.keys()
                coarse = held.dtype in _FLOATS and types and not any(_holds(held.dtype, wanted) for wanted in types)
                if coarse and not judged["outside"]:
                    # Half the spacing of its type is allowed, which is more than a kernel whose output has the wanted one may be off by.
                    wanted = " or ".join(sorted(types))
                    raise _calls.Unknown(f"output {one.at} is {held.dtype}, expected {wanted}, as its inputs are, or a wider type")
                if judged["outside"] and one.corners:
                    ends = [given_inputs({**given, **corner}) for corner in one.corners]
                    _widen(judged, [_native.judge(op, held, end, unit(sums), output) for end in ends])
                    unbounded = ~numpy.isfinite(judged["bound"])
                    if unbounded.any():
                        bound = numpy.where(unbounded, numpy.finfo(float).max, judged["bound"])
                        if not _native.compare(judged["got"], judged["value"], bound)["outside"]:
                            raise _calls.Unknown("the bound is infinite at the ends of what the operation may have been given")
                by_choice[said] = judged
                if not judged["outside"]:
                    break
            said, judged = min(by_choice.items(), key=lambda item: item[1]["outside"])
            # Where several are right, which one it is.
            chosen = [f"with {said}"] if len(one.choices) > 1 else []
        except AssertionError as error:
            found.append(Replayed(call.function, call.path, "failed", float("inf"), str(error), op))
            continue
        except Exception as error:  # noqa: BLE001 -- as above
            found.append(refused(str(error), op))
            continue
        ratio = judged["ratio"]
        if judged["outside"]:
            lines = _errors.outside(output or "output", held, judged, f"the bound, {_sums(sums)[1]}")
            lines += _errors.explained(judged["like"], judged["worst"][-1])
            lines += [*chosen, *([call.caution] if call.caution else [])]
            found.append(Replayed(call.function, call.path, "failed", ratio, "\n".join(lines), op))
            continue
        biased = _errors.biased(_errors.mean_errors(op, judged, judged["got"], held.dtype, unit(sums)))
        found.append(Replayed(call.function, call.path, "biased" if biased else "passed", ratio, "\n".join(biased + chosen), op))
    return found


def _widen(judged: dict[str, Any], ends: list[dict[str, Any]]) -> None:
    """Widens a bound to those of the ends of what an operation may have been given."""
    got, value = judged["got"], judged["value"]
    judged["bound"] = numpy.asarray(numpy.maximum.reduce([numpy.abs(end["value"] - value) + end["bound"] for end in ends]))
    judged.update(_native.compare(got, value, judged["bound"]))
