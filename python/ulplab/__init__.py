"""Tests whether a kernel, or a cheaper number format, is still right.

    import ulplab

    ulplab.assert_close(got, want, rtol=1e-2, atol=1e-2)                # numpy's and torch's rule, in f64
    ulplab.assert_close(got, op="rmsnorm", inputs=dict(x=x, weight=w))  # no number: the bound follows from the operation
    ulplab.assert_close(got, op=lambda x, w: F.gelu(x @ w), inputs=(x, w))  # ... or from a function of torch
    ulplab.assert_grad(kernel, op=function, inputs=(x, w))              # ... and from its derivatives

Tensors of numpy, torch, jax, cupy and everything else with ``__dlpack__`` are read where they are; results are numpy arrays.
None of these libraries but numpy is imported, and that when it is needed: `import ulplab` takes some milliseconds.
"""

import functools
import importlib
import os
import sys
import types
from typing import TYPE_CHECKING, Any

from . import _native
from ._native import version as _version

if TYPE_CHECKING:
    from . import reference
    from ._audit import Audit, audit
    from ._calibrate import Calibration, calibrate
    from ._close import NoGate, assert_close
    from ._dumps import read_polygraphy, read_workloads
    from ._functions import Bound, bound_of
    from ._gradients import assert_grad
    from ._inputs import snapshot
    from ._invariant import assert_invariant
    from ._local import bounds
    from ._quantized import Quantized, assert_quantized, dequantize, parity, quantize
    from ._recorder import Recording, record
    from ._records import reproduce
    from ._replay import Replay, replay
    from ._runs import records
    from ._tensors import UlplabWarning

# Which module has each name: it is imported when the name is used first.
_MODULES = {
    "_audit": ["Audit", "audit"],
    "_calibrate": ["Calibration", "calibrate"],
    "_close": ["NoGate", "assert_close"],
    "_dumps": ["read_polygraphy", "read_workloads"],
    "_functions": ["Bound", "bound_of"],
    "_gradients": ["assert_grad"],
    "_inputs": ["snapshot"],
    "_invariant": ["assert_invariant"],
    "_local": ["bounds"],
    "_quantized": ["Quantized", "assert_quantized", "dequantize", "parity", "quantize"],
    "_recorder": ["Recording", "record"],
    "_records": ["reproduce"],
    "_replay": ["Replay", "replay"],
    "_runs": ["records"],
    "_tensors": ["UlplabWarning"],
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__version__ = _version()
# Written out, so that `mypy --strict` sees what is exported.
__all__ = [
    "Audit",
    "Bound",
    "Calibration",
    "NoGate",
    "Quantized",
    "Recording",
    "Replay",
    "UlplabWarning",
    "assert_close",
    "assert_grad",
    "assert_invariant",
    "assert_quantized",
    "audit",
    "bound_of",
    "bounds",
    "calibrate",
    "dequantize",
    "parity",
    "quantize",
    "read_polygraphy",
    "read_workloads",
    "record",
    "records",
    "reference",
    "replay",
    "reproduce",
    "snapshot",
]

# The threads that compute do not survive a fork, and it must not copy what they are in the middle of.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_native.before_fork, after_in_parent=_native.after_fork, after_in_child=_native.after_fork
    )


# The flag of code with `**`.
_ANY_WORD = 8


def _eager(function: Any) -> Any:
    """A function that torch.compile does not trace: in a compiled function it breaks the graph, and is called with tensors."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        if options and not function.__code__.co_flags & _ANY_WORD:
            tensors = importlib.import_module("._tensors", __name__)
            tensors.check_words(function.__name__, options, tensors.arguments(function))
        dynamo = sys.modules.get("torch._dynamo")
        return (dynamo.disable(function) if dynamo else function)(*args, **options)

    # Dynamo's own mark: the call is not looked into. Frames below it would be, one by one.
    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return call


def __getattr__(name: str) -> Any:
    if name == "reference":
        return importlib.import_module(".reference", __name__)
    if name not in _MODULE_OF:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = getattr(importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)
    if isinstance(value, types.FunctionType):
        value = _eager(value)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
