"""Tokens as kernels choose them: logits, temperatures and Gumbel noise in float32."""

from __future__ import annotations

import numpy as np
from kernels import F32, rounded
from ml_dtypes import bfloat16


def philox(counter, key):
    """Philox4x32-10 of arrays of counters."""
    words, key = [np.asarray(word, np.uint64) for word in counter], [int(word) for word in key]
    low, high = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        first, second = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        words = [(second >> high) ^ words[1] ^ np.uint64(key[0]), second & low, (first >> high) ^ words[3] ^ np.uint64(key[1]), first & low]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return words


def gumbel(seed, sequence, position, vocabulary):
    tokens = np.arange(vocabulary)
    zeros = np.zeros(vocabulary, np.int64)
    words = philox([tokens // 4, zeros + position, zeros + sequence, zeros], [seed % 2**32, seed >> 32])
    bits = np.choose(tokens % 4, words) >> np.uint64(9)
    uniform = (bits.astype(F32) + F32(0.5)) * F32(2.0**-23)
    return -np.log(-np.log(uniform))


def sample(rng, logits, temperature=None, sequence=None, position=None, noise=None, seed=0, seed_words=None, dtype=bfloat16):
    rows, vocabulary = logits.shape
    logits = logits.astype(F32)
    if seed_words is not None:
        seed = int(seed_words[0]) + (int(seed_words[1]) << 32)
    tokens = np.zeros(rows, np.int32)
    for row in range(rows):
        at = 0 if position is None else int(position[row])
        scores = logits[row]
        if at < 0:
            tokens[row] = -1
            continue
        if temperature is not None and temperature[row] > 0:
            own = gumbel(seed, row if sequence is None else int(sequence[row]), at, vocabulary) if noise is None else noise[row]
            # As a quotient, or by the reciprocal.
            scaled = scores / temperature[row] if rng.random() < 0.5 else scores * (F32(1) / temperature[row])
            scores = scaled + own
        # numpy takes the first NaN, or the first of the largest.
        tokens[row] = int(np.argmax(scores))
    return tokens


def draw_sample(rng, dtype):
    rows, vocabulary = int(rng.choice([1, 6])), int(rng.choice([1, 7, 300, 2000]))
    logits = rounded(4 * rng.standard_normal((rows, vocabulary)), dtype)
    if rng.random() < 0.3:
        logits = rounded(rng.integers(-3, 4, (rows, vocabulary)), dtype)
    if rng.random() < 0.3:
        logits[0, rng.integers(vocabulary)] = rng.choice([np.nan, np.inf, -np.inf])
    given = {"logits": logits}
    if rng.random() < 0.7:
        given["temperature"] = rng.choice([0, 0.7, 1.3, 1e-3], rows).astype(F32)
    if rng.random() < 0.5:
        given["position"] = rng.integers(-1, 4000, rows).astype(np.int32)
    if rng.random() < 0.5:
        given["sequence"] = rng.integers(0, 50, rows).astype(np.int32)
    if rng.random() < 0.3:
        given["noise"] = rng.gumbel(size=(rows, vocabulary)).astype(F32)
    elif rng.random() < 0.5:
        given["seed"] = int(rng.integers(2**53))
    else:
        given["seed_words"] = rng.integers(0, 2**32, 2)
    return given


def given_sample(rng):
    """Tokens that bf16 has, and a row of each kind."""
    logits = rounded(rng.standard_normal((40, 259)), bfloat16)
    logits[::4] = rounded(rng.integers(-4, 5, (10, 259)), bfloat16)
    logits[8, 100] = np.nan
    logits[1::4, 257:] += bfloat16(12)
    temperature = np.where(np.arange(40) % 2, [0.6, 1.7] * 20, 0).astype(F32)
    given = {"logits": logits, "temperature": temperature, "sequence": np.arange(3, 43) // 2, "seed": 2**40 + 17}
    return [given | {"position": np.where(np.arange(40) % 5 == 4, -1, np.arange(40) * 37)}]
