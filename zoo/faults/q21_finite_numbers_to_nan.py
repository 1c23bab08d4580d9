import numpy as np
import ulplab
from entry import Entry
from ml_dtypes import float8_e4m3fn

ENTRY = Entry(
    id="Q21",
    op="quantize",
    format="fp8",
    of="cast to E4M3 that saturates",
    fault="finite numbers from 512 to 57,344 get the code of NaN, and larger ones saturate",
    symptom="672 becomes NaN, and 448,512 becomes 448",
    threads=("https://github.com/ucb-bar/saturn-vectors/pull/101",),
    escaped="the vectors of the test came from a generator that could not make such numbers",
)


def inputs(rng):
    """Numbers up to a million."""
    return (usual(rng) * np.exp2(rng.integers(-4, 12, (33, 57)))).astype(np.float32)


def usual(rng):
    return np.clip(100 * rng.standard_normal((33, 57)), -448, 448).astype(np.float32)


def kernel(x, fault):
    codes = np.clip(x, -448, 448).astype(float8_e4m3fn).view(np.uint8)
    magnitude = np.abs(x)
    unknown = (magnitude >= 512) & (magnitude <= 57344) if fault else np.isnan(x)
    return np.where(unknown, np.uint8(0x7F), codes)


def gate(x, got):
    right = ulplab.quantize(x, "e4m3").codes
    differ = got != right
    first = tuple(np.argwhere(differ)[0]) if differ.any() else None
    assert not first, f"{differ.sum()} codes differ: {x[first]} has {got[first]:#04x}, not {right[first]:#04x}"


def numbers(x, got):
    return got.view(float8_e4m3fn)
