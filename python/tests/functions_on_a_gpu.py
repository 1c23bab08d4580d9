"""Eager kernels of torch on a GPU against bounds of the functions of `functions.py`: python functions_on_a_gpu.py FILE [SEEDS].

Writes one line of JSON for each comparison: function, kind of inputs, arithmetic, verdict, and the largest ratio of error and bound.
"""

import json
import sys
import warnings

import functions as known
import torch
import ulplab
from ulplab import _functions, _judged, _tensors

# The arithmetic, the type of inputs, and the words that it needs.
MODES = {
    "f32": (torch.float32, False, {}),
    "tf32": (torch.float32, True, {"accumulate": "tf32"}),
    "bf16": (torch.bfloat16, False, {"rounds": "every_step"}),
    "f16": (torch.float16, False, {"rounds": "every_step"}),
}
# Kernels that add in their own type.
ADDS_IN_ITS_TYPE = ("cumsum", "in_place", "scatter_add")


def moved(x, device):
    return x.to(device) if isinstance(x, torch.Tensor) else x


def judged(got, function, inputs, accumulate="f32", rounds="end"):
    """The verdict, and the largest ratio of error and bound."""
    try:
        ulplab.assert_close(got, op=function, inputs=inputs, accumulate=accumulate, rounds=rounds)
        verdict = "passed"
    except AssertionError:
        verdict = "failed"
    except ValueError as why:
        return str(why)[:200], None
    bound = _functions.bounds_of(function, inputs, accumulate, rounds)["out"]
    array = _tensors.array(got, "got")
    found = _judged.Found(ulplab._native.widen(array), bound, array.dtype)
    return verdict, float(found.ratios().max(initial=0.0))


def main(file, seeds=1):
    warnings.simplefilter("ignore")
    with open(file, "w") as out:
        for name, (function, *_) in known.FUNCTIONS.items():
            for kind in ("normal", "cubed", "constant rows", "one row dominant", "zeros"):
                for mode, (dtype, tf32, words) in MODES.items():
                    if name in ADDS_IN_ITS_TYPE and mode in ("bf16", "f16"):
                        words = {**words, "accumulate": mode}
                    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
                    for seed in range(seeds):
                        inputs = [known.changed(x, dtype) for x in known.drawn(name, seed, kind)]
                        try:
                            got = function(*[moved(x, "cuda") for x in inputs])
                            verdict, ratio = judged(got.cpu(), function, inputs, **words)
                        except Exception as error:
                            verdict, ratio = f"{type(error).__name__}: {error}"[:200], None
                        out.write(json.dumps([name, kind, mode, seed, verdict, ratio]) + "\n")
                        out.flush()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
