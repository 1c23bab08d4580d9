import numpy as np
import ulplab
from entry import Entry
from ml_dtypes import float8_e4m3fn

ENTRY = Entry(
    id="C6",
    op="quantize",
    format="fp8",
    of="cast to E4M3",
    fault="what is too large becomes NaN, or 448",
    symptom="OCP allows both: a format is known only with its rule for overflow",
    threads=("https://github.com/jax-ml/ml_dtypes/issues/400", "https://github.com/jax-ml/ml_dtypes/pull/398"),
)
LARGEST, TIE = 448, 464


def inputs(rng):
    x = (200 * rng.standard_normal((16, 77))).astype(np.float32)
    x[0, :6] = [448, 464, -464, 465, -480, 1e6]
    return x


def kernel(x, chosen):
    cast = x if chosen else np.clip(x, -LARGEST, LARGEST)
    return chosen, cast.astype(float8_e4m3fn).view(np.uint8)


def gate(x, got):
    chosen, codes = got
    want = np.asarray(ulplab.quantize(x, "e4m3").codes).reshape(x.shape).view(np.uint8)
    want = np.where((np.abs(x) > TIE) & chosen, want | 0x7F, want)
    wrong = np.argwhere(codes != want)
    assert not len(wrong), f"{len(wrong)} of {x.size} codes differ, the first at {wrong[0]}"
