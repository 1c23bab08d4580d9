"""Parts of quantizers, written in numpy, for kernels of the zoo."""

from __future__ import annotations

import numpy as np
from ml_dtypes import float4_e2m1fn, float8_e4m3fn


def blocks(x: np.ndarray, size: int) -> np.ndarray:
    """Rows in blocks of so many columns: ``[rows, blocks, size]``."""
    return x.reshape(len(x), -1, size)


def largest(x: np.ndarray, size: int) -> np.ndarray:
    """The largest magnitude of each block: ``[rows, blocks]``."""
    return np.abs(blocks(x, size)).max(-1)


def power_above(scales: np.ndarray) -> np.ndarray:
    """The smallest power of two that is not below a scale."""
    mantissa, exponent = np.frexp(scales)
    return np.ldexp(np.float32(1), exponent - (mantissa == 0.5))


def e4m3(values: np.ndarray) -> np.ndarray:
    """Codes of E4M3, rounded to nearest, ties to even; it saturates at 448."""
    return np.clip(values, -448, 448).astype(float8_e4m3fn).view(np.uint8)


def nibbles(codes: np.ndarray) -> np.ndarray:
    """Codes of 4 bits, two in each byte, the first in the low half: ``[rows, bytes]``."""
    codes = codes.reshape(len(codes), -1).astype(np.uint8)
    return codes[:, ::2] | codes[:, 1::2] << 4


def e2m1(values: np.ndarray) -> np.ndarray:
    """Bytes of E2M1 codes, rounded to nearest, ties to even; it saturates at 6."""
    return nibbles(np.clip(values, -6, 6).astype(float4_e2m1fn).view(np.uint8))
