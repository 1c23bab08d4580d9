"""Functions of torch, inputs for them, and what right kernels give."""

import torch
import torch.nn.functional as F


def normal(*shape):
    return lambda rng: torch.randn(shape, generator=rng)


def positive(*shape):
    return lambda rng: torch.rand(shape, generator=rng) + 0.05


def whole(most, *shape):
    return lambda rng: torch.randint(0, most, shape, generator=rng)


def small_block(x, w1, w2, g):
    h = F.rms_norm(x, x.shape[-1:], g, 1e-6)
    return x + F.linear(F.silu(F.linear(h, w1)), w2)


def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def experts(x, gate, w):
    weights = F.linear(x, gate).softmax(-1)
    return torch.einsum("te,eoi,ti->to", weights, w, x)


def cell(x, h, c, w):
    i, f, g, o = (torch.cat([x, h], -1) @ w).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh()


def written_in_place(x):
    y = x.clone()
    y[:, 1:].mul_(3.0)
    y.t().add_(1.0)
    y[0] = 0.5
    return y.cumsum(-1)


X = normal(8, 96)
IMAGE = normal(2, 4, 9, 9)

#: By name: the function, and what draws each of its inputs.
FUNCTIONS = {
    "add": (torch.add, X, X),
    "sub_scaled": (lambda x, y: torch.sub(x, y, alpha=0.3), X, X),
    "mul": (torch.mul, X, X),
    "div": (torch.div, X, positive(8, 96)),
    "sqrt": (torch.sqrt, positive(8, 96)),
    "rsqrt": (torch.rsqrt, positive(8, 96)),
    "exp": (torch.exp, X),
    "log": (torch.log, positive(8, 96)),
    "log1p": (torch.log1p, positive(8, 96)),
    "expm1": (torch.expm1, X),
    "sin": (torch.sin, X),
    "pow": (lambda x: x.pow(2.5), positive(8, 96)),
    "cube": (lambda x: x**3, X),
    "erf": (torch.erf, X),
    "tanh": (torch.tanh, X),
    "sigmoid": (torch.sigmoid, X),
    "relu": (torch.relu, X),
    "leaky_relu": (F.leaky_relu, X),
    "gelu": (F.gelu, X),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), X),
    "silu": (F.silu, X),
    "softplus": (F.softplus, X),
    "elu": (F.elu, X),
    "selu": (F.selu, X),
    "mish": (F.mish, X),
    "hardswish": (F.hardswish, X),
    "hardsigmoid": (F.hardsigmoid, X),
    "logsigmoid": (F.logsigmoid, X),
    "softsign": (F.softsign, X),
    "hardtanh": (F.hardtanh, X),
    "glu": (F.glu, X),
    "sum": (lambda x: x.sum(-1), X),
    "mean": (lambda x: x.mean(0), X),
    "var": (lambda x: x.var(-1), X),
    "std": (lambda x: x.std(-1), X),
    "norm": (lambda x: x.norm(dim=-1), X),
    "l1": (lambda x: x.norm(p=1, dim=-1), X),
    "amax": (lambda x: x.amax(-1), X),
    "max": (lambda x: x.max(-1).values, X),
    "cumsum": (lambda x: x.cumsum(-1), X),
    "cumprod": (lambda x: (1 + 0.1 * x).cumprod(-1), X),
    "prod": (lambda x: (1 + 0.1 * x).prod(-1), X),
    "logsumexp": (lambda x: x.logsumexp(-1), X),
    "softmax": (lambda x: x.softmax(-1), X),
    "log_softmax": (lambda x: x.log_softmax(-1), X),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (96,), w, b), X, normal(96), normal(96)),
    "rms_norm": (lambda x, w: F.rms_norm(x, (96,), w, 1e-6), X, normal(96)),
    "group_norm": (lambda x: F.group_norm(x, 2), IMAGE),
    "batch_norm": (lambda x, w: F.batch_norm(x, None, None, w, training=True), IMAGE, normal(4)),
    "instance_norm": (F.instance_norm, IMAGE),
    "normalize": (lambda x: F.normalize(x, dim=-1), X),
    "matmul": (torch.matmul, X, normal(96, 24)),
    "linear": (F.linear, X, normal(24, 96), normal(24)),
    "bmm": (torch.bmm, normal(3, 5, 80), normal(3, 80, 7)),
    "einsum": (lambda a, b: torch.einsum("bij,bkj->bik", a, b), normal(3, 5, 80), normal(3, 7, 80)),
    "conv1d": (lambda x, w: F.conv1d(x, w, padding=2), normal(2, 3, 31), normal(5, 3, 4)),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1), IMAGE, normal(6, 4, 3, 3), normal(6)),
    "conv_transpose2d": (F.conv_transpose2d, IMAGE, normal(4, 3, 3, 3)),
    "depthwise": (lambda x, w: F.conv2d(x, w, groups=4), IMAGE, normal(4, 1, 3, 3)),
    "avg_pool": (lambda x: F.avg_pool2d(x, 3), IMAGE),
    "max_pool": (lambda x: F.max_pool2d(x, 3), IMAGE),
    "adaptive_pool": (lambda x: F.adaptive_avg_pool2d(x, (4, 5)), IMAGE),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), IMAGE),
    "embedding": (F.embedding, whole(20, 8), normal(20, 12)),
    "cross_entropy": (F.cross_entropy, X, whole(96, 8)),
    "mse": (F.mse_loss, X, X),
    "huber": (F.huber_loss, X, X),
    "smooth_l1": (F.smooth_l1_loss, X, X),
    "kl_div": (lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"), X, X),
    "bce": (lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()), X, X),
    "cosine": (lambda x, y: F.cosine_similarity(x, y, dim=-1), X, X),
    "attention": (attention, normal(2, 3, 9, 16), normal(2, 3, 9, 16), normal(2, 3, 9, 16)),
    "block": (small_block, X, normal(64, 96), normal(96, 64), normal(96)),
    "experts": (experts, X, normal(4, 96), normal(4, 12, 96)),
    "cell": (cell, normal(5, 12), normal(5, 16), normal(5, 16), normal(28, 64)),
    "gemm_gelu_softmax": (lambda x, w, b: F.gelu(F.linear(x, w, b)).softmax(-1), X, normal(24, 96), normal(24)),
    "in_place": (written_in_place, X),
    "where": (lambda x, y: torch.where(x > 0, x * y, y), X, X),
    "scatter_add": (lambda x, at: x.new_zeros(8, 10).scatter_add(1, at, x), X, whole(10, 8, 96)),
    "rotate": (lambda x: torch.cat([x[:, :48] * 0.8 - x[:, 48:] * 0.6, x[:, 48:] * 0.8 + x[:, :48] * 0.6], -1), X),
}

#: Functions whose gradients are judged, and the inputs that these are of.
GRADIENTS = {
    name: [0] if name in ("gelu", "softmax", "cross_entropy", "silu", "log_softmax", "normalize", "relu", "max_pool", "huber") else None
    for name in (
        "gelu gelu_tanh silu softmax log_softmax layer_norm rms_norm group_norm batch_norm normalize linear conv2d conv_transpose2d "
        "cross_entropy attention block cell max_pool avg_pool huber std logsumexp gemm_gelu_softmax einsum mish elu rotate"
    ).split()
}

#: What inputs are made of the normal numbers that are drawn.
INPUTS = {
    "normal": lambda x: x,
    "mean 1000": lambda x: x + 1000,
    "cubed": lambda x: x**3,
    "constant": lambda x: torch.full_like(x, 0.1),
    "constant rows": lambda x: x[..., :1].expand_as(x).clone() if x.ndim > 1 else x,
    "few": lambda x: (4 * x).round() / 4,
    "zeros": lambda x: x * (x > 0.5),
    "tiny": lambda x: x * 2.0**-130,
    "one row dominant": lambda x: torch.cat([x[:1] * 1e4, x[1:]]) if x.ndim > 1 else x,
}


def kinds(name, all_of_them):
    """The kinds of inputs that a function is tried on: all, or three that differ from function to function."""
    names = list(INPUTS)
    at = sum(map(ord, name)) % (len(names) - 1)
    return names if all_of_them else ["normal", names[1 + at], names[1 + (at + 3) % (len(names) - 1)]]


def drawn(name, seed, kind="normal"):
    """Inputs of a function."""
    rng = torch.Generator().manual_seed(seed)
    found = [draw(rng) for draw in FUNCTIONS[name][1:]]
    return [INPUTS[kind](x) if x.is_floating_point() else x for x in found]


def changed(x, dtype):
    return x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def by_parts(function, inputs):
    """The function in f64 and then rounded, as the best kernel would give it."""
    return function(*[changed(x, torch.float64) for x in inputs]).float()
