"""Right kernels whose terms round alike, since few of them differ, are inside; what is wrong by more is not.

Of the same kind: padding, masks, images of few grey levels, zero-initialised weights, embeddings of one token, ramps of positions."""

import kernels_attention as attention
import kernels_moe as moe
import numpy as np
import pytest
from kernels import F32, rounded
from ml_dtypes import bfloat16

import ulplab

SIZES = [100, 1000, 4096, 16_384]


def one_by_one(x):
    return np.add.accumulate(x, axis=-1, dtype=F32)[..., -1]


def in_lanes(lanes):
    def add(x):
        x = np.concatenate([x, np.zeros((*x.shape[:-1], -x.shape[-1] % lanes), F32)], -1)
        return one_by_one(one_by_one(x.reshape(*x.shape[:-1], -1, lanes).swapaxes(-1, -2)))

    return add


def in_parts(parts):
    return lambda x: one_by_one(np.stack([one_by_one(part) for part in np.array_split(x, parts, -1)], -1))


ORDERS = {
    "one by one": one_by_one,
    "from the end": lambda x: one_by_one(x[..., ::-1]),
    "pairwise": lambda x: np.add.reduce(x, axis=-1, dtype=F32),
    **{f"{lanes} lanes": in_lanes(lanes) for lanes in (8, 16, 32)},
    **{f"{parts} parts": in_parts(parts) for parts in (2, 4, 16)},
}


def rows(n):
    """Rows of few distinct numbers, and others that round alike."""
    rng, at = np.random.default_rng(n), np.arange(n)
    yield from (np.full(n, c) for c in (0.1, 0.7, 1 / 3))
    for period in (2, 3, 7, 16, 64):
        values = rng.uniform(0, 1, period)
        yield from (values[at % period], values[at * period // n], values[rng.integers(0, period, n)])
    yield from (at + offset for offset in (0.1, 0.24, 0.3))
    yield from (np.linspace(-1, 1, n), 1 / (1 + at), np.exp(-at / n), np.where(at == n // 2, 0.3, 0), np.where(at == 0, 1, 1e-9))
    yield from (rng.uniform(0, 1, n).astype(bfloat16), np.sign(rng.standard_normal(n)) * 0.1)


@pytest.mark.filterwarnings("ignore::ulplab.UlplabWarning")
@pytest.mark.parametrize("size", SIZES)
def test_sums_of_terms_that_round_alike(size):
    a = np.stack([row.astype(F32) for row in rows(size)])
    for b in (np.ones((size, 1), F32), np.full((size, 1), 0.7, F32)):
        for name, add in ORDERS.items():
            got = add(a * b[:, 0])[:, None]
            try:
                ulplab.assert_close(got, op="matmul", inputs={"a": a, "b": b})
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from None
            with pytest.raises(AssertionError, match="outside"):
                ulplab.assert_close(got + F32(0.02) * np.abs(a * b[:, 0]).sum(-1)[:, None], op="matmul", inputs={"a": a, "b": b})


def test_random_sums_keep_their_bounds():
    """λ·u·√(n·(s² + Σt²)), or n·u·Σ|t|, to within a twentieth."""
    rng, u = np.random.default_rng(0), 2.0**-24
    for size in (100, 4096, 20_000):
        for kind in (rng.standard_normal, rng.random):
            a, b = kind((8, size)).astype(F32), kind((size, 8)).astype(F32)
            bound = ulplab.reference.matmul(a=a, b=b).error
            terms = a.astype(float)[:, None] * b.astype(float).T
            likely = 8 * u * np.sqrt(size * (terms.sum(-1) ** 2 + (terms**2).sum(-1)))
            assert (bound <= 1.05 * np.minimum(likely, size * u * np.abs(terms).sum(-1))).all()


@pytest.mark.filterwarnings("ignore::ulplab.UlplabWarning")
@pytest.mark.parametrize("size", SIZES)
def test_norms_and_softmax_of_rows_that_round_alike(size):
    x = np.stack([row.astype(F32) for row in rows(size)])
    for name, add in ORDERS.items():
        root = np.sqrt(add(x * x)[:, None] / F32(size) + F32(1e-6))
        mean = add(x)[:, None] / F32(size)
        off = x - mean
        powers = np.exp(x - x.max(-1, keepdims=True))
        found = {
            "rmsnorm": x / root,
            "layernorm": off / np.sqrt(add(off * off)[:, None] / F32(size) + F32(1e-5)),
            "softmax": powers / add(powers)[:, None],
        }
        for op, got in found.items():
            try:
                ulplab.assert_close(got, op=op, inputs={"x": x})
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from None


@pytest.mark.filterwarnings("ignore::ulplab.UlplabWarning")
@pytest.mark.parametrize("dtype", [bfloat16, np.float16], ids=["bf16", "f16"])
def test_weights_of_equal_keys_that_are_rounded(dtype):
    rng = np.random.default_rng(5)
    for few, keys in ((1, 300), (2, 1000), (3, 3000)):
        q, k, v = (rounded(rng.standard_normal((1, 2, 1, 16)), dtype) for _ in "qkv")
        k = np.repeat(rounded(rng.standard_normal((1, few, 1, 16)), dtype), keys, 1)[:, ::few]
        # The first key has the largest score, so that the others' weights are not 1.
        k[:, 0] = 3 * np.sign(q[:, 0].astype(F32))
        v = np.broadcast_to(v[:, :1], k.shape)
        given = {"q": q, "k": k, "v": v, "p": "bf16" if dtype is bfloat16 else "f16"}
        got = attention.kernel(rng, **given, dtype=F32)
        ulplab.assert_close(got, op="attention", inputs=given)


@pytest.mark.filterwarnings("ignore::ulplab.UlplabWarning")
def test_experts_of_equal_rows():
    rng = np.random.default_rng(6)
    given = moe.sizes(rng, 3, 256, 4, 512)
    given = {name: np.broadcast_to(x.astype(F32)[..., :1, :1], x.shape).astype(x.dtype) if x.ndim > 1 else x for name, x in given.items()}
    logits = rng.standard_normal((3, 4)).astype(F32)
    for stored in ("f32", "bf16"):
        got = moe.kernel(rng, **given, logits=logits, top_k=2, stored=stored, dtype=F32)
        ulplab.assert_close(got, op="moe", inputs=given, logits=logits, top_k=2, stored=stored)


@pytest.mark.filterwarnings("ignore::ulplab.UlplabWarning")
@pytest.mark.parametrize(("columns", "k"), [(8, 4), (12, 3), (6, 6), (1000, 50)])
def test_tied_indices_are_named_once(columns, k):
    """However many orders there are. Also: indices out of range, and those of elements that lose."""
    x = np.ones((2, columns), F32)
    x[1, :2] = [3, 0]
    given = {"x": x, "k": k, "ties": "any"}
    first = np.argsort(-x, -1, kind="stable")[:, :k]
    other = first.copy()
    other[0] = np.random.default_rng(0).permutation(columns)[:k]
    for right in (first, other):
        ulplab.assert_close({"values": np.take_along_axis(x, right, -1), "indices": right}, op="top_k", inputs=given)
    for wrong in (other[0, 1], columns, -1):
        got = other.copy()
        got[0, 0] = wrong
        with pytest.raises(AssertionError, match=f"1 of {2 * k} elements"):
            ulplab.assert_close(got, op="top_k", inputs=given, output="indices")
    if k < columns:
        got = other.copy()
        got[1, k - 1] = 1
        with pytest.raises(AssertionError, match=f"1 of {2 * k} elements"):
            ulplab.assert_close(got, op="top_k", inputs=given, output="indices")


def test_bounds_that_overflow_judge_nothing():
    """Σ|t| is infinite in f64, and so is the bound. Also: bounds of norms, scores and weights of such numbers."""
    for a, b in (([[1e308, 1e308, 1]], [[1], [-1], [1]]), ([[1e200]], [[1e200]]), ([[1e308] * 4], [[1], [-1], [1], [-1]])):
        with pytest.raises(AssertionError):
            ulplab.assert_close(np.full((1, 1), 7.0), op="matmul", inputs={"a": np.array(a), "b": np.array(b, float)}, accumulate="f64")
    for tolerance in ({"rtol": np.inf, "atol": 0}, {"rtol": 0, "atol": np.inf}):
        for dtype in (F32, np.float64, np.float16, bfloat16):
            with pytest.raises((AssertionError, ValueError)):
                ulplab.assert_close(np.ones(9, dtype), 5 * np.ones(9, dtype), **tolerance)
