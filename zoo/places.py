"""Where the kernel of an entry stands in a model: what it is given there of the model's own tensors, and what is read of its result.

`PLACES` has a function for each entry: from its module and whether the kernel has its fault, to the operations that are replaced.
The kernel's setting (formats, sizes of blocks, ranks, layouts) is that in which the bug was published; the evaluation is the usual
one: one text, in one shot, without a prefix cache. An entry without a place says itself why its fault cannot show in it (`silent`), or that
no model has the operation (`absent`).
"""

from __future__ import annotations

import numpy as np
import ulplab
from layers import F32, attend, routed
from ml_dtypes import bfloat16, float8_e4m3fn
from models import Operations, attention, experts, rmsnorm, rows_seen, sigmoid

DENSE, MIXTURE, HYBRID = "qwen3-mini", "gptoss-mini", "qwen35-mini"
#: By the id of an entry: the model, and the function that makes operations of its module and of whether it has the fault.
PLACES = {}


def place(model, *numbers, **options):
    """Registers a function as the place of entries; options are passed on to it."""

    def register(make):
        for number in numbers:
            PLACES[number] = (model, lambda module, fault: make(module, fault, **options))
        return make

    return register


def one(**arrays):
    """A batch of one."""
    return {name: x[None] for name, x in arrays.items()}


def padded(x, block):
    """Rows with zeros behind them, up to whole blocks."""
    return np.pad(x, ((0, 0), (0, -x.shape[1] % block)))


def quantizer(module, fault, block, before=lambda x: x):
    """[rows, columns] as they come back from the entry's kernel."""

    def read(x):
        given = before(padded(np.ascontiguousarray(x), block))
        numbers = getattr(module, "numbers", lambda _, got: got)
        return np.asarray(numbers(given, module.kernel(given, fault))).astype(F32).reshape(len(x), -1)[:, : x.shape[1]]

    return read


# What is quantized: activations, weights, or a KV cache.


def activations(module, fault, block):
    read = quantizer(module, fault, block)
    return Operations(matmul=lambda x, w: read(x) @ w.T)


for block, number in ((128, "Q1"), (512, "Q3"), (128, "Q4"), (128, "Q10"), (16, "Q12"), (128, "Q14"), (1, "Q21")):
    place(DENSE, number, block=block)(activations)


def weights(module, fault, block, before=lambda w: w):
    read, known = quantizer(module, fault, block, before), {}

    def matmul(x, w):
        if w.ctypes.data not in known:
            known[w.ctypes.data] = read(w)
        return x @ known[w.ctypes.data].T

    return Operations(matmul=matmul)


for block, number in ((32, "L2"), (16, "Q7"), (16, "Q8"), (16, "Q15"), (32, "Q17")):
    place(DENSE, number, block=block)(weights)
place(DENSE, "Q2", block=128, before=lambda w: ulplab.quantize(w, "fp8_b128x128"))(weights)
place(DENSE, "Q6", block=32, before=lambda w: w.astype(bfloat16).astype(F32))(weights)


@place(DENSE, "K5", both=True)
@place(DENSE, "Q5", both=True)
@place(DENSE, "L1", both=False)
def kv_cache(module, fault, both):
    read = quantizer(module, fault, 1)

    def cache(x):
        return read(x.reshape(len(x), -1)).reshape(x.shape)

    return Operations(values=cache, **({"keys": cache} if both else {}))


# Products.


@place(DENSE, "G1", give=lambda x, w: dict(a=x, b=w.T))
@place(DENSE, "G2", give=lambda x, w: dict(a=x, b=w))
@place(DENSE, "G3", "L6", give=lambda x, w: [x, w])
@place(DENSE, "L4", give=lambda x, w: [padded(x, 128), padded(w, 128)])
@place(DENSE, "Q20", give=lambda x, w: (padded(x, 128), padded(w, 128)))
def product(module, fault, give):
    return Operations(matmul=lambda x, w: np.asarray(module.kernel(give(np.ascontiguousarray(x), np.ascontiguousarray(w)), fault), F32))


@place(DENSE, "G6")
def codes_for_operands(module, fault):
    """Operands as tensor cores have them, before the scale above the scales."""

    def matmul(*operands):
        stored = [ulplab.quantize(np.ascontiguousarray(x), "nvfp4", "vllm") for x in operands]
        globals_ = [x.global_scale.item() for x in stored]
        a, b = (x.dequantize() * F32(g) for x, g in zip(stored, globals_))
        return module.kernel(dict(a=a, b=b.T, alpha=1 / (globals_[0] * globals_[1])), fault).astype(F32)

    return Operations(matmul=matmul)


@place(DENSE, "Q11")
def both_quantized(module, fault):
    def matmul(x, w):
        given = (np.ascontiguousarray(x), w)
        return module.numbers(given, module.kernel(given, fault))

    return Operations(matmul=matmul)


@place(DENSE, "Q16")
def gate_and_up(module, fault):
    return Operations(gate_up=lambda x, *both: module.kernel((x, [ulplab.quantize(w, "nvfp4", "vllm") for w in both]), fault))


@place(DENSE, "Q19")
def tiles(module, fault, tile=(64, 128)):
    def matmul(x, w):
        stored = ulplab.quantize(padded(w, 128), f"e4m3/b{tile[0]}x{tile[1]}:f32(div)")
        return module.kernel((padded(x, 128), stored, tile), fault)

    return Operations(matmul=matmul)


# Attention.


def masked(module, window=None, sinks=None):
    """Lets `attend` of a module have the model's mask, and its sinks."""
    module.attend = lambda q, k, v, seen=True, sinks=sinks: attend(q, k, v, rows_seen(len(q), window) & seen, sinks)


@place(DENSE, "X2")
def whole(module, fault):
    return Operations(attention=lambda q, k, v, window, sinks: module.kernel(one(q=q, k=k, v=v), fault)[0])


@place(DENSE, "A16")
def heads_in_blocks(module, fault):
    """Each key head stands twice, as over several devices: 4 groups of 2, which the kernel's blocks stay within."""

    def causal(q, k, v, window, sinks):
        masked(module)
        return module.kernel(one(q=q, k=k.repeat(2, 1), v=v.repeat(2, 1)), fault)[0]

    return Operations(attention=causal)


@place(DENSE, "A2")
def without_prefix(module, fault):
    def causal(q, k, v, window, sinks):
        module.NEW = len(q)
        return module.kernel(one(q=q, k=k, v=v), fault)[0]

    return Operations(attention=causal)


@place(MIXTURE, "A5", windowed=True)
@place(MIXTURE, "A6", windowed=False)
def with_sinks(module, fault, windowed):
    def causal(q, k, v, window, sinks):
        if windowed and window is None:
            return attention(q, k, v, window, sinks)
        if windowed:
            module.WINDOW = window
            module.attend = lambda q, k, v, seen: attend(q, k, v, seen, sinks)
        else:
            masked(module, window)
        return module.kernel({**one(q=q, k=k, v=v), "sinks": sinks}, fault)[0]

    return Operations(attention=causal)


def scores(q, k, v, window):
    """Scores [H, T, T] with -inf where nothing is seen, and values of each head [H, T, D]."""
    k, v = (x.repeat(q.shape[1] // x.shape[1], 1).swapaxes(0, 1) for x in (k, v))
    found = q.swapaxes(0, 1) @ k.swapaxes(1, 2) / F32(np.sqrt(q.shape[-1]))
    return np.where(rows_seen(len(q), window), found, F32(-np.inf)), v


@place(MIXTURE, "A9")
@place(MIXTURE, "X1")
def softmax(module, fault):
    """Sinks are a column of their own, behind the keys, in a block of 16."""

    def causal(q, k, v, window, sinks):
        x, v = scores(q, k, v, window)
        more = np.full((*x.shape[:2], 16), -np.inf, F32)
        more[..., 0] = sinks[:, None]
        rows = np.concatenate([x, more], -1)
        weights = module.kernel(dict(x=rows.reshape(-1, rows.shape[-1])), fault).reshape(rows.shape)[..., : x.shape[-1]]
        return (weights @ v).swapaxes(0, 1)

    return Operations(attention=causal)


@place(DENSE, "A11", fp8=False)
@place(DENSE, "A12", fp8=True)
def token_by_token(module, fault, fp8):
    """As in decode: a batch of one token, over the keys before it."""

    def causal(q, k, v, window, sinks):
        if fp8:
            k, v = (x.repeat(q.shape[1] // x.shape[1], 1).astype(float8_e4m3fn).astype(F32) for x in (k, v))
        decode = (lambda **given: module.kernel(given, fault)) if fp8 else module.kernel(None, fault)
        rows = (decode(**one(q=q[[t]], k=k[: t + 1], v=v[: t + 1])) for t in range(len(q)))
        return np.concatenate([row[0] for row in rows])

    return Operations(attention=causal)


@place(DENSE, "K2")
def scaled_cache(module, fault):
    """Each tensor's scale takes its largest number to 448."""

    def causal(q, k, v, window, sinks):
        scales = [float(np.abs(x).max() / 448) for x in (k, v)]
        k, v = ((x / F32(scale)).astype(float8_e4m3fn) for x, scale in zip((k, v), scales))
        given = dict(**one(q=q, k=k, v=v), causal=1, k_scale=scales[0], v_scale=scales[1])
        return module.kernel(given, fault)[0]

    return Operations(attention=causal)


@place(DENSE, "L8")
def pages(module, fault, page=16, gap=20):
    """Keys and values in pages, with a gap behind each."""

    def causal(q, k, v, window, sinks):
        count = len(k) // page
        module.PAGES, module.TOKENS, module.HEADS, module.K, module.V = count, page, k.shape[1], k.shape[2], v.shape[2]
        pools = [np.pad(x.reshape(count, -1), ((0, 0), (0, gap))).ravel() for x in (k, v)]
        return module.kernel((q[None], pools, gap, np.arange(count)[None], np.array([len(k)])), fault)[0]

    return Operations(attention=causal)


# Rotation.


@place(HYBRID, "R4")
def rope_elsewhere(module, fault):
    """Out of place, into memory of zeros."""

    def rope(x, cos, sin, positions, base):
        module.TURNED = 2 * cos.shape[-1]
        return module.kernel((dict(x=x, cos=cos, sin=sin), np.zeros_like(x)), fault)

    return Operations(rope=rope)


@place(DENSE, "R6")
def tables(module, fault):
    def angles(positions, frequencies):
        module.FREQUENCIES = frequencies.astype(F32)
        return module.kernel(positions.astype(F32), fault)

    return Operations(angles=angles)


@place(DENSE, "R7")
def rope_with_angles(module, fault):
    def rope(x, cos, sin, positions, base):
        module.TURNED, module.BASE = x.shape[-1], base
        return module.kernel((x, positions), fault)

    return Operations(rope=rope)


# Mixture of experts.


@place(MIXTURE, "M10")
@place(MIXTURE, "M13", "M14", ranks=4)
@place(MIXTURE, "M1", "M7", factor=2.5)
def mixture(module, fault, ranks=None, factor=1):
    """A factor is taken out of the experts' second weights, so that the model stays what it is."""

    def moe(x, logits, top_k, w13, w2):
        if factor != 1:
            # scores are sigmoids here: those whose ratios are that of the softmax
            share = np.exp(logits - logits.max(-1, keepdims=True)) / 2
            logits = np.log(share / (1 - share))
        given = dict(x=x, logits=logits, top_k=top_k, w13=w13, w2=w2 / F32(factor), scaling_factor=factor)
        module.experts = experts
        return module.kernel(given if ranks is None else (ranks, given), fault).astype(F32)

    return Operations(moe=moe)


@place(MIXTURE, "M15")
def second_product(module, fault):
    def of_entry(chosen, weights, hidden, w2, bias):
        return module.kernel(dict(chosen=chosen, weights=weights, hidden=hidden, w2=w2, bias=bias), fault)

    def moe(x, logits, top_k, w13, w2):
        return experts(x, *routed(np.exp(logits), top_k), w13, w2, second=of_entry)

    return Operations(moe=moe)


@place(DENSE, "M19")
def residual(module, fault):
    return Operations(residual=lambda parts: module.kernel(parts, fault) if len(parts) > 1 else parts[0])


# Norms.


@place(DENSE, "N1")
def norm_in_tiles(module, fault):
    """A row is 16 tiles; in the publication it is 14."""

    def norm(x, weight, eps, zero_centered=False, gate=None):
        module.TILE = x.shape[-1] // 16
        rows = x.reshape(-1, x.shape[-1])
        return module.kernel(dict(x=rows.astype(bfloat16), weight=weight.astype(bfloat16)), fault).astype(F32).reshape(x.shape)

    return Operations(rmsnorm=norm)


@place(HYBRID, "N2")
def norm_of_wide_rows(module, fault):
    """Those of queries and keys, which have the 256 columns that the kernel needs."""

    def norm(x, weight, eps, zero_centered=False, gate=None):
        if x.shape[-1] % 256:
            return rmsnorm(x, weight, eps, zero_centered, gate)
        rows = x.reshape(-1, x.shape[-1])
        return module.kernel(None, fault)(rows, 1 + weight if zero_centered else weight).reshape(x.shape)

    return Operations(rmsnorm=norm)


@place(HYBRID, "N3")
def centred_norm(module, fault):
    def norm(x, weight, eps, zero_centered=False, gate=None):
        return module.kernel(dict(x=x, weight=weight), fault) if zero_centered else rmsnorm(x, weight, eps, gate=gate)

    return Operations(rmsnorm=norm)


@place(HYBRID, "S8")
def gated_norm(module, fault):
    def norm(x, weight, eps, zero_centered=False, gate=None):
        return rmsnorm(x, weight, eps, zero_centered) if gate is None else module.kernel(dict(x=x, gate=gate), fault) * weight

    return Operations(rmsnorm=norm)


# The convolution and the gated delta rule.


@place(HYBRID, "S7")
def convolution(module, fault):
    def conv(x, weight):
        bias = np.zeros(len(weight), F32)
        return module.kernel((dict(x=x.T[None], weight=weight, bias=bias, activation="silu"), ()), fault)[0].T

    return Operations(causal_conv1d=conv)


@place(HYBRID, "S10")
def convolution_from_a_block(module, fault):
    def conv(x, weight):
        y = module.kernel(dict(x=x.T[None], weight=weight, blocks=np.zeros((7, len(weight), 3), F32)), fault)[0][0].T
        return y * sigmoid(y)

    return Operations(causal_conv1d=conv)


@place(HYBRID, "S1", "S2")
def recurrence(module, fault):
    def delta(q, k, v, g, beta):
        module.FIRST = len(q)
        state = np.zeros((1, v.shape[1], k.shape[2], v.shape[2]), F32)
        return module.kernel(dict(**one(q=q, k=k, v=v, g=g, beta=beta), state=state), fault)["o"][0]

    return Operations(gated_delta=delta)


@place(HYBRID, "S6")
def decay_of_channels(module, fault):
    """A head's decay is that of each of its channels."""

    def delta(q, k, v, g, beta):
        q, k = (x.repeat(v.shape[1] // x.shape[1], 1) for x in (q, k))
        module.TOKENS, module.HEADS, module.KEY, module.VALUE, module.CHUNK = *k.shape, v.shape[2], 64
        g = np.broadcast_to(g[..., None], k.shape)
        return module.kernel(one(q=q, k=k, v=v, g=g, beta=beta), fault)["o"][0]

    return Operations(gated_delta=delta)


@place(HYBRID, "S9")
def decay_of_value_channels(module, fault):
    def delta(q, k, v, g, beta):
        group = v.shape[1] // k.shape[1]

        def head(h):
            key, state = h // group, np.zeros((1, 1, k.shape[2], v.shape[2]), F32)
            g_h = np.broadcast_to(g[:, h, None, None], v[:, [h]].shape)
            given = one(q=q[:, key], k=k[:, [key]], v=v[:, [h]], g=g_h, beta=beta[:, h])
            return module.kernel({**given, "q": q[None, :, [key]], "state": state}, fault)

        return np.stack([head(h) for h in range(v.shape[1])], 1)

    return Operations(gated_delta=delta)
