import numpy as np
import ulplab
from layers import angles, normal, turned
from entry import Entry

ENTRY = Entry(
    id="R7",
    op="rope",
    of="RoPE with angles computed in the kernel",
    fault="the fast sine and cosine reduce large angles in f32",
    symptom="an error of 3e-6 at position 40, and of 1e-2 at 131071",
    threads=("https://github.com/kekzl/imp/pull/1325",),
    escaped="every test had positions up to 40",
)
TURNED, BASE = 36, 10000.0


def drawn(rng, positions):
    return normal(rng, len(positions), 3, TURNED), positions


def inputs(rng):
    return drawn(rng, np.sort(rng.choice(np.arange(100_000, 131_072), 33, replace=False)))


def usual(rng):
    return drawn(rng, np.arange(41))


def fast(positions):
    """Cosines and sines by the fraction of a turn that an f32 has left of an angle."""
    frequencies = (BASE ** (-np.arange(0, TURNED, 2) / TURNED)).astype(np.float32)
    turns = positions.astype(np.float32)[:, None] * frequencies * np.float32(1 / (2 * np.pi))
    rest = (turns - np.floor(turns)) * np.float32(2 * np.pi)
    return np.cos(rest), np.sin(rest)


def kernel(inputs, fault):
    x, positions = inputs
    return turned(x, *(fast(positions) if fault else angles(positions, TURNED, BASE)))


def gate(inputs, got):
    x, positions = inputs
    cos, sin = angles(positions, TURNED, BASE)
    ulplab.assert_close(got, op="rope", inputs=dict(x=x, cos=cos, sin=sin))
