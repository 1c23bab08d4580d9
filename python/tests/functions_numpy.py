"""Plain references in numpy, as they are written by hand, and inputs for them."""

import functools
import math
from math import tanh
from typing import NamedTuple

import numpy as np
from numpy import einsum, exp, float64, zeros

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def positive(*shape):
    return (RNG.random(shape) + 0.05).astype(np.float32)


def whole(most, *shape):
    return RNG.integers(0, most, shape)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def softmax_f64(x):
    x = x.astype(np.float64)
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def softmax_of_rows(x):
    return np.array([softmax(row) for row in x])


def softmax_of_numbers(x):
    out = np.empty(x.shape, dtype=x.dtype)
    for i in range(x.shape[0]):
        most = max(x[i])
        total = 0.0
        for j in range(x.shape[1]):
            out[i, j] = math.exp(x[i, j] - most)
            total += out[i, j]
        out[i] /= total
    return out


def layer_norm(x, w, b, eps=1e-5):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * w + b


def layer_norm_by_rows(x, w, b):
    out = np.zeros_like(x)
    for i, row in enumerate(x):
        mu = np.mean(row)
        var = ((row - mu) ** 2).mean()
        out[i] = (row - mu) / np.sqrt(var + 1e-5) * w + b
    return out


def rms_norm(x, w):
    x = x.astype("float64")
    return x / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + 1e-6) * w


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


_ERF = np.vectorize(math.erf)


def gelu_erf(x):
    return 0.5 * x * (1.0 + _ERF(x / np.sqrt(2.0)))


def swiglu(x):
    a, b = np.split(x, 2, axis=-1)
    return a / (1 + np.exp(-a)) * b


def attention(q, k, v):
    s = einsum("bhid,bhjd->bhij", q, k) / np.sqrt(q.shape[-1])
    s = np.where(np.tril(np.ones(s.shape[-2:], dtype=bool)), s, -np.inf)
    return einsum("bhij,bhjd->bhid", softmax(s), v)


def attention_by_heads(q, k, v):
    out = zeros(q.shape)
    mask = np.triu(np.full((q.shape[2], k.shape[2]), -1e9), k=1)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            s = q[b, h].astype(float64) @ k[b, h].T * q.shape[-1] ** -0.5 + mask
            p = exp(s - s.max(axis=1)[:, None])
            out[b, h] = (p / p.sum(axis=1)[:, np.newaxis]) @ v[b, h]
    return out


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(x, h, c, w):
    outs = []
    for t in range(x.shape[1]):
        i, f, g, o = np.split(np.concatenate([x[:, t], h], axis=-1) @ w, 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        outs.append(h)
    return {"out": np.stack(outs, axis=1), "c": c}


def gru(x, h, wx, wh):
    n = h.shape[-1]
    a, b = x @ wx, h @ wh
    z, r = sigmoid(a[:, :n] + b[:, :n]), sigmoid(a[:, n : 2 * n] + b[:, n : 2 * n])
    return (1 - z) * np.tanh(a[:, 2 * n :] + r * b[:, 2 * n :]) + z * h


def conv2d(x, w):
    co, _, kh, kw = w.shape
    out = np.zeros((co, x.shape[1] - kh + 1, x.shape[2] - kw + 1))
    for c in range(co):
        for i in range(out.shape[1]):
            for j in range(out.shape[2]):
                out[c, i, j] = np.sum(x[:, i : i + kh, j : j + kw] * w[c])
    return out


def conv1d(x, w):
    k = w.shape[-1]
    padded = np.pad(x, ((0, 0), (k - 1, 0)))
    return sum(padded[:, i : i + x.shape[1]] * w[:, i : i + 1] for i in range(k))


def moving_average(x, n=5):
    total = np.cumsum(x.astype(np.float64), axis=-1)
    total[:, n:] = total[:, n:] - total[:, :-n]
    return total[:, n - 1 :] / n


def cross_entropy(x, labels):
    shifted = x - x.max(axis=1, keepdims=True)
    logp = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return -logp[np.arange(len(labels)), labels]


def rope(x, positions):
    d = x.shape[-1]
    angles = positions[:, None] * (10000.0 ** (-np.arange(0, d, 2) / d))
    cos, sin = np.cos(angles), np.sin(angles)
    out = np.empty_like(x)
    out[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    out[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
    return out


def rope_by_halves(x, cos, sin):
    a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return x * cos + np.concatenate((-b, a), axis=-1) * sin


def top_k_softmax(x, k=4):
    kept = np.argsort(-x, axis=-1)[:, :k]
    mask = np.zeros(x.shape, dtype=bool)
    np.put_along_axis(mask, kept, True, axis=-1)
    return softmax(np.where(mask, x, -np.inf))


def quantized(x):
    scale = np.abs(x).max(axis=-1, keepdims=True) / 127
    return np.clip(np.round(x / scale), -127, 127) * scale


def dequantized(codes, scales, x):
    return x @ ((codes.astype(np.float32) - 8) * scales)


def batch_norm(x, mean, var, w, b):
    return (x - mean[None, :, None]) * (w / np.sqrt(var + 1e-5))[None, :, None] + b[None, :, None]


def group_norm(x, groups=2):
    n, c, s = x.shape
    y = x.reshape(n, groups, -1)
    y = (y - y.mean(axis=2, keepdims=True)) / np.sqrt(y.var(axis=2, keepdims=True) + 1e-5)
    return y.reshape(n, c, s)


def max_pool(x):
    n, h, w = x.shape
    return x.reshape(n, h // 2, 2, w // 2, 2).max(axis=(2, 4)) * 0.3


def embedded(ids, table):
    return table[ids].mean(axis=1)


def scattered(x, ids):
    out = np.zeros((6, x.shape[1]), np.float32)
    np.add.at(out, ids, x)
    return out


def mlp(x, w1, b1, w2):
    return np.maximum(0, np.dot(x, w1) + b1).dot(w2)


def normalized(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def recurrence(x, a):
    h, out = np.zeros(x.shape[1], dtype=x.dtype), np.zeros_like(x)
    for t in reversed(range(len(x))):
        h = a[t] * h + x[::-1][t]
        out[t] = h
    return out[::-1]


def experts(x, gate, w):
    p = softmax(x @ gate)
    best = np.argmax(p, axis=-1)
    out = np.zeros((x.shape[0], w.shape[2]))
    for e in range(w.shape[0]):
        mine = best == e
        if mine.any():
            out[mine] += p[mine, e][:, None] * (x[mine] @ w[e])
    return out


def huber(x, y):
    d = np.abs(x - y)
    return np.where(d < 1, 0.5 * d * d, d - 0.5)


def along_an_axis(x):
    return np.apply_along_axis(lambda row: np.cumsum(row) / np.arange(1, len(row) + 1), 0, x)


def in_place(x):
    y = x.copy()
    y -= y.mean()
    y[:, 1:] *= 3
    y.T[0] += 0.5
    last = y[0, 0]
    y[0, 0] = y[1, 1]
    y[1, 1] = last
    np.exp(y, out=y)
    return np.log1p(y)


def horner(x):
    out = np.zeros_like(x)
    for c in [0.1, -0.7, 1.3, 0.2]:
        out = out * x + c
    return out


def with_positions(x):
    n, d = x.shape
    table = np.zeros((n, d))
    where = np.arange(n)[:, None] * np.exp(np.arange(0, d, 2) * -(np.log(10000.0) / d))
    table[:, 0::2], table[:, 1::2] = np.sin(where), np.cos(where)
    return x + table


def delta_rule(q, k, v, beta):
    state = np.zeros((k.shape[1], v.shape[1]))
    out = []
    for i in range(len(q)):
        state += beta[i] * np.outer(k[i], v[i] - k[i] @ state)
        out.append(q[i] @ state)
    return np.array(out)


def dot_by_terms(x, w):
    out = np.zeros((x.shape[0], w.shape[1]))
    for i in range(x.shape[0]):
        for j in range(w.shape[1]):
            acc = 0.0
            for k in range(x.shape[1]):
                acc += float64(x[i, k]) * w[k, j]
            out[i, j] = acc
    return out


def statistics(x):
    """Several outputs, some of them scalars."""
    return x.mean(), x.std(axis=0, ddof=1), np.linalg.norm(x), (x > 0).sum()


def distances(x, y):
    return np.sqrt(np.maximum((x**2).sum(1)[:, None] + (y**2).sum(1) - 2 * np.inner(x, y), 1e-6))


def of_tables(x):
    return np.tensordot(x * np.hanning(x.shape[-1]), MEL, axes=(-1, 0))


MEL = RNG.random((96, 7))


def activation(x, act=np.tanh, dtype=np.float64):
    return act(x.astype(dtype))


def tanh_of_numbers(x):
    return np.array([[tanh(v) for v in row] for row in x])


class Norm:
    def __init__(self, w):
        self.w, self.eps = w, np.float32(1e-6)

    def __call__(self, x):
        return self.scaled(x) * self.w

    def scaled(self, x):
        return x * (1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.eps))


def traced(function):
    @functools.wraps(function)
    def call(*args):
        return np.asarray(function(*args))

    return call


@traced
def decorated(x):
    return [row / row.sum() for row in np.exp(x)]


def made(scale):
    relu = np.maximum

    def closed(x):
        return relu(x * scale, 0) + np.ones_like(x)

    return closed


X = normal(8, 96)
POINTS = normal(6, 12)
HEADS = normal(2, 2, 7, 16), normal(2, 2, 7, 16), normal(2, 2, 7, 16)


class Case(NamedTuple):
    function: object
    inputs: tuple


FUNCTIONS = {
    "softmax": Case(softmax, (X,)),
    "softmax_f64": Case(softmax_f64, (X,)),
    "softmax_of_rows": Case(softmax_of_rows, (X,)),
    "softmax_of_numbers": Case(softmax_of_numbers, (normal(3, 5),)),
    "layer_norm": Case(layer_norm, (X, normal(96), normal(96))),
    "layer_norm_by_rows": Case(layer_norm_by_rows, (X, normal(96), normal(96))),
    "rms_norm": Case(rms_norm, (X, normal(96))),
    "gelu_tanh": Case(gelu_tanh, (X,)),
    "gelu_erf": Case(gelu_erf, (X,)),
    "swiglu": Case(swiglu, (X,)),
    "attention": Case(attention, HEADS),
    "attention_by_heads": Case(attention_by_heads, HEADS),
    "lstm": Case(lstm, (normal(4, 4, 12), normal(4, 16), normal(4, 16), normal(28, 64))),
    "gru": Case(gru, (normal(5, 12), normal(5, 16), normal(12, 48), normal(16, 48))),
    "conv2d": Case(conv2d, (normal(3, 5, 5), normal(2, 3, 3, 3))),
    "conv1d": Case(conv1d, (normal(6, 40), normal(6, 4))),
    "moving_average": Case(moving_average, (X,)),
    "cross_entropy": Case(cross_entropy, (X, whole(96, 8))),
    "rope": Case(rope, (normal(10, 32), np.arange(10))),
    "rope_by_halves": Case(rope_by_halves, (X, normal(8, 96), normal(8, 96))),
    "top_k_softmax": Case(top_k_softmax, (X,)),
    "quantized": Case(quantized, (X,)),
    "dequantized": Case(dequantized, (whole(16, 96, 24).astype(np.int8), positive(24), X)),
    "batch_norm": Case(batch_norm, (normal(3, 4, 20), normal(4), positive(4), normal(4), normal(4))),
    "group_norm": Case(group_norm, (normal(3, 4, 20),)),
    "max_pool": Case(max_pool, (normal(3, 8, 8),)),
    "embedded": Case(embedded, (whole(20, 8, 5), normal(20, 12))),
    "scattered": Case(scattered, (normal(40, 12), whole(6, 40))),
    "mlp": Case(mlp, (X, normal(96, 32), normal(32), normal(32, 12))),
    "normalized": Case(normalized, (X,)),
    "recurrence": Case(recurrence, (normal(12, 6), positive(12, 6))),
    "experts": Case(experts, (X, normal(96, 4), normal(4, 96, 12))),
    "huber": Case(huber, (X, normal(8, 96))),
    "along_an_axis": Case(along_an_axis, (normal(8, 12),)),
    "in_place": Case(in_place, (X,)),
    "horner": Case(horner, (X,)),
    "with_positions": Case(with_positions, (normal(10, 32),)),
    "delta_rule": Case(delta_rule, (normal(9, 8) / 3, normal(9, 8) / 3, normal(9, 5), positive(9))),
    "dot_by_terms": Case(dot_by_terms, (normal(2, 9), normal(9, 3))),
    "statistics": Case(statistics, (X,)),
    "distances": Case(distances, (POINTS, normal(5, 12))),
    "of_tables": Case(of_tables, (X,)),
    "activation": Case(activation, (X,)),
    "tanh_of_numbers": Case(tanh_of_numbers, (normal(3, 5),)),
    "norm object": Case(Norm(normal(96)), (X,)),
    "norm method": Case(Norm(normal(96)).scaled, (X,)),
    "partial": Case(functools.partial(layer_norm, eps=0.1), (X, normal(96), normal(96))),
    "decorated": Case(decorated, (X,)),
    "closure": Case(made(0.3), (X,)),
    "lambda": Case(lambda x: np.log(np.exp(x).sum(axis=-1)), (X,)),
}
