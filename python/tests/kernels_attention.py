"""Attention as kernels compute it: keys in blocks with a running maximum, as in FlashAttention, of a cache in pages or not."""

from __future__ import annotations

import numpy as np
from kernels import F32, normal, rounded, summed
from ml_dtypes import bfloat16, float8_e4m3fn


def dense(rng, q, k, v, scale, causal=False, window=0, sinks=None, p="f32", dtype=bfloat16):
    """Heads first, in float32: o and lse."""
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = summed(q[..., :, None, :] * k[..., None, :, :], rng) * scale
    queries, keys = scores.shape[-2:]
    key, query = np.arange(keys)[None], np.arange(queries)[:, None] + keys - queries
    hidden = (key > query if causal or window else False) | (key <= query - window if window else False)
    scores = np.where(hidden, F32(-np.inf), scores)
    block = int(rng.choice([3, 16, 64]))
    top = np.full(scores.shape[:-1], -np.inf, F32)
    total, out = np.zeros_like(top), np.zeros((*top.shape, v.shape[-1]), F32)
    if sinks is not None:
        top = np.broadcast_to(sinks.astype(F32)[None, :, None], top.shape).copy()
        total = np.ones_like(total)
    with np.errstate(invalid="ignore", divide="ignore"):
        for start in range(0, keys, block):
            part = scores[..., start : start + block]
            now = np.maximum(top, part.max(-1))
            safe = np.where(np.isinf(now), F32(0), now)
            kept = np.where(np.isinf(top), F32(0), np.exp(top - safe))
            weights = np.exp(part - safe[..., None])
            total = total * kept + weights.sum(-1, dtype=F32)
            if p != "f32":
                weights = rounded(weights, dtype).astype(F32)
            values = v[..., start : start + block, :]
            out = out * kept[..., None] + np.einsum("...qk,...kd->...qd", weights, values, dtype=F32, optimize=False)
            top = now
        lse = top + np.log(total)
    return np.where(total[..., None] > 0, out / np.where(total > 0, total, F32(1))[..., None], F32(0)), lse


def kernel(
    rng,
    q,
    k,
    v,
    scale=None,
    layout="bthd",
    block_table=None,
    seq_lens=None,
    k_scale=1.0,
    v_scale=1.0,
    lse_base="e",
    lse_layout="as_q",
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    dtype=bfloat16,
    **rest,
):
    if lse_layout == "heads_first" and layout == "bthd":
        tensors = dict(q=q, k=k, v=v, block_table=block_table, seq_lens=seq_lens, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
        found = kernel(rng, **tensors, scale=scale, k_scale=k_scale, v_scale=v_scale, lse_base=lse_base, dtype=dtype, **rest)
        return {**found, "lse": found["lse"].swapaxes(-1, -2)}
    if cu_seqlens_q is not None:
        parts = []
        for b, (first, end) in enumerate(zip(cu_seqlens_q, cu_seqlens_q[1:])):
            if first == end:
                continue
            if cu_seqlens_k is not None:
                keys = slice(cu_seqlens_k[b], cu_seqlens_k[b + 1])
                of_keys = {"k": k[None, keys], "v": v[None, keys]}
            else:
                of_keys = {"k": k, "v": v, "block_table": block_table[b : b + 1], "seq_lens": seq_lens[b : b + 1]}
            common = {"scale": scale, "k_scale": k_scale, "v_scale": v_scale, "lse_base": lse_base, "dtype": dtype}
            parts.append(kernel(rng, q[None, first:end], **of_keys, **common, **rest))
        return {name: np.concatenate([part[name][0] for part in parts]) for name in ("o", "lse")}
    if layout == "bthd":
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    q, k, v = (x.astype(F32) for x in (q, k, v))
    if block_table is not None:
        # Pages one after the other: [B, G, P * S, D].
        k, v = (np.concatenate([x[np.maximum(column, 0)] for column in block_table.T], 2) for x in (k, v))
    scale = F32(q.shape[-1] ** -0.5 if scale is None else scale) * F32(k_scale)
    lengths = [k.shape[2]] * len(q) if seq_lens is None else seq_lens
    parts = [
        dense(rng, q[b : b + 1], k[b : b + 1, :, :length], v[b : b + 1, :, :length], scale, dtype=dtype, **rest)
        for b, length in enumerate(lengths)
    ]
    o, lse = (np.concatenate(part) for part in zip(*parts))
    o, lse = o * F32(v_scale), lse * F32(np.log2(np.e)) if lse_base == "2" else lse
    if layout == "bthd":
        o, lse = o.swapaxes(1, 2), lse.swapaxes(1, 2)
    return {"o": rounded(o, dtype), "lse": lse}


def ragged(rng, heads, groups, dim, values, paged, dtype=bfloat16):
    """Sequences one behind the other; one has no queries."""
    counts, lengths = np.array([3, 0, 1, 6]), np.array([7, 2, 1, 9])
    starts = [np.concatenate([[0], np.cumsum(x)]).astype(np.int32) for x in (counts, lengths)]
    given = {"q": normal(rng, int(counts.sum()), heads, dim, dtype=dtype), "cu_seqlens_q": starts[0]}
    if paged:
        table = rng.permutation(14)[:12].reshape(4, 3).astype(np.int32)
        given |= {"block_table": table, "seq_lens": lengths.astype(np.int32)}
    else:
        given["cu_seqlens_k"] = starts[1]
    of_cache = (14, 4) if paged else (int(lengths.sum()),)
    return given | {name: normal(rng, *of_cache, groups, cols, dtype=dtype) for name, cols in (("k", dim), ("v", values))}


def draw(rng, dtype):
    if rng.random() < 0.25:
        groups = int(rng.choice([1, 2, 4]))
        words = {"causal": bool(rng.random() < 0.7), "lse_layout": str(rng.choice(["as_q", "heads_first"]))}
        return ragged(rng, 4, groups, 16, 24, rng.random() < 0.5, dtype) | words
    heads, groups, dim = 4, int(rng.choice([1, 2, 4])), int(rng.choice([8, 64]))
    queries, keys = int(rng.choice([1, 5])), int(rng.choice([5, 70]))
    layout, given = str(rng.choice(["bthd", "bhtd"])), {}
    of_cache, stored = (2, keys), dtype
    if rng.random() < 0.4:
        page, pages = int(rng.choice([1, 16])), 150
        columns = -(-keys // page)
        given["block_table"] = rng.permutation(pages)[: 2 * columns].reshape(2, columns).astype(np.int32)
        of_cache = (pages, page)
    if "block_table" in given or rng.random() < 0.3:
        given["seq_lens"] = rng.integers(min(queries, keys), keys + 1, 2).astype(np.int32)
    if rng.random() < 0.2:
        stored, given["k_scale"], given["v_scale"] = float8_e4m3fn, 0.7, 1.3

    def tensor(first, tokens, heads, dim, dtype):
        shape = (first, tokens, heads, dim) if layout == "bthd" else (first, heads, tokens, dim)
        return normal(rng, *shape, dtype=dtype)

    given |= {"q": tensor(2, queries, heads, dim, dtype), "layout": layout, "lse_base": str(rng.choice(["e", "2"]))}
    given |= {"k": tensor(*of_cache, groups, dim, stored), "v": tensor(*of_cache, groups, 24, stored)}
    if rng.random() < 0.3:
        given["lse_layout"] = "heads_first"
    if rng.random() < 0.5:
        given["causal"] = True
    if rng.random() < 0.3:
        given["window"] = 4
    if rng.random() < 0.3:
        given["sinks"] = normal(rng, heads, dtype=np.float32)
    if rng.random() < 0.3 and dtype is not np.float32:
        given["p"] = "bf16" if dtype is bfloat16 else "f16"
    return given


def given(rng):
    q, k, v = normal(rng, 2, 9, 6, 16), normal(rng, 2, 11, 3, 16), normal(rng, 2, 11, 3, 20)
    dense = {"q": q, "k": k, "v": v, "causal": True, "window": 4, "sinks": normal(rng, 6)}
    paged = {
        "q": normal(rng, 3, 2, 6, 16),
        "k": normal(rng, 13, 4, 3, 16),
        "v": normal(rng, 13, 4, 3, 20),
        "block_table": np.array([[7, 2, 11], [4, 9, -1], [1, 12, 5]], np.int32),
        "seq_lens": np.array([11, 7, 9], np.int32),
        "causal": True,
        "k_scale": 0.7,
        "v_scale": 1.3,
    }
    padded = {"q": q, "k": k, "v": v.copy(), "seq_lens": np.array([11, 9], np.int32), "lse_layout": "heads_first"}
    padded["v"][1, 9:] = np.nan
    return [dense, paged, padded, ragged(rng, 6, 3, 16, 20, False) | {"causal": True}, ragged(rng, 6, 3, 16, 20, True) | {"causal": True}]
