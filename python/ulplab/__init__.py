"""Tests whether a kernel, or a cheaper number format, is still right.

    import ulplab

    ulplab.assert_close(got, want, rtol=1e-2, atol=1e-2)                # numpy's and torch's rule, in f64
    ulplab.assert_close(got, op="rmsnorm", inputs=dict(x=x, weight=w))  # no number: the bound follows from the operation

Tensors of numpy, torch, jax, cupy and everything else with ``__dlpack__`` are read where they are; results are numpy arrays.
None of these libraries but numpy is imported.
"""

from ._audit import Audit, audit
from ._calibrate import Calibration, calibrate
from ._close import NoGate, assert_close
from ._native import version as _version
from ._invariant import assert_invariant
from ._quantized import Quantized, assert_quantized, dequantize, parity, quantize
from ._dumps import read_polygraphy, read_workloads
from ._recorder import Recording, record
from ._records import reproduce
from ._replay import Replay, replay
from ._tensors import UlplabWarning
from . import reference

__version__ = _version()
__all__ = [
    "Audit",
    "Calibration",
    "NoGate",
    "Quantized",
    "Recording",
    "Replay",
    "UlplabWarning",
    "assert_close",
    "assert_invariant",
    "assert_quantized",
    "audit",
    "calibrate",
    "dequantize",
    "parity",
    "quantize",
    "read_polygraphy",
    "read_workloads",
    "record",
    "reference",
    "replay",
    "reproduce",
]
