"""Functions of jax, and inputs for them."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, nn

# Compilers are not under test.
jax.config.update("jax_disable_most_optimizations", True)
RNG = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(RNG.standard_normal(shape), jnp.float32)


def layer_norm(x, gain, bias):
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * gain + bias


def rope(x):
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[0])[:, None] / 10000 ** (jnp.arange(half) / half)
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), a * jnp.sin(angle) + b * jnp.cos(angle)], -1)


def experts(x, gate, w):
    weights, chosen = lax.top_k(nn.softmax(x @ gate), 2)
    every = jnp.einsum("td,edf->tef", x, w)
    return (jnp.take_along_axis(every, chosen[..., None], 1) * (weights / weights.sum(-1, keepdims=True))[..., None]).sum(1)


def recurrence(x, state):
    return lax.scan(lambda state, row: (jnp.tanh(0.9 * state + row), state), state, x, reverse=True)


def gated(x, a):
    """A linear recurrence by an associative scan."""
    return lax.associative_scan(lambda one, two: (one[0] * two[0], one[1] * two[0] + two[1]), (nn.sigmoid(a), x))[1]


def convolution(x, w, **words):
    return lax.conv_general_dilated(x, w, padding="SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), **words)


def pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 3, 1), (1, 2, 2, 1), "SAME")


def mean_pool(x):
    return lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4


def softened(x):
    @jax.custom_vjp
    def call(x):
        return jnp.sign(x) * jnp.sqrt(jnp.abs(x) + 1)

    call.defvjp(lambda x: (call(x), x), lambda x, g: (g * jnp.clip(x, -1, 1),))
    return call(x)


def positive_definite(a):
    return a @ a.T + jnp.eye(len(a))


def lower(a):
    return jnp.tril(a) + 4 * jnp.eye(len(a))


X, ROW, IMAGE = normal(6, 16), normal(16), normal(2, 7, 6, 4)
HEADS = normal(2, 8, 4, 16)
PLACES = jnp.array([3, 0, -1, 3])
KEY = jax.random.key(3)

#: By name: the function, and its inputs.
FUNCTIONS = {
    "softmax": (nn.softmax, X),
    "log_softmax": (nn.log_softmax, X),
    "logsumexp": (nn.logsumexp, X),
    "gelu": (nn.gelu, X),
    "gelu_erf": (lambda x: nn.gelu(x, approximate=False), X),
    "silu": (nn.silu, X),
    "relu": (nn.relu, X),
    "leaky_relu": (nn.leaky_relu, X),
    "softplus": (nn.softplus, X),
    "layer_norm": (layer_norm, X, ROW, ROW[::-1]),
    "rms_norm": (jax.jit(lambda x, w: x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w), X, ROW),
    "variance": (lambda x: jnp.var(x, -1), X),
    "length": (lambda x: jnp.linalg.norm(x, axis=-1), X),
    "matmul": (jnp.matmul, X, normal(16, 5)),
    "batched": (jax.vmap(jnp.dot, (0, None)), X, normal(16, 5)),
    "einsum": (lambda q: jnp.einsum("bthd,bshd->bhts", q, q), HEADS),
    "swiglu": (lambda x, w, v: nn.silu(x @ w) * (x @ v), X, normal(16, 8), normal(16, 8)),
    "attention": (lambda q, k, v: nn.dot_product_attention(q, k, v, is_causal=True), HEADS, normal(2, 8, 2, 16), normal(2, 8, 2, 16)),
    "rope": (rope, X),
    "experts": (experts, X, normal(16, 4), normal(4, 16, 8)),
    "ragged": (lax.ragged_dot, normal(7, 16), normal(3, 16, 5), jnp.array([2, 0, 4])),
    "recurrence": (recurrence, X, ROW),
    "gated": (gated, X, normal(6, 16)),
    "loop": (lambda x: lax.fori_loop(0, 3, lambda at, y: y * 0.7 + jnp.sin(y), x), X),
    "branch": (lambda x: lax.cond(x.sum() > 100, lambda x: x * 3, lambda x: x / 3, x), X),
    "switch": (lambda at, x: lax.switch(at, [jnp.sin, jnp.cos, jnp.exp], x), jnp.int32(2), X),
    "remat": (jax.checkpoint(lambda x: jnp.sin(jnp.exp(x))), X),
    "custom_vjp": (softened, X),
    "rows": (lambda x, at: x[at] * 1.1, X, PLACES),
    "columns": (lambda x, at: jnp.take(x, at, axis=1) / 3, X, jnp.array([[0, 5], [20, 1]])),
    "pairs": (lambda x: jnp.exp(x[jnp.arange(6), jnp.arange(6) * 2]), X),
    "segments": (lambda x: jax.ops.segment_sum(x, jnp.array([0, 2, 2, 0, 1, 2]), 4), X),
    "scatter_set": (lambda x, at: x.at[:, at].set(0.1) * 1.7, X, PLACES),
    "scatter_add": (lambda x, at: x.at[at].add(2.3), X, PLACES),
    "scatter_outside": (lambda x: x.at[jnp.array([1, 9])].add(2.3, mode="drop"), X),
    "scatter_max": (lambda x, at: x.at[at].max(0.3) * 0.1, X, PLACES),
    "one_hot": (lambda at, w: nn.one_hot(at, 5) @ w, PLACES, normal(5, 8)),
    "slice": (lambda x, at: lax.dynamic_slice(x, (at, 3), (2, 9)) * 0.3, X, jnp.int32(5)),
    "update": (lambda x, at: lax.dynamic_update_slice(x, x[:2] * 0.3, (at, 0)), X, jnp.int32(-2)),
    "strided": (lambda x: x[::-1, 1::3] * 0.3, X),
    "pad": (lambda x: jnp.pad(x, ((1, 2), (0, 3)), mode="reflect") * 0.3, X),
    "interior": (lambda x: lax.pad(x, 0.3, ((1, -1, 2), (-2, 3, 0))) * 1.7, X),
    "flattened": (lambda x: lax.reshape(x, (96,), (1, 0)) * 0.3, X),
    "sorted": (lambda x: jnp.sort(x, -1) * 0.3, X),
    "searched": (lambda x: jnp.interp(x[0], jnp.sort(x[1]), x[2]), X),
    "order": (lambda x: jnp.argsort(x, -1), X),
    "cumsum": (lambda x: jnp.cumsum(x, 1), X),
    "cumprod": (lambda x: jnp.cumprod(x, 1), X),
    "cumlogsumexp": (lambda x: lax.cumlogsumexp(x, 1), X),
    "product": (lambda x: jnp.prod(x, -1), X),
    "clip": (lambda x: jnp.clip(x, -0.3, 0.7) * 1.1, X),
    "larger": (lambda x: jnp.maximum(x, x[::-1]) * 1.1, X),
    "powers": (lambda x: x**5 + jnp.abs(x) ** 1.3, X),
    "round": (lambda x: jnp.round(x * 4) + jnp.floor(x), X),
    "convolution": (lambda x, w: convolution(x, w, window_strides=(2, 1), rhs_dilation=(1, 2)), IMAGE, normal(3, 2, 4, 5)),
    "depthwise": (lambda x, w: convolution(x, w, window_strides=(1, 1), feature_group_count=4), IMAGE, normal(3, 3, 1, 8)),
    "transposed": (lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"), IMAGE, normal(3, 3, 4, 3)),
    "max_pool": (pool, IMAGE),
    "mean_pool": (mean_pool, IMAGE),
    "resized": (lambda x: jax.image.resize(x, (2, 11, 6, 4), "linear"), IMAGE),
    "fft": (lambda x: jnp.abs(jnp.fft.rfft(x)), X),
    "triangular": (lambda a, b: jax.scipy.linalg.solve_triangular(lower(a), b, lower=True), normal(5, 5), normal(5, 2)),
    "cholesky": (lambda a: jnp.linalg.cholesky(positive_definite(a)), normal(5, 5)),
    "dropout": (lambda x, key: jnp.where(jax.random.bernoulli(key, 0.6, x.shape), x / 0.6, 0), X, KEY),
    "noise": (lambda x, key: x + jax.random.normal(key, x.shape), X, KEY),
}
